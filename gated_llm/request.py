"""One generation under way: what it wants passed next, and what it makes of the logits (G2, G6, G16).

The scheduler asks `stretch` and gives `take`; the caller reads `chunks`, on another thread. Knows no other request.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from .constrain import Constraint
from .gates import Gates, Thrift
from .gating import Gating
from .prefix import PrefixStore, blocks
from .report import Chunk, DepthReport, Usage
from .sampler import Sampler, Sampling, StopText
from .tokenizer import ChatTokenizer, TextStream
from .trace import DepthTrace, Points, TokenTrace

if TYPE_CHECKING:
    from torch import Tensor

    from .passes import Model, Passed, Run, Store, Stretch

AHEAD = 256  # chunks that a caller may leave unread before its request rests


class Cancel(Protocol):
    """Asked before every token; threading.Event and asyncio.Event fit."""

    def is_set(self) -> bool: ...


class Drafter(Protocol):
    """Guesses of one request's next tokens, which the model verifies in one pass (G16)."""

    def observe(self, ids: Sequence[int], states: NDArray[np.float32] | None) -> None:
        """Tokens that were passed, in order, and the residual stream after the last layer [n, hidden], if known."""
        ...

    def propose(self, token: int, most: int) -> list[int]:
        """Up to `most` tokens that may follow `token`, which was chosen but not passed yet; none if not worth it."""
        ...

    def taken(self, proposed: int, accepted: int) -> None:
        """How many of the last proposal the model chose itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a request is made from. `gated_prompt`: the mask that the prompt is read with, None for all branches; with
    `prompt_thrift` gates leave out more of it. `attention_share` of a layer's cost.

    `points`: what a trace tells of the plan; None where no trace is kept. `gates`: the set for every pass,
    whatever set later requests get.
    """

    model: "Model"
    tokenizer: ChatTokenizer
    ids: Sequence[int]
    room: int
    sampling: Sampling
    gating: Gating
    full: bool
    gated_prompt: "Run | None"
    prefill_depth: float
    attention_share: float
    capacity: Sequence[int]
    budget: float
    policy: str
    gate_fingerprint: str
    drafter: Drafter | None = None
    constraint: Constraint | None = None
    cancel: Cancel | None = None
    partition: str = ""
    points: Points | None = None
    prompt_thrift: Thrift | None = None
    gates: Gates | None = None


