"""What of each request is kept: the setting's mode, or the request's own (G7). Never in the way of an answer."""

import logging

from ...gated_llm.errors import TraceError
from ..decision import Answer, Request
from .record import Mode, Record
from .store import TraceStore

log = logging.getLogger("shoal.traces")


class Recorder:
    """Keeps answers in `store`, where there is one.

    `mode` is for requests that name none; with `keep_text` prompts and passages are kept as text.
    """

    def __init__(
        self, store: TraceStore | None = None, *, mode: Mode | str = Mode.OFF, keep_text: bool = False
    ) -> None:
        self.store, self.mode, self._keep_text = store, Mode(mode), keep_text
        self._failed = False

    def mode_of(self, request: Request) -> Mode:
        return self.mode if request.trace is None else Mode(request.trace)

    def wants_tokens(self, request: Request) -> bool:
        """Whether the decisions of every token are to be kept."""
        return self.mode_of(request) is Mode.FULL

    def entry_of(self, answer_id: str, *, tenant: str) -> str | None:
        """The cache entry of a kept answer, also of one that another process gave: "" without one, None where nothing
        is kept of it.
        """
        record = self.store.get(answer_id, tenant=tenant) if self.store is not None else None
        if record is None:
            return None
        return next((str(s["detail"]["entry"]) for s in record.trace["steps"] if s["detail"].get("entry")), "")

    def keep(self, request: Request, answer: Answer) -> None:
        """Keeps the answer's record. A failure is logged, once until it works again, and never raised."""
        if self.store is None or self.mode_of(request) is Mode.OFF:
            return
        try:
            self.store.put(Record.of(request, answer, at=self.store.clock(), keep_text=self._keep_text))
            self._failed = False
        except Exception as error:
            if not self._failed:
                log.error("traces are not kept: %s", error if isinstance(error, TraceError) else type(error).__name__)
            self._failed = True

    def judged(self, answer_id: str, *, tenant: str, up: bool) -> None:
        """Notes a thumb on a kept answer, for the next calibration (G15). Never raises."""
        if self.store is None:
            return
        try:
            self.store.judge(answer_id, tenant=tenant, up=up)
        except TraceError as error:
            log.error("a thumb was not noted: %s", error)
