"""Single-flight (R7, C5): many identical requests at once cost one generation. Knows nothing of how answers are made.

In one process the first caller leads and the others wait for what it shares. Across processes a lease in Redis, with
expiry, renewed while the leader works, and a fencing number, picks one leader; the rest look into the shared tier
until its answer is there. A leader that fails, or whose answer may not be stored, wakes the others: in its process
with whatever it shared, else one of them leads next.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from threading import Lock
from typing import Any, Protocol

from .entry import Entry

Slot = tuple[str, str, int]  # tenant, key hash, bucket rank
Look = Callable[[], Entry | None]


class Leases(Protocol):
    """Leases between processes: a fencing number, 0 when another has it, None when there is nobody to ask."""

    def lease(self, tenant: str, key: str, rank: int, token: str, lease_s: float) -> int | None: ...

    def prolong(self, tenant: str, key: str, rank: int, token: str, lease_s: float) -> None: ...

    def release(self, tenant: str, key: str, rank: int, token: str) -> None: ...


@dataclass(slots=True)
class Flight:
    """One caller's part in a flight. A leader makes the answer; for the others `result` is what the leader shared."""

    slot: Slot
    leader: bool
    result: Any = None
    fence: int | None = None
    token: str = ""
    own: bool = False  # whether others wait for this one
    shared: Any = None

    def share(self, value: Any) -> None:
        """Give every waiting caller this value, also when it may not be stored. For leaders."""
        self.shared = value


class Flights:
    """The flights of one process. `leases` adds other processes; `look` finds an answer another process stored."""

    def __init__(self, *, leases: Leases | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._leases, self._clock = leases, clock
        self._open: dict[Slot, Future[Any]] = {}
        self._leased: dict[str, tuple[Slot, float]] = {}  # by token: what this process holds, for how many seconds
        self._lock = Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def enter(self, slot: Slot, look: Look, *, wait_s: float, lease_s: float) -> Flight:
        """Lead, or wait for the leader; a caller that has waited `wait_s` seconds leads by itself, without a lease."""
        until = self._clock() + wait_s
        while (future := self._join(slot)) is not None:
            try:
                value = future.result(max(0.0, until - self._clock()))
            except Late:
                return Flight(slot=slot, leader=True)
            if value is not None:
                return Flight(slot=slot, leader=False, result=value)
        with self._landing_on_failure(slot):
            steps = self._across(slot, look, until, lease_s)
            while isinstance(step := _advance(steps), float):
                time.sleep(step)
            return step

    async def aenter(self, slot: Slot, look: Look, *, wait_s: float, lease_s: float) -> Flight:
        """`enter` for async code: waiting callers hold no thread."""
        until = self._clock() + wait_s
        while (future := self._join(slot)) is not None:
            try:
                waiting = asyncio.shield(asyncio.wrap_future(future))
                value = await asyncio.wait_for(waiting, max(0.0, until - self._clock()))
            except TimeoutError:
                return Flight(slot=slot, leader=True)
            if value is not None:
                return Flight(slot=slot, leader=False, result=value)
        with self._landing_on_failure(slot):
            steps = self._across(slot, look, until, lease_s)
            while isinstance(step := await asyncio.to_thread(_advance, steps), float):
                await asyncio.sleep(step)
            return step

    def land(self, flight: Flight) -> None:
        """End of a caller's part, however it went: whoever waits wakes up. Does no I/O."""
        if flight.leader and flight.own:
            self._land(flight.slot, flight.shared)

    def renew(self) -> None:
        """Prolong the leases of flights under way, however long their answers; to be called well within `lease_s`."""
        with self._lock:
            leased = list(self._leased.items())
        for token, (slot, lease_s) in leased:
            if self._leases is not None:
                self._leases.prolong(*slot, token, lease_s)

    def release(self, flight: Flight) -> None:
        """Give the lease back."""
        with self._lock:
            self._leased.pop(flight.token, None)
        if self._leases is not None and flight.fence:
            self._leases.release(*flight.slot, flight.token)

    def _join(self, slot: Slot) -> "Future[Any] | None":
        """The flight under way, or None when the caller has just opened it."""
        with self._lock:
            future = self._open.get(slot)
            if future is None:
                self._open[slot] = Future()
            return future

    @contextmanager
    def _landing_on_failure(self, slot: Slot) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._land(slot, None)
            raise

    def _across(self, slot: Slot, look: Look, until: float, lease_s: float) -> Generator[float, None, Flight]:
        """For this process's leader: get the lease, or the answer of the process that has it. Yields pauses in
        seconds."""
        token, pause = token_hex(8), 0.01
        while True:
            if found := look():
                self._land(slot, found)
                return Flight(slot=slot, leader=False, result=found)
            fence = None if self._leases is None else self._leases.lease(*slot, token, lease_s)
            if fence:
                with self._lock:
                    self._leased[token] = (slot, lease_s)
            if fence is None or fence > 0 or self._clock() >= until:
                return Flight(slot=slot, leader=True, own=True, fence=fence or None, token=token)
            yield pause
            pause = min(pause * 1.5, 0.1)

    def _land(self, slot: Slot, value: Any) -> None:
        with self._lock:
            future = self._open.pop(slot, None)
        if future is not None:
            future.set_result(value)


def _advance(steps: Generator[float, None, Flight]) -> float | Flight:
    """The next pause, or the flight at the end."""
    try:
        return next(steps)
    except StopIteration as end:
        flight: Flight = end.value
        return flight
