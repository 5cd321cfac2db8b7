"""What of each request is kept: the setting's mode, or the request's own (G7). Never in the way of an answer."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from ...gated_llm.errors import TraceError
from ...gated_llm.report import DepthReport
from ...gated_llm.trace import DepthTrace, full_trace
from ..decision import Answer, Request
from ..deep import Chunk
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

    def watch(self, request: Request) -> "Watch | None":
        """What collects the tokens of this request's generation; None unless its mode is `full`."""
        return Watch() if self.mode_of(request) is Mode.FULL else None

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


class Watch:
    """The text of each token of one generation, from its chunks. A chunk's text belongs to its last token.

    Tokens before it that gave none are parts of a character, or text that a stop word held back.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._last: Any = None

    def through(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The chunks as they come; what an earlier attempt gave is forgotten."""
        self._pieces, self._last = [], None
        for chunk in chunks:
            self._last = chunk.depth
            made = len(getattr(chunk.depth, "per_token", ()))
            new = made - len(self._pieces)
            if new > 0:
                self._pieces += [""] * (new - 1) + [chunk.text]
            elif self._pieces:
                self._pieces[-1] += chunk.text
            yield chunk

    def tokens(self, model: object) -> DepthTrace | None:
        """Every token's decisions; None for a model that has no depth plan of its own, such as one elsewhere."""
        plan, report = getattr(model, "plan", None), self._last
        if plan is None or not isinstance(report, DepthReport):
            return None
        try:
            return full_trace(report, plan, self._pieces)
        except TraceError as error:
            log.error("an answer has no full trace: %s", error)
            return None
