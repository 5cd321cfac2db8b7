"""Server-sent events: frames, and a response that never makes a failure look like a clean end.

A failed stream gets an error frame, no `[DONE]`, and a connection cut before its final chunk.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, api_error
from .running import unless_gone

TOO_LONG = "The answer took longer than this server allows."
DONE = b"data: [DONE]\n\n"


def frame(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Sends frames as they are made, until `deadline` (loop time); `leave` is called when it ends, in any way."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        *,
        deadline: float,
        leave: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._frames, self._deadline, self._leave = frames, deadline, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await unless_gone(receive, self._send_frames(send))
        finally:
            self._leave()

    async def _send_frames(self, send: Send) -> None:
        try:
            async with asyncio.timeout_at(self._deadline):
                async for part in self._frames:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            failed = ApiError(504, TOO_LONG)
        except Exception as error:
            failed = api_error(error)
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        async with asyncio.timeout(1):  # a caller who reads nothing is not waited for
            await send({"type": "http.response.body", "body": frame(failed.body()), "more_body": True})
