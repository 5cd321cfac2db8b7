"""`/v1/usage`: layer-tokens spent, summed by tenant, route, bucket or day; what is left of a prepaid key (S5)."""

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from ..accounting import GROUPS
from .errors import ApiError
from .openapi import plain
from .state import Service, key_of

Groups = Annotated[list[Literal["tenant", "route", "bucket", "tier", "account", "day"]], Query(max_length=len(GROUPS))]
Days = Annotated[float, Query(gt=0, le=3660)]
Usage = plain("UsageReport", rows=list[dict[str, Any]], quota=dict[str, float] | None)


def routes(service: Service) -> APIRouter:
    api = APIRouter(tags=["usage"])

    @api.get("/v1/usage", responses={200: {"model": Usage}}, summary="Layer-tokens spent; other tenants' for admins")
    async def usage(http: HttpRequest, by: Groups = ["tenant", "route"], days: Days = 30) -> Response:  # noqa: B006
        ledger, key = service.ledger, key_of(http)
        if ledger is None:
            raise ApiError(503, "This server keeps no ledger.", code="no_ledger")

        def read() -> dict[str, Any]:
            tenant = None if key.admin else key.tenant
            since = time.time() - days * 86_400
            rows = service.options.prices.report(ledger, list(dict.fromkeys(by)), tenant=tenant, since=since)
            balance = service.balance(key)
            left = {"granted": balance.granted, "spent": balance.spent, "left": balance.left} if balance else None
            return {"rows": rows, "quota": left}

        return JSONResponse(await service.work(http, read))

    return api
