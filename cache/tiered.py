"""`DepthCache` (C1 to C6, R7): the answer cache as one thing, over memory, Redis, disk and look-up by meaning.

Reads go memory, Redis, meaning; writes go to all. Knows the rules of storing (C5), none of routing or models.
"""

import asyncio
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any

from .bucket import EDGES, check_budget, limits, name_of, rank_of
from .cold import ColdLog, Privacy
from .entry import Entry
from .errors import CacheInputError
from .events import Events
from .flight import Flight, Flights, Look, Slot
from .guards import Guards
from .key import CacheKey, Prompt, key_of, messages_of, semantic_text
from .match import Matcher
from .memory import MemoryTier
from .redis_link import RedisLink
from .scorer import default_matcher
from .semantic import Embed, FloatArray, SemanticIndex
from .shared import RedisTier, selector_fields
from .tier import Selector

log = logging.getLogger(__name__)

DEFAULT_TTL_S = 7 * 86_400.0
MAX_VALUE_BYTES = 2**20
CANDIDATES = 5
_REMEMBERED_VECTORS = 1024
_REMEMBERED_PROMPTS = 4096
_STORABLE = "stop"


class DepthCache:
    """Answers by prompt and depth.

    Without `redis_url` it lives in this process; without `embed` hits are exact only; `cold_path` adds the log on disk.
    `total` is the model's number of layers; `threshold` (0..1) what a semantic match must reach, fitted by default.
    """

    def __init__(
        self,
        redis_url: str | None = None,
        embed: Embed | None = None,
        *,
        cold_path: str | Path | None = None,
        total: int = 30,
        edges: Sequence[float] = EDGES,
        guards: Guards | None = None,
        threshold: float | None = None,
        ttl_s: float = DEFAULT_TTL_S,
        max_entries: int = 10_000,
        max_bytes: int = 64 * 2**20,
        max_value_bytes: int = MAX_VALUE_BYTES,
        namespace: str = "shoal",
        privacy: Privacy = "plain",
        cold_max_bytes: int = 2**30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_budget(0, total)
        if threshold is not None and not (_is_number(threshold) and 0 <= threshold <= 1):
            raise CacheInputError(
                f"threshold is a similarity from 0 (all that the guards allow) to 1, got {threshold!r}"
            )
        self.total, self.embed, self._edges, self._clock = total, embed, tuple(edges), clock
        self._ranks = len(limits(total, edges)) + 1
        self._ttl_s, self._max_value_bytes = _ttl(ttl_s), max_value_bytes
        self._semantic = SemanticIndex()
        self._matcher: Matcher | None = None
        if embed is not None:
            self._matcher = default_matcher(embed, guards, threshold)
        self._l1 = MemoryTier(max_entries=max_entries, max_bytes=max_bytes, clock=clock, on_evict=self._semantic.remove)
        self._l2 = (
            RedisTier(RedisLink(redis_url), namespace=namespace, ranks=self._ranks, clock=clock) if redis_url else None
        )
        self._events = Events(self._l2.link, self._hear, namespace=namespace) if self._l2 else None
        self._l3 = ColdLog(cold_path, max_bytes=cold_max_bytes, privacy=privacy, clock=clock) if cold_path else None
        self._flights = Flights(leases=self._l2)
        self._vectors: OrderedDict[str, FloatArray] = OrderedDict()
        self._asked: OrderedDict[tuple[str, str], list[Any]] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    # storing ---------------------------------------------------------------------------------------------------------

    def put(
        self,
        prompt: Prompt,
        text: str,
        *,
        budget: float,
        depth: float,
        tenant: str = "default",
        model: str = "",
        kb: str = "",
        ttl_s: float | None = None,
        tags: Iterable[str] = (),
        finish_reason: str | None = "stop",
        meta: Mapping[str, Any] | None = None,
        latency_ms: float | None = None,
        request: Mapping[str, Any] | None = None,
        sampled: bool = False,
        fence: int | None = None,
    ) -> Entry | None:
        """Store an answer made under `budget` layers at realised `depth`; the entry, or None where it must not be kept.

        Not kept: anything but a finished, non-empty answer (`finish_reason` "stop"), a sampled one (temperature above 0
        without a seed) unless `sampled`, a value over the size limit, a TTL of 0, one shallower than what is there.
        `stats()` counts the reasons. Raises `CacheInputError` for a budget outside the model or a negative TTL.
        """
        key = self._key(prompt, tenant, model, kb, request)
        rank, now = rank_of(budget, self.total, self._edges), self._clock()
        ttl = self._ttl_s if ttl_s is None else _ttl(ttl_s)
        entry = Entry(
            id=f"{key.hash}.{rank}.{token_hex(6)}", key=key.hash, scope=key.scope, tenant=tenant, kb=kb, text=text,
            prompt=key.text or "", budget=float(budget), depth=float(depth), rank=rank,
            bucket=name_of(rank, self.total, self._edges), created=now, expires=now + ttl,
            tags=tuple(dict.fromkeys(tags)), meta=dict(meta or {}),
        )  # fmt: skip
        reason = self._refusal(text, finish_reason, ttl, request, sampled)
        if reason is None and not self._keep(entry, key, latency_ms, fence):
            reason = "shallower"
        self._count("stored" if reason is None else f"refused: {reason}")
        if self._l3 is not None and rank == self._ranks - 1:
            logged = {**(request or {}), "messages": messages_of(prompt), "model": model}
            self._guarded(lambda log_: log_.record(entry, request=logged, stored=reason is None, reason=reason or ""))
        return entry if reason is None else None

    def _refusal(
        self, text: str, finish_reason: str | None, ttl: float, request: Mapping[str, Any] | None, sampled: bool
    ) -> str | None:
        if finish_reason != _STORABLE:
            return f"finish_reason {finish_reason}"
        if not text.strip():
            return "empty"
        if ttl == 0:
            return "ttl 0"
        if len(text.encode("utf-8", "surrogatepass")) > self._max_value_bytes:
            return "too large"
        is_sampled = bool((request or {}).get("temperature")) and (request or {}).get("seed") is None
        return "sampled" if is_sampled and not sampled else None

    def _keep(self, entry: Entry, key: CacheKey, latency_ms: float | None, fence: int | None) -> bool:
        if not self._l1.put(entry):
            return False
        if self._l2 is not None and self._events is not None:
            if self._l2.put(entry, latency_ms=latency_ms, fence=fence):
                self._events.publish("put", {"tenant": entry.tenant, "key": entry.key, "rank": entry.rank})
            elif fence is not None and self._l2.link.breaker.state == "closed":
                self._l1.drop(Selector(tenant=entry.tenant, entry_id=entry.id))  # another leader overtook this one
                return False
        self._index(entry)
        return True

    def _index(self, entry: Entry) -> None:
        text = semantic_text(entry.prompt)
        if self.embed is not None and text is not None:
            vector = self._vector(text)
            if self._l1.holds(entry):
                self._semantic.add(entry, vector)
                if not self._l1.holds(entry):  # dropped meanwhile
                    self._semantic.remove(entry)

    # finding ---------------------------------------------------------------------------------------------------------

    def get(
        self,
        prompt: Prompt,
        *,
        budget: float,
        tenant: str = "default",
        model: str = "",
        kb: str = "",
        max_age_s: float | None = None,
        semantic: bool = True,
        request: Mapping[str, Any] | None = None,
    ) -> Entry | None:
        """An answer made at this depth or deeper, at most `max_age_s` seconds old; exact first, then by meaning."""
        key = self._key(prompt, tenant, model, kb, request)
        rank = rank_of(budget, self.total, self._edges)
        if max_age_s is not None and not (_is_number(max_age_s) and max_age_s >= 0):
            raise CacheInputError(f"max_age_s must be 0 or more seconds, got {max_age_s!r}")
        entry = self._exact(key, rank, max_age_s)
        if entry is None and semantic:
            entry = self._by_meaning(key, rank, max_age_s)
        self._count(f"hits {entry.tier}" if entry else "misses")
        self._ask(key, entry)
        return entry

    def _exact(self, key: CacheKey, rank: int, max_age_s: float | None) -> Entry | None:
        entry = self._l1.get(key.tenant, key.hash, rank=rank, max_age_s=max_age_s)
        if entry is not None or self._l2 is None:
            return entry
        generation = self._l1.generation
        entry = self._l2.get(key.tenant, key.hash, rank=rank, max_age_s=max_age_s)
        if entry is not None and self._l1.put(replace(entry, tier="l1"), generation=generation):
            self._index(replace(entry, tier="l1"))
        return entry

    def _by_meaning(self, key: CacheKey, rank: int, max_age_s: float | None) -> Entry | None:
        text = semantic_text(key.text)
        if self.embed is None or self._matcher is None or text is None or not self._semantic.holds(key.scope):
            return None
        vector = self._vector(text)
        now = self._clock()
        found = self._semantic.search(key.scope, rank, self._ranks, vector, CANDIDATES)
        fresh = [c for c in found if c.entry.fresh(now, max_age_s)]
        chosen = self._matcher.choose(text, fresh) if fresh else None
        if chosen is None:
            return None
        candidate, confidence = chosen
        entry = self._l1.get(
            key.tenant, candidate.entry.key, rank=rank, max_age_s=max_age_s
        )  # counts the use, sees drops
        if entry is None:
            return None
        return replace(entry, tier="semantic", score=min(1.0, candidate.cosine), confidence=confidence)

    def _vector(self, text: str) -> FloatArray:
        with self._lock:
            if text in self._vectors:
                self._vectors.move_to_end(text)
                return self._vectors[text]
        assert self.embed is not None
        vector: FloatArray = self.embed([text])[0]
        with self._lock:
            self._vectors[text] = vector
            while len(self._vectors) > _REMEMBERED_VECTORS:
                self._vectors.popitem(last=False)
        return vector

    def _key(self, prompt: Prompt, tenant: str, model: str, kb: str, request: Mapping[str, Any] | None) -> CacheKey:
        return key_of(prompt, request=request, tenant=tenant, model=model, kb=kb)

    # dropping --------------------------------------------------------------------------------------------------------

    def retract(self, entry_id: str, *, tenant: str = "default") -> int:
        """A thumbs-down: take one answer out of every tier of every process; how many copies were found here."""
        return self._drop(Selector(tenant=tenant, entry_id=entry_id))

    def invalidate(
        self,
        *,
        tenant: str | None = None,
        key: str | None = None,
        tag: str | None = None,
        kb: str | None = None,
        before: float | None = None,
    ) -> int:
        """Drop everything that matches all of the given; `key` is a `CacheKey.hash`, `before` an epoch in seconds.

        With nothing given the whole cache, of all tenants, is emptied. Returns how many copies were dropped.
        """
        return self._drop(Selector(tenant=tenant, key=key, tag=tag, kb=kb, before=before))

    def _drop(self, selector: Selector) -> int:
        dropped = self._l1.drop(selector)
        if self._l2 is not None and self._events is not None:
            dropped += self._l2.drop(selector)
            self._events.publish("drop", selector_fields(selector))
        if self._l3 is not None:
            self._guarded(lambda log_: log_.drop(selector))
        return dropped

    def _hear(self, kind: str, data: Mapping[str, Any]) -> None:
        """News from another process, or a tick of the listener."""
        assert self._l2 is not None
        assert self._events is not None
        if kind == "drop":
            self._l1.drop(Selector(**data))
        elif kind == "reset":
            self._l1.drop(Selector())
        elif kind == "put" and self.embed is not None:
            self._learn(str(data["tenant"]), str(data["key"]), int(data["rank"]))
        elif kind == "tick":
            self._flights.renew()
            for selector in self._l2.send_pending():
                self._events.publish("drop", selector_fields(selector))

    def _learn(self, tenant: str, key: str, rank: int) -> None:
        """Another process stored an answer: make it findable by meaning here too."""
        assert self._l2 is not None
        generation = self._l1.generation
        entry = self._l2.get(tenant, key, rank=rank)
        if entry is not None and self._l1.put(replace(entry, tier="l1"), generation=generation):
            self._index(replace(entry, tier="l1"))

    # single-flight ---------------------------------------------------------------------------------------------------

    @contextmanager
    def single_flight(
        self,
        prompt: Prompt,
        *,
        budget: float,
        tenant: str = "default",
        model: str = "",
        kb: str = "",
        request: Mapping[str, Any] | None = None,
        max_age_s: float | None = None,
        wait_s: float = 60.0,
        lease_s: float = 30.0,
    ) -> Iterator[Flight]:
        """One generation for many identical requests: `flight.leader` makes the answer and calls
        `flight.share(value)`; for the others `flight.result` is that value, or the `Entry` another process stored.
        Pass `flight.fence` to `put`. An answer stored earlier counts if it is at most `max_age_s` seconds old.
        """
        slot, look = self._flight(prompt, budget, tenant, model, kb, request, max_age_s)
        flight = self._flights.enter(slot, look, wait_s=wait_s, lease_s=lease_s)
        try:
            yield flight
        finally:
            self._flights.land(flight)
            self._flights.release(flight)

    @asynccontextmanager
    async def asingle_flight(
        self,
        prompt: Prompt,
        *,
        budget: float,
        tenant: str = "default",
        model: str = "",
        kb: str = "",
        request: Mapping[str, Any] | None = None,
        max_age_s: float | None = None,
        wait_s: float = 60.0,
        lease_s: float = 30.0,
    ) -> AsyncIterator[Flight]:
        """`single_flight` for async code; waiting callers hold no thread."""
        slot, look = self._flight(prompt, budget, tenant, model, kb, request, max_age_s)
        flight = await self._flights.aenter(slot, look, wait_s=wait_s, lease_s=lease_s)
        try:
            yield flight
        finally:
            self._flights.land(flight)
            await asyncio.shield(asyncio.to_thread(self._flights.release, flight))

    def _flight(
        self, prompt: Prompt, budget: float, tenant: str, model: str, kb: str, request: Mapping[str, Any] | None,
        max_age_s: float | None,
    ) -> tuple[Slot, Look]:  # fmt: skip
        key, rank = self._key(prompt, tenant, model, kb, request), rank_of(budget, self.total, self._edges)
        return (tenant, key.hash, rank), lambda: self._exact(key, rank, max_age_s)

    # async -----------------------------------------------------------------------------------------------------------

    async def aput(self, prompt: Prompt, text: str, **fields: Any) -> Entry | None:
        """`put` without blocking the event loop."""
        return await asyncio.to_thread(self.put, prompt, text, **fields)

    async def aget(self, prompt: Prompt, **fields: Any) -> Entry | None:
        """`get` without blocking the event loop."""
        return await asyncio.to_thread(self.get, prompt, **fields)

    async def aretract(self, entry_id: str, *, tenant: str = "default") -> int:
        """`retract` without blocking the event loop."""
        return await asyncio.to_thread(self.retract, entry_id, tenant=tenant)

    async def ainvalidate(self, **fields: Any) -> int:
        """`invalidate` without blocking the event loop."""
        return await asyncio.to_thread(self.invalidate, **fields)

    # looking after ---------------------------------------------------------------------------------------------------

    def _ask(self, key: CacheKey, entry: Entry | None) -> None:
        slot = (key.tenant, entry.key if entry else key.hash)
        with self._lock:
            seen = self._asked.setdefault(slot, [0, entry.prompt if entry else key.text])
            seen[0] += 1
            self._asked.move_to_end(slot)
            while len(self._asked) > _REMEMBERED_PROMPTS:
                self._asked.popitem(last=False)

    def frequent(self, at_least: int = 10, *, tenant: str | None = None) -> list[tuple[str, str, int]]:
        """Questions that keep coming, for promotion to the FAQ (R7): `(tenant, question, times asked)`, most frequent
        first."""
        with self._lock:
            rows = [
                (t, text, n)
                for (t, _), (n, text) in self._asked.items()
                if n >= at_least and text and tenant in (None, t)
            ]
        return sorted(rows, key=lambda row: -row[2])

    def depth_stats(self, prompt: Prompt, **fields: Any) -> dict[str, float] | None:
        """L2's `{min_depth, max_depth, avg_latency, count}` for a prompt (layers, ms), or None."""
        key = key_of(prompt, **fields)
        return self._l2.depth_stats(key.tenant, key.hash) if self._l2 else None

    def depth_table(self, tenant: str = "default", limit: int = 100) -> list[tuple[str, dict[str, float]]]:
        """`(key hash, depth statistics)` of up to `limit` prompts in L2."""
        return list(self._l2.table(tenant, limit)) if self._l2 else []

    def rehydrate(self, newest: int | None = None) -> int:
        """Fill memory and Redis from the cold log, after a restart, with the `newest` or all; how many entries were
        taken over (by Redis where there is one)."""
        if self._l3 is None:
            raise CacheInputError("there is no cold log to refill from; give DepthCache a cold_path")
        count = 0
        live = sorted(self._l3.entries(), key=lambda entry: entry.created)
        for entry in live[-newest:] if newest else live:
            entry = replace(entry, tier="l1")
            if self._l1.put(entry):
                self._index(entry)
                count += self._l2 is None or self._l2.put(entry)
        return count

    def cold(self) -> ColdLog | None:
        """The log on disk, for export and replay."""
        return self._l3

    def stats(self) -> dict[str, Any]:
        """Counts since start and sizes now, JSON-ready."""
        with self._lock:
            counts = dict(sorted(self._counts.items()))
        return {
            "entries": len(self._l1), "bytes": self._l1.bytes, "evictions": self._l1.evictions,
            "semantic_entries": len(self._semantic), "semantic_bytes": self._semantic.bytes,
            "redis": self._l2.link.breaker.state if self._l2 else None,
            "redis_outages": self._l2.link.breaker.outages if self._l2 else 0,
            "flights": len(self._flights), "counts": counts,
        }  # fmt: skip

    def close(self) -> None:
        """Let go of connections and files. The cache must not be used afterwards."""
        if self._events is not None:
            self._events.close()
        if self._l2 is not None:
            self._l2.close()
        if self._l3 is not None:
            self._l3.close()

    def __enter__(self) -> "DepthCache":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _guarded(self, work: Callable[[ColdLog], Any]) -> None:
        """A full or broken disk must not fail the request."""
        assert self._l3 is not None
        try:
            work(self._l3)
        except OSError as error:
            self._count("cold log errors")
            log.warning("cold log: %s", error.strerror)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _ttl(value: float) -> float:
    if not _is_number(value) or value < 0:
        raise CacheInputError(f"ttl_s must be 0 (do not keep) or more seconds, got {value!r}")
    return float(value)
