"""Everything else one may ask the router: a decision without an answer, an embedding, a thumb for an answer."""

import base64
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from ..errors import Refused
from .errors import ApiError
from .openapi import EmbeddingList, RouteDecision, plain
from .schemas import EmbeddingBody, FeedbackBody, RouteBody
from .state import Service, key_of

EMBEDDER = "shoal-embed"


def routes(service: Service) -> APIRouter:
    api = APIRouter()

    @api.post("/v1/route", tags=["decisions"], responses={200: {"model": RouteDecision}}, summary="Decide only")
    async def decide(body: RouteBody, http: HttpRequest) -> Response:
        messages, key = body.prompt_messages(), key_of(http)
        fields = {name: value for name in ("max_depth", "profile") if (value := getattr(body, name)) is not None}
        try:
            decision = await service.work(http, lambda: service.router.decide(messages, tenant=key.tenant, **fields))
        except Refused as refused:
            service.telemetry.refused(refused.code)
            raise
        return JSONResponse({**decision.to_dict(), "total": decision.total, "cacheable": decision.cacheable})

    @api.post("/v1/embeddings", tags=["answers"], responses={200: {"model": EmbeddingList}}, summary="Embed texts")
    async def embed(body: EmbeddingBody, http: HttpRequest) -> Response:
        if body.model != EMBEDDER:
            service.check_model(body.model)
        texts = _texts(service, body)
        rows = await service.work(http, lambda: service.router.embed(texts))
        if body.dimensions not in (None, rows.shape[1]):
            raise ApiError(400, f"This embedder has {rows.shape[1]} dimensions.", param="dimensions")
        data = [
            {"object": "embedding", "index": index, "embedding": _vector(row, body.encoding_format)}
            for index, row in enumerate(rows)
        ]
        words = sum(_words(text) for text in texts)
        usage = {"prompt_tokens": words, "total_tokens": words}
        return JSONResponse({"object": "list", "model": body.model, "data": data, "usage": usage})

    @api.post(
        "/v1/feedback",
        tags=["decisions"],
        responses={200: {"model": plain("Feedback", request_id=str, up=bool)}},
        summary="A thumb up or down; down retracts the answer from the cache",
    )
    async def feedback(body: FeedbackBody, http: HttpRequest) -> Response:
        tenant = key_of(http).tenant
        known = await service.work(http, lambda: service.router.feedback(body.request_id, up=body.up, tenant=tenant))
        if not known:
            raise ApiError(404, "No recent answer has this request_id.", code="answer_not_found", param="request_id")
        if not body.up:
            service.regating.disliked(tenant, body.request_id)
        return JSONResponse({"request_id": body.request_id, "up": body.up})

    return api


def _texts(service: Service, body: EmbeddingBody) -> list[str]:
    texts, options = body.texts(), service.options
    if len(texts) > options.max_inputs or sum(map(len, texts)) > options.max_prompt_chars:
        limits = f"{options.max_inputs} texts and {options.max_prompt_chars} characters"
        raise ApiError(400, f"input may have at most {limits}.", code="context_length_exceeded", param="input")
    return texts


def _vector(row: Any, encoding: str | None) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return [float(value) for value in row]


def _words(text: str) -> int:
    """Words, and Chinese characters one by one: the unit of `usage` here, since the embedder has no tokens to bill."""
    wide = sum("\u4e00" <= char <= "\u9fff" for char in text)
    return wide + len("".join(" " if "\u4e00" <= char <= "\u9fff" else char for char in text).split())
