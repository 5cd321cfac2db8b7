"""`/v1/traces/{id}`: what is kept of a request, for its own tenant (G7). The id is the answer's `X-Request-Id`."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from ..traces.record import encoded
from .errors import ApiError
from .schemas import own_id
from .state import Service, key_of


class KeptTrace(BaseModel):
    """`trace` is the decision trace (R8); `tokens`, in mode `full`, holds every token's decisions as columns."""

    form: int
    id: str
    at: float
    mode: Literal["light", "full"]
    prompt: dict[str, Any]
    trace: dict[str, Any]
    tokens: dict[str, Any] | None


class EncodedTrace(BaseModel):
    id: str
    encoding: Literal["base64"]
    data: str


def routes(service: Service) -> APIRouter:
    api = APIRouter(tags=["operations"])

    @api.get(
        "/v1/traces/{trace_id}",
        responses={200: {"model": KeptTrace | EncodedTrace}},
        summary="What was decided for a request and each of its tokens, and why (G7)",
    )
    async def trace(
        trace_id: Annotated[str, Path(max_length=128)], http: HttpRequest, encoding: Literal["json", "base64"] = "json"
    ) -> Response:
        recorder, tenant = getattr(service.router, "recorder", None), key_of(http).tenant
        if recorder is None or recorder.store is None:
            raise ApiError(503, "This server keeps no traces.", code="no_traces")
        record = await service.work(http, lambda: recorder.store.get(own_id(trace_id), tenant=tenant))
        if record is None:
            message = "No trace of yours has this id: it was not kept (trace: off), or is gone by age or size."
            raise ApiError(404, message, code="trace_not_found", param="trace_id")
        if encoding == "base64":
            return JSONResponse({"id": record.id, "encoding": "base64", "data": encoded(record.to_dict())})
        return JSONResponse(record.to_dict())

    return api
