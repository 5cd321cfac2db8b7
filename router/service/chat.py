"""`/v1/chat/completions` and `/v1/completions`: a request checked, admitted, answered, whole or as a stream (S1)."""

import asyncio
from collections.abc import AsyncIterator, Callable

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from ..decision import Piece, Request
from . import payload
from .errors import ApiError
from .openapi import ChatCompletion, Completion, answers
from .running import Run, unless_gone
from .schemas import ChatBody, CompletionBody, Generation
from .sse import DONE, EventStream, frame
from .state import Service, key_of

Messages = list[dict[str, str]]


def routes(service: Service) -> APIRouter:
    api = APIRouter(tags=["answers"])

    @api.post("/v1/chat/completions", responses=answers(ChatCompletion), summary="Answer a conversation")
    async def chat(body: ChatBody, http: HttpRequest) -> Response:
        return await _answer(service, body, body.prompt_messages, http, chat=True)

    @api.post("/v1/completions", responses=answers(Completion), summary="Answer one text")
    async def complete(body: CompletionBody, http: HttpRequest) -> Response:
        return await _answer(service, body, body.prompt_messages, http, chat=False)

    return api


async def _answer(
    service: Service, body: Generation, messages: Callable[[], Messages], http: HttpRequest, *, chat: bool
) -> Response:
    body.check()
    service.check_model(body.model)
    request = _request(service, body, messages(), http)
    shape = payload.Shape(chat=chat, request_id=request.request_id or "", model=body.model, total=service.total)
    work = _stream(service, request, http, shape, body.usage) if body.stream else _whole(service, request, http, shape)
    return await unless_gone(http.receive, work) or Response(status_code=499)


def _request(service: Service, body: Generation, messages: Messages, http: HttpRequest) -> Request:
    """The router's request, within this server's and this key's limits. Raises `ApiError` and `InvalidRequest`."""
    key, options, limit = key_of(http), service.options, body.limit()
    if sum(len(message["content"]) for message in messages) > options.max_prompt_chars:
        text = f"The messages are longer than {options.max_prompt_chars} characters."
        raise ApiError(400, text, code="context_length_exceeded", param="messages")
    most = min(options.max_tokens, key.max_tokens or options.max_tokens)
    if limit is not None and limit > most:
        raise ApiError(400, f"max_tokens may be at most {most} here.", param="max_tokens")
    return Request.of(
        messages,
        tenant=key.tenant,
        max_depth=body.max_depth,
        max_tokens=limit,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=body.stops,
        seed=body.seed,
        cache=body.cache_control(http.headers.get("cache-control")),
        request_id=http.state.request_id,
        **({"profile": body.profile} if body.profile else {}),
    )


async def _whole(service: Service, request: Request, http: HttpRequest, shape: payload.Shape) -> Response:
    run: Run | None = None
    answer = None
    try:
        async with asyncio.timeout(service.options.total_s):
            run = await service.start(request, key_of(http))
            async for piece in run.pieces():
                answer = piece.answer
    except TimeoutError:
        raise ApiError(504, f"The answer took longer than {service.options.total_s:g} s.") from None
    finally:
        if run is not None:
            run.stop()
    if answer is None:
        raise ApiError(503, "The model ended without an answer. Try again.", code="no_answer")
    return JSONResponse(shape.whole(answer), headers=payload.headers(answer))


async def _stream(service: Service, request: Request, http: HttpRequest, shape: payload.Shape, usage: bool) -> Response:
    """Waits for the first piece, so that a refusal still gets its own status, then streams."""
    run = await service.start(request, key_of(http))
    try:
        pieces = run.pieces()
        first = await anext(pieces, None)
        if first is None:
            raise ApiError(503, "The model ended without an answer. Try again.", code="no_answer")
    except BaseException:
        run.stop()
        raise
    known = payload.headers(first.answer) if first.answer else {}
    frames = _frames(first, pieces, shape, usage)
    return EventStream(frames, total_s=service.options.total_s, leave=run.stop, headers=known)


async def _frames(first: Piece, rest: AsyncIterator[Piece], shape: payload.Shape, usage: bool) -> AsyncIterator[bytes]:
    yield frame(shape.chunk(first, first=True))
    answer = first.answer
    async for piece in rest:
        if piece.text:
            yield frame(shape.chunk(piece, first=False))
        answer = piece.answer
    if answer is None:
        raise ApiError(503, "The model ended without an answer.", code="no_answer")
    yield frame(shape.last(answer))
    if usage:
        yield frame(shape.usage_chunk(answer))
    yield DONE
