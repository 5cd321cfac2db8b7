"""For whoever runs the service: liveness, readiness, models, layer health, metrics."""

import time

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from .decisions import EMBEDDER
from .errors import ApiError
from .openapi import Model, ModelList, plain
from .state import Service

Health = plain("Health", status=str)
LayerHealth = plain("LayerHealth", requests=int, tokens=int, layers=dict)


def routes(service: Service) -> APIRouter:
    api = APIRouter(tags=["operations"])
    began = int(time.time())
    names = (*service.names, EMBEDDER)
    models = {
        name: {"id": name, "object": "model", "created": began, "owned_by": "shoal"} for name in dict.fromkeys(names)
    }

    @api.get("/healthz", responses={200: {"model": Health}}, summary="Is the process alive")
    async def alive() -> Response:
        return JSONResponse({"status": "ok"})

    @api.get("/readyz", responses={200: {"model": Health}}, summary="May traffic be sent here")
    async def ready() -> Response:
        if service.admission.closed:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", retry_after=5)
        return JSONResponse({"status": "ready"})

    @api.get("/v1/models", responses={200: {"model": ModelList}}, summary="Names that requests may use")
    async def listed() -> Response:
        return JSONResponse({"object": "list", "data": list(models.values())})

    @api.get("/v1/models/{model_id:path}", responses={200: {"model": Model}}, summary="One of them")
    async def model(model_id: str) -> Response:
        if model_id not in models:
            raise ApiError(404, "There is no such model here.", code="model_not_found", param="model")
        return JSONResponse(models[model_id])

    @api.get("/v1/layers/health", responses={200: {"model": LayerHealth}}, summary="How often each layer runs (G9)")
    async def layers(http: HttpRequest) -> Response:
        if not hasattr(service.llm, "get_layer_health"):
            return JSONResponse({"requests": 0, "tokens": 0, "layers": {}})
        return JSONResponse(await service.work(http, service.llm.get_layer_health))

    @api.get("/metrics", summary="Prometheus metrics", responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        service.measure()
        page, kind = service.telemetry.page()
        return Response(page, media_type=kind)

    return api
