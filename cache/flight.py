"""Single-flight (R7, C5): many identical requests at once cost one generation. Knows nothing of how answers are made.

In one process the first caller leads and the others wait for what it shares. Across processes a lease in Redis, with
expiry and a fencing number, picks one leader; the rest look into the shared tier until its answer is there. A leader that
fails, or whose answer may not be stored, wakes the others: in its process with whatever it shared, else one of them leads next.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Lock
from typing import Any, Protocol

from .entry import Entry

Slot = tuple[str, str, int]  # tenant, key hash, bucket rank


class Leases(Protocol):
    """Leases between processes: a fencing number, 0 when another has it, None when there is nobody to ask."""

    def lease(self, tenant: str, key: str, rank: int, token: str, lease_s: float) -> int | None: ...

    def release(self, tenant: str, key: str, rank: int, token: str) -> None: ...


@dataclass(slots=True)
class Flight:
    """One caller's part in a flight. A leader makes the answer; for the others `result` is what the leader shared."""

    slot: Slot
    leader: bool
    result: Any = None
    fence: int | None = None
    token: str = ""
    _shared: Any = field(default=None, repr=False)

    def share(self, value: Any) -> None:
        """Give every waiting caller this value, also when it may not be stored. For leaders."""
        self._shared = value


class Flights:
    """The flights of one process. `leases` adds other processes; `look` finds an answer another process stored."""

    def __init__(self, *, leases: Leases | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._leases, self._clock = leases, clock
        self._open: dict[Slot, Future[Any]] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def enter(self, slot: Slot, look: Callable[[], Entry | None], *, wait_s: float, lease_s: float) -> Flight:
        """Lead, or wait for the leader; a caller that has waited `wait_s` seconds leads by itself, without a lease."""
        until = self._clock() + wait_s
        while True:
            with self._lock:
                future = self._open.get(slot)
                if future is None:
                    self._open[slot] = Future()
                    break
            try:
                value = future.result(max(0.0, until - self._clock()))
            except Late:
                return Flight(slot=slot, leader=True)
            if value is not None:
                return Flight(slot=slot, leader=False, result=value)
        try:
            return self._across(slot, look, until, lease_s)
        except BaseException:
            self._land(slot, None)
            raise

    def _across(self, slot: Slot, look: Callable[[], Entry | None], until: float, lease_s: float) -> Flight:
        """Leader of this process: get the lease, or the answer of the process that has it."""
        if found := look():
            self._land(slot, found)
            return Flight(slot=slot, leader=False, result=found)
        flight = Flight(slot=slot, leader=True, token=token_hex(8))
        pause = 0.01
        while self._leases is not None:
            fence = self._leases.lease(*slot, flight.token, lease_s)
            if fence is None or fence > 0 or self._clock() >= until:
                flight.fence = fence or None
                if not fence:
                    flight.token = ""
                break
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
            if found := look():
                self._land(slot, found)
                return Flight(slot=slot, leader=False, result=found)
        return flight

    def leave(self, flight: Flight) -> None:
        """End of a caller's part, however it went; a leader's lease is released and the waiting callers wake."""
        if not flight.leader:
            return
        if self._leases is not None and flight.token and flight.fence:
            self._leases.release(*flight.slot, flight.token)
        self._land(flight.slot, flight._shared)

    def _land(self, slot: Slot, value: Any) -> None:
        with self._lock:
            future = self._open.pop(slot, None)
        if future is not None and not future.done():
            future.set_result(value)
