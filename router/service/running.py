"""One answer being made in a worker thread, seen from the event loop as pieces: timeouts, cancellation, no lost slots.

Whoever reads the pieces may leave at any time: the generation stops at its next token, its last piece still tells what
it cost, and only when the thread has ended does the slot come free. Knows no HTTP.
"""

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from ..decision import Answer, Piece, Request
from .admission import Slot
from .errors import ApiError
from .metering import Meter
from .options import ServiceOptions

T = TypeVar("T")


class Asks(Protocol):
    """What of `CognitiveRouter` an answer needs."""

    def ask_stream(
        self, prompt: Request, *, cancel: threading.Event | None = None, live: bool = True
    ) -> Iterator[Piece]: ...


class Run:
    """One answer under way, in pieces or `whole`. `ended` is called on the loop, once, with the answer or None."""

    def __init__(
        self,
        router: Asks,
        request: Request,
        options: ServiceOptions,
        *,
        whole: bool,
        ended: Callable[["Run", Answer | None], None],
        span: Callable[[], AbstractContextManager[Callable[[Answer], None]]],
        meter: Meter | None = None,
    ) -> None:
        self._router, self._options, self._whole, self._ended = router, options, whole, ended
        self._span, self._meter = span, meter
        self.request = request
        self.began = time.perf_counter()
        self.first_s: float | None = None
        self.total_s = 0.0
        self.error: Exception | None = None
        self._cancel = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()
        self._answer: Answer | None = None

    def start(self, pool: Executor, slot: Slot) -> None:
        """Begins the work. The slot is given back when the thread has ended."""

        def done(_: object) -> None:
            slot.release()
            self._ended(self, self._answer)

        try:
            self._loop.run_in_executor(pool, contextvars.copy_context().run, self._work).add_done_callback(done)
        except BaseException:
            slot.release()
            raise

    def stop(self, reason: ApiError | None = None) -> None:
        """Ends the generation at its next token; with a `reason`, whoever reads the pieces gets it raised."""
        self._cancel.set()
        if reason is not None:
            self._arrived.put_nowait(reason)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces as they come; the last carries the answer. Raises what the router raised, or `ApiError` 504.

        A reader who leaves early calls `stop`.
        """
        wait = self._options.first_token_s
        while (piece := await self._next(wait)) is not None:
            yield piece
            wait = self._options.between_s

    async def _next(self, wait: float) -> Piece | None:
        try:
            async with asyncio.timeout(wait):
                arrived = await self._arrived.get()
        except TimeoutError:
            raise ApiError(504, f"Nothing came from the model for {wait:g} s.") from None
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def _work(self) -> None:
        try:
            if not self._cancel.is_set():
                self._answer_metered()
        except Exception as error:
            self.error = error
        self.total_s = time.perf_counter() - self.began
        self._send(self.error)

    def _answer_metered(self) -> None:
        if self._meter is not None:
            self._meter.open()
        try:
            with self._span() as answered:
                # a whole answer may be tried again at a deeper budget (R9), which a stream that was seen cannot
                for piece in self._router.ask_stream(self.request, cancel=self._cancel, live=not self._whole):
                    self._seen(piece)
                if self._answer is not None:
                    answered(self._answer)
        finally:
            if self._meter is not None:
                self._meter.close(self._answer)

    def _seen(self, piece: Piece) -> None:
        if self.first_s is None:
            self.first_s = time.perf_counter() - self.began
        self._answer = piece.answer or self._answer
        self._send(piece)

    def _send(self, item: Piece | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)


async def unless_gone(receive: Callable[[], Awaitable[Any]], work: Awaitable[T]) -> T | None:
    """The result of `work`, which is cancelled when the caller disconnects first; then None."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
