"""The gated model behind Ray Serve handles (S7): the face the pipeline asks of a model, answered by replicas elsewhere.

Requests are sent to the pool whose depth they fit, so that a deep one does not hold up shallow ones. A replica that is
lost before it said anything is replaced by another one without the caller noticing; afterwards the caller is told.
Knows nothing of HTTP and starts nothing.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...gated_llm.errors import Busy, GatedError
from ...gated_llm.policy import Budget, Plan, resolve_budget
from ...gated_llm.report import Chunk, Usage

if TYPE_CHECKING:
    from ...gated_llm import GatedLLM
    from ..deep import Turns

_TRIES = 3  # replicas that may be lost before a request that has said nothing is given up
_ASK_S = 60.0  # for a question about the model that no pass is needed for
_HEALTH_S = 5.0  # for every replica to tell of its layers


class ReplicaLost(GatedError):
    """The replica that was answering is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What every replica of a model says alike."""

    name: str
    total: int
    min_depth: float
    fingerprint: str
    context: int
    plan: Plan
    quality: float
    adapters: tuple[str, ...]
    holds_schema: bool

    @classmethod
    def of(cls, llm: "GatedLLM") -> "Facts":
        return cls(
            name=llm.name,
            total=llm.total,
            min_depth=llm.min_depth,
            fingerprint=llm.fingerprint,
            context=llm.context,
            plan=llm.plan,
            quality=llm.quality,
            adapters=tuple(llm.adapters),
            holds_schema=llm.holds_schema,
        )


class Replica:
    """One model in a process of its own. Its engine batches the requests that are under way."""

    def __init__(self, settings: Mapping[str, Any], at_once: int) -> None:
        from ..settings import Settings
        from ..wiring import load_local

        self._llm = load_local(Settings(**settings))
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="shoal-model")

    async def facts(self) -> Facts:
        return Facts.of(self._llm)

    async def under_way(self) -> int:
        """Requests that are being answered or wait for a pass."""
        return self._llm.scheduler.open

    async def layer_health(self) -> dict[str, Any]:
        return self._llm.get_layer_health()

    async def count_tokens(self, prompt: "str | Turns") -> int:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._llm.count_tokens, prompt)

    async def stream(self, prompt: "str | Turns", settings: Mapping[str, Any]) -> AsyncIterator[Chunk]:
        """Chunks as they come. Whoever stops listening stops the generation at its next token."""
        cancel, loop = threading.Event(), asyncio.get_running_loop()
        arrived: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()

        def work() -> None:
            last: Exception | None = None
            try:
                for chunk in self._llm.stream(prompt, cancel=cancel, **settings):
                    loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            except Exception as error:
                last = error
            loop.call_soon_threadsafe(arrived.put_nowait, last)

        self._pool.submit(work)
        try:
            while (item := await arrived.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            cancel.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A handle to replicas, and the deepest budget in layers that is sent to them."""

    deepest: float
    handle: Any


class RayModel:
    """Implements `router.deep.Deep`. Its methods block; call them from a worker thread."""

    elsewhere = True  # its layers' health takes a journey

    def __init__(self, facts: Facts, pools: Sequence[Pool]) -> None:
        """`pools`: the last one takes every budget."""
        self._facts, self._pools = facts, sorted(pools, key=lambda pool: pool.deepest)
        self.name, self.total, self.min_depth = facts.name, facts.total, facts.min_depth
        self.fingerprint, self.context, self.plan = facts.fingerprint, facts.context, facts.plan
        self.adapters, self.holds_schema = facts.adapters, facts.holds_schema

    def resolve_budget(self, max_depth: object = "auto") -> Budget:
        """As `GatedLLM.resolve_budget`."""
        return resolve_budget(max_depth, self.plan, quality=self._facts.quality)

    def count_tokens(self, prompt: "str | Turns") -> int:
        """Prompt tokens, chat template included."""
        with _as_raised():
            counted: int = self._pools[0].handle.count_tokens.remote(prompt).result(timeout_s=_ASK_S)
        return counted

    def stream(
        self,
        prompt: "str | Turns",
        *,
        max_depth: int | str = "auto",
        cancel: threading.Event | None = None,
        **settings: Any,
    ) -> Iterator[Chunk]:
        """Chunks of a replica that takes this budget. Raises what the engine raises, Busy where all queues are full,
        and ReplicaLost when the replica is gone after its first chunk.
        """
        depth = self.resolve_budget(max_depth).depth
        pool = next((pool for pool in self._pools if depth <= pool.deepest), self._pools[-1])
        for left in reversed(range(_TRIES)):
            last: Chunk | None = None
            try:
                with closing(self._once(pool.handle, prompt, {"max_depth": max_depth, **settings})) as chunks:
                    for last in chunks:
                        yield last
                        if cancel is not None and cancel.is_set() and last.finish_reason is None:
                            break
                    else:
                        return
                yield self._cut(last, prompt)
                return
            except ReplicaLost:
                if last is not None or not left or (cancel is not None and cancel.is_set()):
                    raise

    def get_layer_health(self) -> dict[str, Any]:
        """As `GatedLLM.get_layer_health`, over all replicas that tell in time."""
        asked = [pool.handle.broadcast("layer_health") for pool in self._pools]
        told = [one for each in asked for one in each.results(timeout_s=_HEALTH_S, return_exceptions=True)]
        return summed([one for one in told if isinstance(one, dict)])

    def close(self) -> None:
        """Replicas live and end with their deployment."""

    @staticmethod
    def _once(handle: Any, prompt: "str | Turns", settings: Mapping[str, Any]) -> Generator[Chunk]:
        """One try; whoever leaves it early stops the replica's work."""
        with _as_raised():
            answers = handle.options(stream=True).stream.remote(prompt, settings)
            ended = False
            try:
                yield from answers
                ended = True
            finally:
                if not ended:
                    answers.cancel()

    def _cut(self, last: Chunk, prompt: "str | Turns") -> Chunk:
        """The last chunk of an answer that was cancelled here: what it cost so far."""
        read, made = self.count_tokens(prompt), last.depth.per_token
        spent = (read - 1) * last.depth.prefill + sum(made)  # the last prompt token's pass chose the first one made
        usage = Usage(prompt_tokens=read, completion_tokens=len(made), layer_tokens=spent)
        return replace(last, text="", finish_reason="cancelled", usage=usage, confidence=0.0)


def summed(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Reports of layer health as one: requests and tokens added up, everything else a mean weighted by tokens."""
    tokens = [int(report["tokens"]) for report in reports]

    def mean(values: Sequence[Any]) -> Any:
        if any(isinstance(value, Mapping) for value in values):
            names = dict.fromkeys(name for value in values for name in value or ())
            return {name: mean([(value or {}).get(name) for value in values]) for name in names}
        known = [(weight, value) for weight, value in zip(tokens, values, strict=True) if weight and value is not None]
        return sum(weight * value for weight, value in known) / sum(weight for weight, _ in known) if known else None

    layers = mean([report["layers"] for report in reports]) if reports else {}
    return {"requests": sum(report["requests"] for report in reports), "tokens": sum(tokens), "layers": layers}


@contextmanager
def _as_raised() -> Iterator[None]:
    """Errors as the engine raised them there, without Ray's wrapping."""
    from ray.exceptions import RayActorError, RayTaskError
    from ray.serve.exceptions import BackPressureError, RequestCancelledError

    try:
        yield
    except BackPressureError:
        raise Busy("Every replica of the model has a full queue. Try again shortly.") from None
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except (RayActorError, RequestCancelledError) as error:
        raise ReplicaLost("The process that was answering is gone. Ask again.") from error