class Request:
    """Everything but `chunks` and `leave` is called by the scheduler's thread alone."""

    def __init__(self, work: Work, prefix: PrefixStore) -> None:
        self.work, self._prefix = work, prefix
        self.size = 0  # bytes that its keys and values may take
        self.ended = threading.Event()
        self.store: Store | None = None
        self._left = threading.Event()
        self._out: queue.SimpleQueue[Chunk | BaseException] = queue.SimpleQueue()
        self._reading: deque[tuple[int, int, Run | None]] = deque()
        self._drafts: list[int] = []
        self._drafted = self._kept = 0
        self._token = -1
        self._read_tokens, self._prompt_depth = 0, 0.0
        self._confidences: list[float] = []
        self._traced: list[TokenTrace] = []
        self._sampler = Sampler(work.sampling)
        self._text, self._stops = TextStream(work.tokenizer), StopText(work.sampling.stop)

    # -- the scheduler's side

    @property
    def rests(self) -> bool:
        """Whether the caller has more unread chunks than it should."""
        return self._out.qsize() >= AHEAD

    @property
    def cancelled(self) -> bool:
        """Whether the caller has left or asked to stop."""
        return self._left.is_set() or (self.work.cancel is not None and self.work.cancel.is_set())

    def open(self) -> None:
        """Takes memory for keys and values, and what other requests have read of the same beginning."""
        work = self.work
        self.store = work.model.store(work.capacity)
        if work.gated_prompt is None:
            for block in self._prefix.find(work.ids, work.partition):
                self.store.preload(block)
        known = self.store.tokens
        planned = work.full or work.gated_prompt is not None
        whole = len(work.ids) if planned and work.prompt_thrift is None else len(work.ids) - 1
        for start, stop in blocks(whole):
            if stop > known:
                self._reading.append((max(start, known), stop, work.gated_prompt))

    @property
    def to_read(self) -> int:
        """Prompt tokens that the next pass reads; 0 once the answer has begun."""
        if self._reading:
            return self._reading[0][1] - self._reading[0][0]
        return int(self._token < 0)

    def stretch(self, most_drafts: int) -> "Stretch":
        """What to pass next: a block of the prompt, or the last token with what may follow it."""
        from .passes import Stretch

        assert self.store is not None
        work = self.work
        if self._reading:
            start, stop, run = self._reading[0]
            return Stretch(store=self.store, ids=work.ids[start:stop], run=run, thrift=work.prompt_thrift)
        if self._token < 0:  # under a budget, the pass that chooses the first new token
            return Stretch(store=self.store, ids=work.ids[-1:], gating=work.gating)
        self._drafts = self._propose(most_drafts)
        if not self._drafts:
            return Stretch(store=self.store, ids=[self._token], gating=work.gating)
        run = work.gating.begin()
        return Stretch(store=self.store, ids=[self._token, *self._drafts], run=run, every=True)

    def take(self, passed: "Passed") -> bool:
        """Goes on with what was passed; True once the answer is whole."""
        if self._reading:
            start, stop, run = self._reading.popleft()
            self._read(start, stop, run, passed)
            if self._reading or self._token >= 0 or stop < len(self.work.ids):
                return False
        elif self._token < 0:
            self._observe(self.work.ids[-1:], passed)
        return self._generated(passed)

    def end(self, reason: str) -> None:
        """The last chunk, with what was held back."""
        piece, met = self._stops.push(self._text.finish())
        self._finish(piece + self._stops.finish(), "stop" if met else reason)

    def fail(self, error: BaseException) -> None:
        """Raises `error` at the caller."""
        self._out.put(error)
        self._close()

    # -- the caller's side

    def chunks(self, nudge: Callable[[], None]) -> Iterator[Chunk]:
        """The answer as it is made. `nudge` wakes the scheduler for a request that rested."""
        while True:
            rested = self.rests
            chunk = self._out.get()
            if rested and not self.rests:
                nudge()
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk
            if chunk.finish_reason is not None:
                return

    def leave(self) -> None:
        """The caller wants no more."""
        self._left.set()

    @property
    def prefill(self) -> float:
        """Mean depth at which the prompt was read, in layers."""
        if not self._read_tokens:
            return self.work.prefill_depth
        return round(self._prompt_depth / self._read_tokens, 4)

    @property
    def made(self) -> int:
        """Tokens generated so far."""
        return len(self._confidences)

    # -- inside the scheduler's thread

    def _read(self, start: int, stop: int, run: "Run | None", passed: "Passed") -> None:
        work = self.work
        assert self.store is not None
        if passed.branch_runs is not None:
            attention, mlp = passed.branch_runs.sum(0).tolist()
            self._prompt_depth += attention * work.attention_share + mlp * (1 - work.attention_share)
            self._read_tokens += stop - start
        if run is None and (block := self.store.block(start, stop)) is not None:
            self._prefix.keep(work.ids[:stop], work.partition, block)
        self._observe(work.ids[start:stop], passed)

    def _observe(self, ids: Sequence[int], passed: "Passed") -> None:
        if self.work.drafter is not None:
            states = passed.states
            self.work.drafter.observe(ids, None if states is None else states[: len(ids)])

    def _propose(self, most: int) -> list[int]:
        drafter, most = self.work.drafter, min(most, self.work.room - self.made - 1)
        return drafter.propose(self._token, most) if drafter is not None and most > 0 else []

    def _generated(self, passed: "Passed") -> bool:
        """Chooses a token from each row of logits for as long as the drafts are what is chosen."""
        drafts, self._drafts = self._drafts, []
        before = self._token
        for accepted, logits in enumerate(passed.logits):
            over = self._choose(logits)
            if over or accepted == len(drafts) or self._token != drafts[accepted]:
                break
        if before >= 0:
            self._verified(before, drafts, accepted, passed)
        return over

    def _verified(self, before: int, drafts: list[int], accepted: int, passed: "Passed") -> None:
        assert self.store is not None
        self._drafted += len(drafts)
        self._kept += accepted
        if accepted < len(drafts):
            self.store.rewind(accepted + 1)
        self._observe([before, *drafts[:accepted]], passed)
        if drafts and self.work.drafter is not None:
            self.work.drafter.taken(len(drafts), accepted)

    def _choose(self, logits: "Tensor") -> bool:
        """The next token from its logits; True when it ends the answer."""
        work = self.work
        self._token, confidence = self._sampler.choose(logits, work.constraint)
        self._confidences.append(confidence)
        depth, over = work.gating.finish(confidence), self._token in work.model.config.eos
        said = "" if over else self._text.push(self._token)
        if work.points is not None:
            branches, signals = work.gating.explain()
            self._traced.append(
                TokenTrace(
                    index=self.made - 1,
                    token=said,
                    depth=depth,
                    branches=branches,
                    gates=work.gating.alphas,
                    signals=signals,
                )
            )
        complete = work.constraint is not None and work.constraint.took(self._token)
        if over:
            self.end("stop")
            return True
        piece, met = self._stops.push(said)
        if met:
            self._finish(piece, "stop")
        elif complete or self.made >= work.room:
            if piece:
                self._out.put(Chunk(text=piece, depth=self._report()))
            self.end("stop" if complete else "length")
        elif piece:
            self._out.put(Chunk(text=piece, depth=self._report()))
        return self.ended.is_set()

    def _finish(self, text: str, reason: str) -> None:
        made, work = self.made, self.work
        usage = Usage(
            prompt_tokens=len(work.ids),
            completion_tokens=made,
            # the last prompt token's pass chooses the first new token and is counted as its depth
            layer_tokens=(len(work.ids) - 1) * self.prefill + sum(work.gating.depths),
            drafted=self._drafted,
            accepted=self._kept,
        )
        confidence = sum(self._confidences) / made if made else 0.0
        self._out.put(
            Chunk(
                text=text,
                depth=self._report(),
                finish_reason=reason,
                usage=usage,
                confidence=confidence,
                trace=self._trace(),
            )
        )
        self._close()

    def _trace(self) -> DepthTrace | None:
        work = self.work
        if work.points is None:
            return None
        return DepthTrace(
            total=len(work.capacity),
            policy=work.policy,
            budget=work.budget,
            prefill=self.prefill,
            gate_fingerprint=work.gate_fingerprint,
            tokens=tuple(self._traced),
            thresholds=work.gating.thresholds,
            points=work.points,
        )

    def _close(self) -> None:
        self.store = None
        self.ended.set()

    def _report(self) -> DepthReport:
        work, gating = self.work, self.work.gating
        return DepthReport(
            total=len(work.capacity),
            budget=work.budget,
            prefill=self.prefill,
            per_token=tuple(gating.depths),
            branch_runs=gating.runs,
            policy=work.policy,
            gate_fingerprint=work.gate_fingerprint,
        )
