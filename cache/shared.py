"""L2 (C1, C2, C6): answers shared through Redis, and `{min_depth, max_depth, avg_latency}` per prompt hash.

Every key of a tenant carries the tenant's hash tag, so that a script touches one cluster slot. Index sets (by tenant,
tag and knowledge base, scored by expiry) make invalidation possible without scanning the server. Whatever is wrong
with the server is a miss. Drops that cannot be sent are remembered, honoured locally at once, and sent when the
server is back.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from threading import Lock
from typing import Any

from . import redis_scripts
from .entry import Entry, decode, encode
from .redis_link import RedisLink
from .tier import Selector

STATS_TTL_S = 30 * 86_400
_BULK_S = 2.0  # deadline of one step of an invalidation, which nobody waits for on the request path
_CHUNK = 500
_MAX_PENDING = 10_000
_LONGEST_MS = 2**52  # what a server takes as a lifetime


def _unwrap(value: Any) -> Entry | None:
    if not isinstance(value, bytes) or not value.startswith(b"b"):
        return None
    return decode(value.partition(b" ")[2])


class RedisTier:
    """Entries on a Redis-protocol server under `namespace`. `ranks` is the number of buckets."""

    def __init__(
        self, link: RedisLink, *, namespace: str = "shoal", ranks: int = 3, clock: Callable[[], float] = time.time
    ) -> None:
        self.link, self.namespace, self._ranks, self._clock = link, namespace, ranks, clock
        self._pending: list[Selector] = []
        self._lock = Lock()

    # keys ------------------------------------------------------------------------------------------------------------

    def _prefix(self, tenant: str) -> str:
        digest = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        return f"{self.namespace}:{{{digest}}}"

    def _entries(self, tenant: str, key: str, ranks: Iterable[int]) -> list[str]:
        return [f"{self._prefix(tenant)}:e:{key}:{rank}" for rank in ranks]

    def _stats(self, tenant: str, key: str) -> str:
        return f"{self._prefix(tenant)}:m:{key}"

    def _index(self, selector: Selector) -> str:
        prefix = self._prefix(selector.tenant or "")
        if selector.tag is not None:
            return f"{prefix}:t:{_short(selector.tag)}"
        return f"{prefix}:k:{_short(selector.kb)}" if selector.kb is not None else f"{prefix}:all"

    @property
    def _tenants(self) -> str:
        return f"{self.namespace}:tenants"

    # the tier --------------------------------------------------------------------------------------------------------

    def put(self, entry: Entry, *, latency_ms: float | None = None, fence: int | None = None) -> bool:
        """Store and count; False when the server did not take it, a deeper answer is there, or the fence is stale."""
        now = self._clock()
        ttl_ms = int(min((entry.expires - now) * 1000, _LONGEST_MS))
        if ttl_ms < 1:
            return False
        keys = [*self._entries(entry.tenant, entry.key, range(self._ranks)), self._stats(entry.tenant, entry.key)]
        keys.append(self._index(Selector(tenant=entry.tenant)))
        keys += [self._index(Selector(tenant=entry.tenant, tag=tag)) for tag in entry.tags]
        keys += [self._index(Selector(tenant=entry.tenant, kb=entry.kb))] if entry.kb else []
        args = [
            self._ranks, entry.rank, b"b%g %s" % (entry.budget, encode(entry)), ttl_ms, f"{entry.budget:g}",
            f"{entry.depth:g}", "" if latency_ms is None else f"{latency_ms:g}", f"{entry.key}:{entry.rank}",
            entry.expires, now, "" if fence is None else fence, max(ttl_ms, STATS_TTL_S * 1000),
        ]  # fmt: skip

        def work(client: Any) -> bool:
            done = client.eval(redis_scripts.PUT, len(keys), *keys, *args)
            client.sadd(self._tenants, entry.tenant.encode("utf-8", "surrogatepass"))
            return bool(done)

        return bool(self.link.call(work, write=True))

    def get(self, tenant: str, key: str, *, rank: int, max_age_s: float | None = None) -> Entry | None:
        names = self._entries(tenant, key, range(self._ranks - 1, rank - 1, -1))
        now = self._clock()
        for value in self.link.call(lambda client: client.mget(names)) or ():
            entry = _unwrap(value)
            if entry is not None and self._belongs(entry, tenant, key) and entry.fresh(now, max_age_s):
                return entry
        return None

    def _belongs(self, entry: Entry, tenant: str, key: str) -> bool:
        with self._lock:
            return entry.tenant == tenant and entry.key == key and not any(s.matches(entry) for s in self._pending)

    def drop(self, selector: Selector) -> int:
        """Delete what matches; a drop that the server did not hear is kept and sent later."""
        selector = selector if selector.before is not None else replace(selector, before=self._clock())
        dropped = self._drop(selector)
        if dropped is None:
            with self._lock:
                self._pending = [*self._pending, selector][-_MAX_PENDING:]
        return dropped or 0

    def send_pending(self) -> list[Selector]:
        """Send the drops the server has not heard of; those sent."""
        with self._lock:
            waiting = list(self._pending)
        sent = [selector for selector in waiting if self._drop(selector) is not None]
        with self._lock:
            self._pending = [s for s in self._pending if s not in sent]
        return sent

    def _drop(self, selector: Selector) -> int | None:
        if selector.tenant is None:
            names = self.link.call(lambda client: client.smembers(self._tenants), deadline_s=_BULK_S)
            counts = [self._drop(replace(selector, tenant=n.decode("utf-8", "surrogatepass"))) for n in names or ()]
            return None if names is None or None in counts else sum(c or 0 for c in counts)
        if selector.entry_id is not None:
            key, _, rank = selector.entry_id.rpartition(".")[0].rpartition(".")
            names = self._entries(selector.tenant, key, [int(rank)] if rank.isascii() and rank.isdigit() else [])
            marker = f'"id":"{selector.entry_id}"'
            return self.link.call(
                lambda client: sum(client.eval(redis_scripts.DROP_ONE, 1, name, marker) for name in names), write=True
            )
        if selector.key is not None:
            members = [f"{selector.key}:{rank}".encode() for rank in range(self._ranks)]
            return self._drop_members(selector, members)
        found = self.link.call(lambda client: client.zrange(self._index(selector), 0, -1), deadline_s=_BULK_S)
        return None if found is None else self._drop_members(selector, found)

    def _drop_members(self, selector: Selector, members: list[bytes]) -> int | None:
        total = 0
        for start in range(0, len(members), _CHUNK):
            part = members[start : start + _CHUNK]
            names = [f"{self._prefix(selector.tenant or '')}:e:{m.decode()}" for m in part]

            def work(client: Any, part: list[bytes] = part, names: list[str] = names) -> int:
                values = client.mget(names)
                gone = [
                    (name, member)
                    for name, member, value in zip(names, part, values, strict=True)
                    if value is not None and ((entry := _unwrap(value)) is None or selector.matches(entry))
                ]
                if gone:
                    client.unlink(*(name for name, _ in gone))
                    client.zrem(self._index(replace(selector, tag=None, kb=None)), *(member for _, member in gone))
                return len(gone)

            count = self.link.call(work, write=True, deadline_s=_BULK_S)
            if count is None:
                return None
            total += count
        return total

    # statistics and leases -------------------------------------------------------------------------------------------

    def depth_stats(self, tenant: str, key: str, *, deadline_s: float | None = None) -> dict[str, float] | None:
        """`{min_depth, max_depth, avg_latency, count}` of a prompt (layers, ms), or None."""
        found = self.link.call(lambda client: client.hgetall(self._stats(tenant, key)), deadline_s=deadline_s)
        if not found or b"count" not in found:
            return None
        return {name: float(found.get(name.encode(), 0)) for name in ("min_depth", "max_depth", "avg_latency", "count")}

    def table(self, tenant: str, limit: int = 100) -> Iterator[tuple[str, dict[str, float]]]:
        """`(key hash, statistics)` of the tenant's latest-expiring prompts."""
        index = self._index(Selector(tenant=tenant))
        members = self.link.call(lambda client: client.zrevrange(index, 0, 3 * limit), deadline_s=_BULK_S) or []
        for key in list(dict.fromkeys(m.decode().rpartition(":")[0] for m in members))[:limit]:
            if stats := self.depth_stats(tenant, key, deadline_s=_BULK_S):
                yield key, stats

    def lease(self, tenant: str, key: str, rank: int, token: str, lease_s: float) -> int | None:
        """Fencing number of a lease on this answer; 0 when another process has it, None when the server is away."""
        names = [f"{self._prefix(tenant)}:f:{key}:{rank}", self._stats(tenant, key)]
        ttl = STATS_TTL_S * 1000
        return self.link.call(
            lambda client: int(client.eval(redis_scripts.LEASE, 2, *names, token, int(lease_s * 1000), ttl)), write=True
        )

    def prolong(self, tenant: str, key: str, rank: int, token: str, lease_s: float) -> None:
        """The lease is good for so many seconds from now, where it is still this token's."""
        name = f"{self._prefix(tenant)}:f:{key}:{rank}"
        self.link.call(
            lambda client: client.eval(redis_scripts.PROLONG, 1, name, token, int(lease_s * 1000)), write=True
        )

    def release(self, tenant: str, key: str, rank: int, token: str) -> None:
        name = f"{self._prefix(tenant)}:f:{key}:{rank}"
        self.link.call(lambda client: client.eval(redis_scripts.RELEASE, 1, name, token), write=True)

    def close(self) -> None:
        self.link.close()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def selector_fields(selector: Selector) -> dict[str, Any]:
    """A selector as JSON-ready data."""
    return {k: v for k, v in asdict(selector).items() if v is not None}
