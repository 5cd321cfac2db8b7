"""`/v1/chat/completions` and `/v1/completions`: a request checked, admitted, answered, whole or as a stream (S1)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from ..decision import Answer, Piece, Request
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
    reply = _Reply(shape=shape, usage=body.usage, deadline=deadline)
    await _check_tokens(service, request, http)
    work = responder(service, [_variant(request, n) for n in range(body.n or 1)], http, reply)
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
    if limit is None and service.router.usual_tokens(body.profile) > most:
        limit = most
    return Request.of(
        messages,
        tenant=key.tenant,
        max_depth=body.max_depth,
        max_tokens=limit,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=body.stops,
        seed=body.seed,
        cache=body.cache_control(",".join(http.headers.getlist("cache-control"))),
        schema=body.held_to(),
        trace=body.trace,
        request_id=http.state.request_id,
        **({"profile": body.profile} if body.profile else {}),
    )


async def _check_tokens(service: Service, request: Request, http: HttpRequest) -> None:
    """Raises `ApiError` for a prompt of more tokens than this server takes, where it has such a limit."""
    most = service.options.max_prompt_tokens
    if most is None or not hasattr(service.llm, "count_tokens"):
        return
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    if await service.work(http, lambda: service.llm.count_tokens(messages)) > most:
        message = f"The messages have more than {most} tokens."
        raise ApiError(400, message, code="context_length_exceeded", param="messages")


def _variant(request: Request, n: int) -> Request:
    """The request for its answer number `n`: another seed, and an id of its own."""
    return replace(request, seed=(request.seed or 0) + n, request_id=f"{request.request_id}-{n}") if n else request


async def _whole(service: Service, requests: Sequence[Request], http: HttpRequest, reply: _Reply) -> Response:
    async def one(request: Request) -> Answer:
        run, answer = await service.start(request, key_of(http), whole=True), None
        try:
            async for piece in run.pieces():
                answer = piece.answer
        finally:
            run.stop()
        if answer is None:
            raise _no_answer()
        return answer

    async with asyncio.timeout_at(reply.deadline):
        answers = await _all(one(request) for request in requests)
    return JSONResponse(reply.shape.whole(answers), headers=payload.headers(answers[0]))


async def _all(work: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Results in order; the first failure ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _stream(service: Service, requests: Sequence[Request], http: HttpRequest, reply: _Reply) -> Response:
    """Waits for the first piece, so that a refusal still gets its own status, then streams one answer after another."""
    key = key_of(http)
    async with asyncio.timeout_at(reply.deadline):
        run = await service.start(requests[0], key, whole=False)
        try:
            pieces = run.pieces()
            first = await anext(pieces, None)
            if first is None:
                raise _no_answer()
        except BaseException:
            run.stop()
            raise
    runs = [run]

    async def choices() -> AsyncIterator[AsyncIterator[Piece]]:
        yield _after(first, pieces)
        for request in requests[1:]:
            runs.append(await service.start(request, key, whole=False))
            yield runs[-1].pieces()

    def leave() -> None:
        for one in runs:
            one.stop()

    known = payload.headers(first.answer) if first.answer else {}
    return EventStream(_frames(choices(), reply), deadline=reply.deadline, leave=leave, headers=known)


async def _after(first: Piece, rest: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    yield first
    async for piece in rest:
        yield piece


async def _frames(choices: AsyncIterator[AsyncIterator[Piece]], reply: _Reply) -> AsyncIterator[bytes]:
    shape, answers = reply.shape, list[Answer]()
    async for pieces in choices:
        answer, begun, index = None, False, len(answers)
        async for piece in pieces:
            if piece.text or not begun:
                yield frame(shape.chunk(piece, first=not begun, index=index))
            answer, begun = piece.answer, True
        if answer is None:
            raise _no_answer()
        answers.append(answer)
        yield frame(shape.last(answer, index))
    if reply.usage:
        yield frame(shape.usage_chunk(answers))
    yield DONE


def _no_answer() -> ApiError:
    return ApiError(503, "The model ended without an answer. Try again.", code="no_answer")
