"""Who may be worked on now (S2): per-key rate and concurrency, a bounded number at once, a bounded and timed queue.

429 is for the caller's own limit, 503 with Retry-After for a full server. A slot is given back exactly once, whatever
happens to the request. A key's own limits hold in this process and, where there is a Redis, over all of them; while it
does not answer, in this process alone. Lives on one event loop; knows no HTTP beyond the status of its refusals.
"""

import asyncio
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable

from .errors import ApiError
from .keys import ApiKey
from .shared_limits import SharedLimits

MAX_BUCKETS = 10_000


class Slot:
    """The right to be worked on. `release` may be called from the loop any number of times; only the first counts."""

    __slots__ = ("_release", "waited_s")

    def __init__(self, release: Callable[[], None], waited_s: float) -> None:
        self._release: Callable[[], None] | None = release
        self.waited_s = waited_s

    def release(self) -> None:
        if self._release is not None:
            release, self._release = self._release, None
            release()


class Admission:
    """`concurrent` slots and a first-come queue of `queue` waiters, each for at most `wait_s` seconds."""

    def __init__(
        self,
        *,
        concurrent: int,
        queue: int,
        wait_s: float,
        shared: SharedLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.concurrent, self._queue, self._wait_s, self._clock = concurrent, queue, wait_s, clock
        self._shared = shared
        self.in_flight = 0
        self.closed = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._by_key: dict[str, int] = {}
        self._rates: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def queued(self) -> int:
        return sum(not waiter.done() for waiter in self._waiting)

    async def check_rate(self, key: ApiKey) -> None:
        """Counts one request of this key (a token bucket of one minute); raises `ApiError` 429 when it is over."""
        if not key.rpm:
            return
        if wait := self._take_token(key):
            raise _too_fast(key, wait)
        elsewhere = await asyncio.to_thread(self._shared.rate, key) if self._shared is not None else None
        if elsewhere:
            self._give_token_back(key)
            raise _too_fast(key, elsewhere)

    def _take_token(self, key: ApiKey) -> float:
        """Seconds to wait; 0: one was taken from the key's bucket in this process."""
        now = self._clock()
        tokens, then = self._rates.pop(key.id, (float(key.rpm), now))
        tokens = min(float(key.rpm), tokens + (now - then) * key.rpm / 60)
        self._rates[key.id] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._rates) > MAX_BUCKETS:
            self._rates.popitem(last=False)
        return 0.0 if tokens >= 1 else (1 - tokens) * 60 / key.rpm

    def _give_token_back(self, key: ApiKey) -> None:
        if (kept := self._rates.get(key.id)) is not None:
            self._rates[key.id] = (kept[0] + 1, kept[1])

    async def enter(self, key: ApiKey) -> Slot:
        """A slot, at once or after waiting in line. Raises `ApiError` 429 or 503; cancelling leaves the line."""
        self._check_open()
        if key.concurrent and self._by_key.get(key.id, 0) >= key.concurrent:
            raise _too_many(key)
        began = self._clock()
        self._by_key[key.id] = self._by_key.get(key.id, 0) + 1
        holder = uuid.uuid4().hex if key.concurrent and self._shared is not None else None
        try:
            if holder is not None and self._shared is not None:
                await self._enter_shared(self._shared, key, holder)
            if self.in_flight < self.concurrent and not self.queued:
                self.in_flight += 1
            else:
                await self._wait_in_line()
        except BaseException:
            self._leave_key(key, holder)
            raise
        return Slot(lambda: self._release(key, holder), self._clock() - began)

    async def _enter_shared(self, shared: SharedLimits, key: ApiKey, holder: str) -> None:
        entered = await asyncio.to_thread(shared.enter, key, holder)
        self._check_open()
        if entered is False:
            raise _too_many(key)

    def close(self) -> None:
        """Admits nobody any more and sends those in line away; those being worked on go on."""
        self.closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(_closing())

    def _check_open(self) -> None:
        if self.closed:
            raise _closing()

    async def _wait_in_line(self) -> None:
        if self.queued >= self._queue:
            raise ApiError(503, "The server is full. Try again shortly.", code="overloaded", retry_after=self._wait_s)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._wait_s):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._hand_over()  # the slot came in the very moment of giving up
            if isinstance(error, TimeoutError):
                message = f"No slot came free within {self._wait_s:g} s. Try again shortly."
                raise ApiError(503, message, code="overloaded", retry_after=self._wait_s) from None
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _release(self, key: ApiKey, holder: str | None) -> None:
        self._leave_key(key, holder)
        self._hand_over()

    def _hand_over(self) -> None:
        """The slot to the first in line still waiting, else back to the free ones."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.in_flight -= 1

    def _leave_key(self, key: ApiKey, holder: str | None) -> None:
        left = self._by_key[key.id] - 1
        if left:
            self._by_key[key.id] = left
        else:
            del self._by_key[key.id]
        if holder is not None and self._shared is not None:
            asyncio.get_running_loop().run_in_executor(None, self._shared.leave, key, holder)


def _too_fast(key: ApiKey, wait: float) -> ApiError:
    return ApiError(429, f"This key may send {key.rpm} requests a minute.", retry_after=wait)


def _too_many(key: ApiKey) -> ApiError:
    message = f"This key may have {key.concurrent} requests at once."
    return ApiError(429, message, code="too_many_requests_at_once", retry_after=1)


def _closing() -> ApiError:
    return ApiError(503, "The server is shutting down.", code="shutting_down", retry_after=5)
