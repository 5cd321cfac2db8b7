"""Limits of a key that hold over all processes and machines: a minute's requests, those at once, prepaid layer-tokens.

Each is one atomic Lua step on one Redis (S2, S5, S7), by its clock. What is held (a slot, a reservation) is a lease
that `renew` prolongs, so a process that was killed gives its own back within `LEASE_S`, and a Redis that came back
empty hears of what is held. What has been spent is told by each ledger as its own total, of which Redis keeps the
largest: telling it twice, late or after a restart changes nothing. Redis down or slow: None, and the caller goes by
what this process knows; never an error. Knows no HTTP and no event loop.
"""

import threading
from collections.abc import Callable
from typing import Any

from ...cache.breaker import Breaker
from ...cache.redis_link import DEADLINE_S, RedisLink
from ..accounting import LEASE_S, Balance
from .keys import ApiKey

_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"

# KEYS: bucket. ARGV: requests a minute. Returns seconds until one may be sent; "0": this one was counted.
RATE = """
local t, rpm = redis.call('TIME'), tonumber(ARGV[1])
local now = t[1] + t[2] / 1e6
local seen = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local passed = math.max(0, now - tonumber(seen[2] or now))
local tokens = math.min(rpm, tonumber(seen[1] or rpm) + passed * rpm / 60)
if tokens < 1 - 1e-9 then return tostring((1 - tokens) * 60 / rpm) end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.9f', tokens - 1), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], 60000)
return '0'
"""

# KEYS: leases by when they end. ARGV: most, lease ms, member.
ENTER = f"""{_NOW}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""

# KEYS: leases. ARGV: lease ms, members.
RENEW = f"""{_NOW}
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

# KEYS: spent by ledger, leases whose members end in their amount. ARGV: granted, ledger, its total spent, lease ms,
# member or "", amount. Returns whether the amount is held, what is spent and what is held in all.
HOLD = f"""{_NOW}
local told = redis.call('HGET', KEYS[1], ARGV[2])
if not told or tonumber(told) < tonumber(ARGV[3]) then redis.call('HSET', KEYS[1], ARGV[2], ARGV[3]) end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local spent, held, taken = 0, 0, 0
for _, each in ipairs(redis.call('HVALS', KEYS[1])) do spent = spent + tonumber(each) end
for _, each in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  held = held + tonumber(string.match(each, '[^ ]+$'))
end
if ARGV[5] ~= '' and spent + held + ARGV[6] <= tonumber(ARGV[1]) then
  redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[5])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  taken = 1
end
return {{taken, tostring(spent), tostring(held)}}
"""

# KEYS: as above. ARGV: ledger, its total spent, member.
SETTLE = """
local told = redis.call('HGET', KEYS[1], ARGV[1])
if not told or tonumber(told) < tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return redis.call('ZREM', KEYS[2], ARGV[3])
"""


class SharedLimits:
    """Every method blocks for at most `deadline_s`; call them from a worker thread."""

    def __init__(
        self, url: str, *, namespace: str = "shoal", lease_s: float = LEASE_S, deadline_s: float = DEADLINE_S
    ) -> None:
        self.link = RedisLink(url, deadline_s=deadline_s, breaker=Breaker("the shared limits (Redis)"))
        self.namespace, self._lease_ms = namespace, int(lease_s * 1000)
        self._held: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def rate(self, key: ApiKey) -> float | None:
        """Counts one request of this key; seconds to wait where it is over, then it was not counted."""
        found = self._run(RATE, [self._name(key.id, "rate")], key.rpm)
        return None if found is None else float(found)

    def enter(self, key: ApiKey, holder: str) -> bool | None:
        """Takes one of the key's places at once; False when there is none."""
        name = self._name(key.id, "at-once")
        return self._lease(name, holder, lambda: self._run(ENTER, [name], key.concurrent, self._lease_ms, holder))

    def leave(self, key: ApiKey, holder: str) -> None:
        """Gives the place back."""
        name = self._name(key.id, "at-once")
        self._forget(name, holder)
        self._zrem(name, holder)

    def hold(
        self, account: str, holder: str, amount: float, *, granted: float, ledger: str, spent: float
    ) -> bool | None:
        """Holds `amount` of what was `granted`, where all ledgers together have so much left. `spent` is this one's."""
        names, member = self._account(account), _member(holder, amount)

        def take() -> Any:
            found = self._run(HOLD, names, granted, ledger, spent, self._lease_ms, member, amount)
            return None if found is None else found[0]

        return self._lease(names[1], member, take)

    def settle(self, account: str, holder: str, amount: float, *, ledger: str, spent: float) -> None:
        """Gives back what was held, and tells what the ledger has been charged in all."""
        names, member = self._account(account), _member(holder, amount)
        self._forget(names[1], member)
        self._run(SETTLE, names, ledger, spent, member)

    def balance(self, account: str, *, granted: float, ledger: str, spent: float) -> Balance | None:
        """What is left of a prepaid account over all ledgers."""
        found = self._run(HOLD, self._account(account), granted, ledger, spent, self._lease_ms, "", 0)
        return None if found is None else Balance(granted=granted, spent=float(found[1]), reserved=float(found[2]))

    def renew(self) -> None:
        """Prolongs everything held; to be called several times in `LEASE_S`."""
        with self._lock:
            held = {name: sorted(members) for name, members in self._held.items()}
        for name, members in held.items():
            self._run(RENEW, [name], self._lease_ms, *members)
            if left := [member for member in members if not self._holds(name, member)]:  # while they were prolonged
                self._zrem(name, *left)

    def close(self) -> None:
        """Closes the connections."""
        self.link.close()

    def _lease(self, name: str, member: str, take: Callable[[], Any]) -> bool | None:
        """Known as held before it is asked for, so that whoever leaves meanwhile does not leave it behind."""
        with self._lock:
            self._held.setdefault(name, set()).add(member)
        taken = take()
        if taken is not None and not taken:
            self._forget(name, member)
        elif not self._holds(name, member):
            self._zrem(name, member)
        return None if taken is None else bool(taken)

    def _holds(self, name: str, member: str) -> bool:
        with self._lock:
            return member in self._held.get(name, ())

    def _forget(self, name: str, member: str) -> None:
        with self._lock:
            members = self._held.get(name, set())
            members.discard(member)
            if not members:
                self._held.pop(name, None)

    def _zrem(self, name: str, *members: str) -> None:
        self.link.call(lambda client: client.zrem(name, *members))

    def _run(self, script: str, names: list[str], *values: object) -> Any:
        return self.link.call(lambda client: client.eval(script, len(names), *names, *values))

    def _name(self, key_id: str, what: str) -> str:
        return f"{self.namespace}:{{{key_id}}}:{what}"

    def _account(self, account: str) -> list[str]:
        return [self._name(account, "spent"), self._name(account, "held")]


def _member(holder: str, amount: float) -> str:
    return f"{holder} {amount:.3f}"
