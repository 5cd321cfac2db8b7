"""Continuous batching: one thread passes whatever the open requests want next (G17).

Each step takes the next token of every request that generates, and one block of a prompt that is being read, in one
pass; requests come and go between steps, so nobody waits for another's end and nobody stalls behind a long prompt. The
thread sleeps while there is nothing to do and ends when that lasts. Knows no text and no budgets.
"""

import threading
from collections import deque
from collections.abc import Iterator

from .errors import Busy, GatedError
from .report import Chunk
from .request import Request

_READ = 512  # prompt tokens that one step reads, unless a single block has more
_DRAFT_ROWS = 12  # rows of a step up to which drafts are cheap
_IDLE_S = 2.0  # the thread ends after so long without a request
_REST_S = 0.05  # how often requests that rest or wait are looked at, should nothing else happen


class Scheduler:
    """Requests in the order in which they came. `most_rows`: requests that run at once; `most_waiting`: that wait;
    `most_bytes`: keys and values of all that run."""

    def __init__(self, *, most_rows: int = 32, most_waiting: int = 512, most_bytes: int = 1 << 30) -> None:
        self.most_rows, self.most_waiting, self.most_bytes = most_rows, most_waiting, most_bytes
        self._news = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self.thread: threading.Thread | None = None
        self._closed = False
        self.steps = self.rows = 0

    def run(self, request: Request, size: int) -> Iterator[Chunk]:
        """Chunks of a request whose keys and values may take `size` bytes. Raises Busy, or what its passes raise."""
        request.size = size
        self._submit(request)
        try:
            yield from request.chunks(self._nudge)
        finally:
            request.leave()
            self._nudge()
            request.ended.wait()

    @property
    def open(self) -> int:
        """Requests that wait or run."""
        with self._news:
            return len(self._waiting) + len(self._running)

    @property
    def running(self) -> int:
        """Requests that have keys and values."""
        return len(self._running)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values in use."""
        with self._news:
            stores = [request.store for request in self._running]
        return sum(store.bytes_used for store in stores if store is not None)

    def close(self) -> None:
        """Ends every request with an error and the thread with them. A second call does nothing."""
        with self._news:
            self._closed = True
            self._news.notify_all()
            thread = self.thread
        if thread is not None:
            thread.join()

    def _submit(self, request: Request) -> None:
        if request.size > self.most_bytes:
            raise Busy(
                f"The request may need {request.size >> 20} MiB of keys and values and {self.most_bytes >> 20} MiB "
                "are allowed: lower max_tokens, shorten the prompt or raise kv_bytes."
            )
        with self._news:
            if self._closed:
                raise GatedError("This model is closed: load it again.")
            if len(self._waiting) >= self.most_waiting:
                raise Busy(f"{len(self._waiting)} requests wait for this model already: try again later.")
            self._waiting.append(request)
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="shoal-passes", daemon=True)
                self.thread.start()
            self._news.notify_all()

    def _nudge(self) -> None:
        with self._news:
            self._news.notify_all()

    # -- the thread

    def _work(self) -> None:
        import torch

        with torch.inference_mode():
            while self._await():
                self._drop_cancelled()
                self._admit()
                batch = self._batch()
                if batch:
                    self._step(batch)

    def _await(self) -> bool:
        """Sleeps until there is something to pass; False when the thread should end."""
        with self._news:
            if not self._running:
                self._news.wait_for(lambda: self._closed or self._waiting, _IDLE_S)
            elif not self._closed and all(request.rests for request in self._running) and not self._waiting:
                self._news.wait(_REST_S)
            if self._waiting and not self._running and not self._fits(self._waiting[0]):
                self._news.wait(_REST_S)
            if self._closed or not (self._running or self._waiting):
                self.thread = None
                for request in (*self._running, *self._waiting):
                    request.fail(GatedError("This model was closed while it answered."))
                self._running, self._waiting = [], deque()
                return False
            return True

    def _fits(self, request: Request) -> bool:
        taken = sum(other.size for other in self._running)
        return len(self._running) < self.most_rows and taken + request.size <= self.most_bytes

    def _drop_cancelled(self) -> None:
        with self._news:
            known = (*self._running, *self._waiting)
        for request in known:
            try:
                if request.cancelled:
                    request.end("cancelled")
            except Exception as error:  # the caller's own way of asking
                request.fail(error)
        self._sweep()

    def _admit(self) -> None:
        """Lets the first of those that wait run, as long as there is room."""
        while True:
            with self._news:
                if not self._waiting or not self._fits(self._waiting[0]):
                    return
                request = self._waiting.popleft()
                self._running.append(request)
            try:
                request.open()
            except Exception as error:  # such as no memory: this request's own
                request.fail(error)
                self._sweep()

    def _batch(self) -> list[Request]:
        """Every request that generates, and blocks of prompts, oldest first, as far as one step should read."""
        batch, reading = [], 0
        for request in self._running:
            if not request.rests and (not reading or reading + request.to_read <= _READ):
                reading += request.to_read
                batch.append(request)
        return batch

    def _step(self, batch: list[Request]) -> None:
        groups: dict[tuple[int, int], list[Request]] = {}  # of one model and one set of gates
        for request in batch:
            groups.setdefault((id(request.work.model), id(request.work.gates)), []).append(request)
        for group in groups.values():
            model, gates = group[0].work.model, group[0].work.gates
            try:
                if gates is not None:
                    model.set_gates(gates)
                passed = model.run([request.stretch(_DRAFT_ROWS // len(batch) - 1) for request in group])
            except Exception as error:
                for request in group:
                    request.fail(error)
                continue
            self.steps += 1
            self.rows += len(group)
            for request, result in zip(group, passed, strict=True):
                try:
                    request.take(result)
                except Exception as error:  # such as logits that are no numbers: this request's own
                    request.fail(error)
        self._sweep()

    def _sweep(self) -> None:
        with self._news:
            self._running = [request for request in self._running if not request.ended.is_set()]
            self._waiting = deque(request for request in self._waiting if not request.ended.is_set())
