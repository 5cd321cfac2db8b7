"""`/v1/chat/completions` and `/v1/completions`: a request checked, admitted, answered, whole or as a stream (S1)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from ..decision import Piece, Request
from . import payload
from .errors import ApiError
from .openapi import ChatCompletion, Completion, answers
from .running import unless_gone
from .schemas import ChatBody, CompletionBody, Generation
from .sse import DONE, TOO_LONG, EventStream, frame
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
    deadline = asyncio.get_running_loop().time() + service.options.total_s
    responder = _stream if body.stream else _whole
    work = responder(service, request, http, _Reply(shape=shape, usage=body.usage, deadline=deadline))
    try:
        return await unless_gone(http.receive, work) or Response(status_code=499)
    except TimeoutError:
        raise ApiError(504, TOO_LONG) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """How the caller wants the answer; `deadline` in the event loop's time."""

    shape: payload.Shape
    usage: bool
    deadline: float


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
        trace=body.trace,
        request_id=http.state.request_id,
        **({"profile": body.profile} if body.profile else {}),
    )


async def _whole(service: Service, request: Request, http: HttpRequest, reply: _Reply) -> Response:
    answer = None
    async with asyncio.timeout_at(reply.deadline):
        run = await service.start(request, key_of(http), whole=True)
        try:
            async for piece in run.pieces():
                answer = piece.answer
        finally:
            run.stop()
    if answer is None:
        raise _no_answer()
    return JSONResponse(reply.shape.whole(answer), headers=payload.headers(answer))


async def _stream(service: Service, request: Request, http: HttpRequest, reply: _Reply) -> Response:
    """Waits for the first piece, so that a refusal still gets its own status, then streams."""
    async with asyncio.timeout_at(reply.deadline):
        run = await service.start(request, key_of(http), whole=False)
        try:
            pieces = run.pieces()
            first = await anext(pieces, None)
            if first is None:
                raise _no_answer()
        except BaseException:
            run.stop()
            raise
    known = payload.headers(first.answer) if first.answer else {}
    return EventStream(_frames(first, pieces, reply), deadline=reply.deadline, leave=run.stop, headers=known)


async def _frames(first: Piece, rest: AsyncIterator[Piece], reply: _Reply) -> AsyncIterator[bytes]:
    shape = reply.shape
    yield frame(shape.chunk(first, first=True))
    answer = first.answer
    async for piece in rest:
        if piece.text:
            yield frame(shape.chunk(piece, first=False))
        answer = piece.answer
    if answer is None:
        raise _no_answer()
    yield frame(shape.last(answer))
    if reply.usage:
        yield frame(shape.usage_chunk(answer))
    yield DONE


def _no_answer() -> ApiError:
    return ApiError(503, "The model ended without an answer. Try again.", code="no_answer")
