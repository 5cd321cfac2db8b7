"""Response shapes, refusals and who may call, for the OpenAPI document. Nothing here runs for a request."""

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, create_model

from .schemas import ErrorBody

REFUSALS = (400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 500, 502, 503, 504)
MEANING = {
    400: "The request is wrong; `param` names the field.",
    401: "The API key is missing or wrong.",
    403: "The key may not do this.",
    404: "There is no such model, document or path.",
    405: "The path does not take this method.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "A guard refused the request.",
    429: "The caller's own limit is reached; see Retry-After.",
    500: "The server failed.",
    502: "The model that this needs is on another server, which failed.",
    503: "The server is full, shutting down, or lacks the part this needs; `code` says which.",
    504: "The answer took too long.",
}
DEPTH_HEADERS = {
    "X-Compute-Depth": "Deepest generated token over the model's layers, rounded up: 24/30",
    "X-Route": "Where the answer came from: faq, cache, extract, direct, rag, deep",
    "X-Cache": "hit-l1, hit-l2, hit-semantic or miss",
    "X-Layer-Stats": "mean, prefill, budget, layer-tokens and pruned layers in short",
    "X-Request-Id": "Id of this request, for /v1/feedback and /v1/traces",
}


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(BaseModel):
    role: str
    content: str
    refusal: str | None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: None


class TextChoice(BaseModel):
    index: int
    text: str
    finish_reason: str
    logprobs: None


class ChatCompletion(BaseModel):
    """OpenAI's chat completion; `shoal` is the decision trace (R8)."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None
    shoal: dict[str, Any]


class Completion(BaseModel):
    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: str | None
    shoal: dict[str, Any]


class Model(BaseModel):
    id: str
    object: str
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: str
    data: list[Model]


class Embedding(BaseModel):
    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    object: str
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class RouteDecision(BaseModel):
    route: str
    budget: float
    bucket: str
    confidence: float
    reasons: list[str]
    total: int
    cacheable: bool


class Passage(BaseModel):
    doc_id: str
    span: tuple[int, int]
    text: str
    score: float
    depth_score: float | None


def refusals() -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": MEANING[status]} for status in REFUSALS}


def secured(app: FastAPI, open_paths: Collection[str]) -> None:
    """Makes the document say that every path but the open ones needs a key."""
    make = app.openapi

    def document() -> dict[str, Any]:
        page = make()
        page["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        page["security"] = [{"key": []}]
        for path in page["paths"].keys() & open_paths:
            for operation in page["paths"][path].values():
                operation["security"] = []
        return page

    app.openapi = document  # type: ignore[method-assign]


def answers(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """A whole answer as JSON, or the same in server-sent events."""
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in DEPTH_HEADERS.items()}
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"model": model, "description": "The answer", "headers": headers, "content": stream}}


def plain(name: str, **fields: Any) -> type[BaseModel]:
    """A small response shape made in place."""
    shapes: dict[str, Any] = {key: (kind, ...) for key, kind in fields.items()}
    return create_model(name, **shapes)
