"""A circuit breaker with one log line per outage (C6). Pure state over an injected clock; knows nothing of Redis."""

import logging
import time
from collections.abc import Callable
from threading import Lock

log = logging.getLogger(__name__)


class Breaker:
    """Closed: calls go through. Open after `failures` in a row: calls are refused for a pause that doubles up to
    `max_pause_s`.

    Half-open after the pause: one call may try; its success closes the breaker, its failure opens it again.
    """

    def __init__(
        self,
        name: str,
        *,
        failures: int = 2,
        pause_s: float = 1.0,
        max_pause_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._limit, self._first, self._longest, self._clock = name, failures, pause_s, max_pause_s, clock
        self._lock = Lock()
        self._failures = 0
        self._pause = pause_s
        self._open_until: float | None = None
        self._trying = False
        self._told = False
        self.outages = 0

    @property
    def state(self) -> str:
        """`closed`, `open` or `half-open`."""
        with self._lock:
            if self._open_until is None:
                return "closed"
            return "half-open" if self._trying or self._clock() >= self._open_until else "open"

    def allow(self) -> bool:
        """Whether a call may go through now; in the half-open state true for one caller at a time."""
        with self._lock:
            if self._open_until is None:
                return True
            if self._trying or self._clock() < self._open_until:
                return False
            self._trying = True
            return True

    def release(self) -> None:
        """The call that was allowed will not be made after all."""
        with self._lock:
            self._trying = False

    def succeeded(self) -> None:
        with self._lock:
            if self._told:
                log.warning("%s is back", self._name)
            self._failures, self._pause, self._open_until = 0, self._first, None
            self._trying = self._told = False

    def failed(self, reason: str) -> None:
        """Count a failure; the first of an outage is logged, the rest are not."""
        with self._lock:
            self._failures += 1
            if not self._told:
                self._told = True
                self.outages += 1
                log.warning("%s does not answer as it should (%s); going on without it", self._name, reason)
            if self._trying:
                self._pause = min(self._pause * 2, self._longest)
            if self._trying or self._failures >= self._limit:
                self._open_until = self._clock() + self._pause
            self._trying = False
