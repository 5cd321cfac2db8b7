"""The web console (S6): one page and its scripts at `/console`, and what of the server that page has to know.

The page is the same for everyone and needs no key; it asks for one where there are keys, and sends it with every call
to the paths that any client uses. What the page may load and ask is this host alone, by its Content-Security-Policy.
"""

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from ...conversation import skip_rate, state_of
from ..errors import ApiError
from ..openapi import plain
from ..state import Service, key_of
from .files import FILES, HEADERS, PAGE

RECENT = 4  # answers that the experience state is taken from
Facts = plain(
    "ConsoleFacts",
    model=str,
    total=int,
    min_depth=float,
    profiles=list[str],
    parts=dict[str, bool],
    tenant=str,
    admin=bool,
    state=str | None,
)


def routes(service: Service) -> APIRouter:
    api = APIRouter()

    @api.get("/console", include_in_schema=False)
    async def page() -> Response:
        body = PAGE.replace(b"{keys}", b"no" if service.keys.open else b"yes")
        return Response(body, media_type="text/html", headers=HEADERS)

    @api.get("/console/", include_in_schema=False)
    async def slash() -> Response:
        return Response(status_code=308, headers={**HEADERS, "Location": "../console"})  # names no host

    @api.get("/console/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in FILES:
            raise ApiError(404, "The console has no such file.")
        body, kind = FILES[name]
        return Response(body, media_type=kind, headers=HEADERS)

    @api.get(
        "/v1/console",
        tags=["operations"],
        responses={200: {"model": Facts}},
        summary="What the console must know: model, depths, profiles, parts, experience state (R6)",
    )
    async def facts(http: HttpRequest) -> Response:
        return JSONResponse(await service.work(http, lambda: _facts(service, http)))

    return api


def _facts(service: Service, http: HttpRequest) -> dict[str, Any]:
    key, router, llm = key_of(http), service.router, service.llm
    return {
        "model": service.model,
        "total": service.total,
        "min_depth": float(llm.min_depth) if llm is not None else float(service.total),
        "profiles": list(getattr(router, "profiles", ("balanced",))),
        "parts": {
            "model": llm is not None,
            "kb": router.kb is not None,
            "traces": _store(service) is not None,
            "ledger": service.ledger is not None,
        },
        "tenant": key.tenant,
        "admin": key.admin,
        "state": _state(service, key.tenant),
    }


def _state(service: Service, tenant: str) -> str | None:
    """The experience state after the tenant's newest answers, by the traces kept; None where none are."""
    store = _store(service)
    if store is None:
        return None
    least = float(service.llm.min_depth) if service.llm is not None else float(service.total)
    newest = store.newest(tenant=tenant, limit=RECENT)
    rates = [skip_rate(row["depth"], total=row["total"], min_depth=least) for row in reversed(newest)]
    return state_of(rates).value


def _store(service: Service) -> Any:
    return getattr(getattr(service.router, "recorder", None), "store", None)
