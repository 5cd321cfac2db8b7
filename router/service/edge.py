"""The outermost layer: request id, key, rate, body limits, and the promise that every failure leaves as OpenAI JSON.

Plain ASGI, so it sees a request before anything is read, parsed or embedded. Decides by `scope["path"]` and the socket
only: neither the Host header nor any X-Forwarded header is ever looked at.
"""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..telemetry import Telemetry
from .admission import Admission
from .console.files import PATHS as CONSOLE
from .errors import ApiError, api_error
from .keys import LOCAL, ApiKey, KeyRing
from .options import ServiceOptions

log = logging.getLogger("shoal.service")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/healthz", "/readyz"}) | CONSOLE
JSON_TYPE = re.compile(rb"application/(?:[a-z0-9.+-]+\+)?json\s*(?:;.*)?", re.I | re.S)
CLOSE = {"Connection": "close"}


class Edge:
    """Wraps the application; see the module's words for what it does."""

    def __init__(
        self, app: App, *, keys: KeyRing, admission: Admission, telemetry: Telemetry, options: ServiceOptions
    ) -> None:
        self._app, self._keys, self._admission = app, keys, admission
        self._telemetry, self._options = telemetry, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
            return
        began, reply = time.perf_counter(), _Reply(send, f"req-{uuid.uuid4().hex}")
        state = scope.setdefault("state", {})
        state["request_id"] = reply.request_id
        try:
            state["key"] = self._authenticate(scope)
            await self._admission.check_rate(state["key"])
            body = await self._read(scope, receive)
            await self._app(scope, _replay(body, receive), reply)
        except _Gone:
            return
        except Exception as error:
            if reply.status:
                raise _Broken from None
            await api_error(error).response()(scope, receive, reply)
        finally:
            self._note(scope, reply, time.perf_counter() - began)

    def _authenticate(self, scope: Scope) -> ApiKey:
        if scope["path"] in OPEN_PATHS or self._keys.open:
            return LOCAL
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, secret = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        key = self._keys.find(secret.strip().decode("latin-1")) if scheme.lower() == b"bearer" else None
        if key is None:
            message = "The API key is missing or wrong: send Authorization: Bearer sk-shoal-..."
            raise ApiError(401, message, headers={"WWW-Authenticate": "Bearer"})
        return key

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, at most `max_body` bytes within `body_s` seconds. Raises `ApiError` 408, 413 or 415."""
        headers = dict(scope["headers"])
        if not ({b"content-length", b"transfer-encoding"} & headers.keys()):
            return b""
        limit = self._options.max_body
        too_large = ApiError(413, f"The body is larger than {limit} bytes.", headers=CLOSE)
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            if b"expect" not in headers:
                await _discard(receive)
            raise too_large
        try:
            async with asyncio.timeout(self._options.body_s):
                body = await _collect(receive, limit)
        except TimeoutError:
            message = f"The body did not arrive within {self._options.body_s:g} s."
            raise ApiError(408, message, headers=CLOSE) from None
        if body is None:
            await _discard(receive)
            raise too_large
        if body and not JSON_TYPE.fullmatch(headers.get(b"content-type", b"")):
            raise ApiError(415, "Send the body as JSON with Content-Type: application/json.")
        return body

    def _note(self, scope: Scope, reply: "_Reply", seconds: float) -> None:
        endpoint = getattr(scope.get("route"), "path", None) or "other"
        self._telemetry.request(endpoint, reply.status, seconds)
        log.info("%s %s %s %.0fms %s", scope["method"][:8], endpoint, reply.status or "gone", seconds * 1000,
                 reply.request_id)  # fmt: skip


class _Gone(Exception):
    """The caller went away before the request was complete."""


class _Broken(Exception):
    """The answer had begun when it failed; the server must cut the connection rather than end it cleanly."""


class _Reply:
    """`send` that stamps the request id on the answer and remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self.request_id, self.status = send, request_id, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
        await self._send(message)


async def _collect(receive: Receive, limit: int) -> bytes | None:
    """The body, or None as soon as it is over `limit`. Raises `_Gone` when the caller leaves."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _discard(receive: Receive, seconds: float = 2.0) -> None:
    """Reads the rest of a body that is refused for a moment, so that the caller gets to see why; keeps none of it."""
    try:
        async with asyncio.timeout(seconds):
            while (message := await receive())["type"] != "http.disconnect" and message.get("more_body", False):
                pass
    except TimeoutError:
        return


def _replay(body: bytes, receive: Receive) -> Receive:
    """`receive` that hands out the body once and then waits for the caller to leave."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed
