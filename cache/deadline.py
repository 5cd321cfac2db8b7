"""Calls with a hard deadline (C6), for work that may hang in places no socket timeout reaches (DNS, TLS, cluster
discovery).

A few daemon threads do the work; the caller waits at most its deadline. Work that is late goes on in its thread and its
result is dropped. When all threads are stuck, new calls fail at once instead of queueing. Knows nothing of Redis.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Busy(TimeoutError):
    """Too many calls at once: says nothing of whoever is called."""


class Lane:
    """`threads` workers and at most `waiting` calls; `call` runs a function on one of them, for at most `timeout_s`."""

    def __init__(self, name: str, threads: int = 8, waiting: int = 256) -> None:
        self._name, self._size, self._most = name, threads, waiting
        self._lock = Lock()
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._started = self._pending = 0

    def call(self, work: Callable[[], T], timeout_s: float) -> T:
        """Result of `work`; raises TimeoutError when it is late, `Busy` when too many wait, and what `work` raises."""
        future: Future[T] = Future()
        with self._lock:
            if self._pid != os.getpid():  # a fork has no threads of its parent
                self._open()
            if self._pending >= self._most:
                raise Busy("all connections are busy")
            self._pending += 1
            if self._pending > self._started < self._size:
                self._started += 1
                Thread(target=self._run, args=(self._jobs,), name=f"{self._name}-{self._started}", daemon=True).start()
        self._jobs.put((future, work))
        try:
            return future.result(timeout_s)
        except Late:
            if future.done():
                raise
            future.cancel()
            raise TimeoutError(f"no reply within {timeout_s * 1000:.0f} ms") from None

    def close(self) -> None:
        """Let the threads end once they are through with what they do."""
        with self._lock:
            for _ in range(self._started):
                self._jobs.put(None)
            self._started = 0

    def _run(self, jobs: "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
        while (job := jobs.get()) is not None:
            future, work = job
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._lock:
                    self._pending -= 1
                del job, future, work
