"""The link to a Redis server (C6): client by URL, a hard deadline per call, a breaker. Knows nothing of entries.

URLs: `redis://`, `rediss://` (TLS), `unix://` as redis-py has them; `redis+cluster://host:port` (or `rediss+cluster://`);
`redis+sentinel://host:port,host:port/service/db` (or `rediss+sentinel://`). Credentials as usual, before the `@`.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from .breaker import Breaker
from .deadline import Busy, Lane
from .errors import CacheInputError, MissingExtraError

log = logging.getLogger(__name__)
T = TypeVar("T")

DEADLINE_S = 0.04  # of one call, so that a caller sees a miss within 50 ms
_SOCKET_S = 0.5  # when a stuck socket gives its thread back
_REFUSED_WRITES = ("OutOfMemoryError", "ReadOnlyError", "NoPermissionError", "ResponseError")


def connect(url: str, *, socket_timeout_s: float = _SOCKET_S) -> Any:
    """A redis-py client for the URL; nothing is sent yet (but a cluster client asks for the slots).

    Raises `CacheInputError` for a URL that names no server, `MissingExtraError` without the extra `redis`.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise MissingExtraError(
            "redis_url is set but redis is not installed; run: pip install 'shoal[redis]'"
        ) from error
    options: dict[str, Any] = {
        "socket_timeout": socket_timeout_s,
        "socket_connect_timeout": _SOCKET_S,
        "retry": Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        "driver_info": None,  # saves two commands per connection
        "protocol": 2,
    }
    scheme, _, rest = url.partition("://")
    base, _, kind = scheme.partition("+")
    try:
        if kind == "cluster":
            return redis.RedisCluster.from_url(f"{base}://{rest}", **options)
        if kind == "sentinel":
            return _sentinel(url, base == "rediss", options)
        return redis.Redis.from_url(url.replace("valkey://", "redis://", 1), **options)
    except ValueError as error:
        raise CacheInputError(
            "redis_url must look like redis://host:port/db, rediss://, unix://, redis+cluster:// or redis+sentinel://"
        ) from error


def _sentinel(url: str, tls: bool, options: dict[str, Any]) -> Any:
    from redis.sentinel import Sentinel

    user, _, hosts = urlsplit(url).netloc.rpartition("@")
    path = urlsplit(url).path.strip("/").split("/")
    nodes = [host.rpartition(":") for host in hosts.split(",")]
    name, _, password = user.partition(":")
    shared = {**options, **({"ssl": True} if tls else {})}
    login = {"username": unquote(name) or None, "password": unquote(password) or None}
    query = dict(parse_qsl(urlsplit(url).query))
    known = {"password": query["sentinel_password"]} if "sentinel_password" in query else {}
    make: Any = Sentinel
    sentinel = make(
        [(h or p, int(p) if h else 26379) for h, _, p in nodes], sentinel_kwargs={**shared, **known}, **shared
    )
    return sentinel.master_for(path[0] or "mymaster", db=int(path[1]) if len(path) > 1 else 0, **login)


class RedisLink:
    """Calls that never raise: a value, or None when the server is down, slow, wrong, or the breaker is open."""

    def __init__(self, url: str, *, deadline_s: float = DEADLINE_S, breaker: Breaker | None = None) -> None:
        self.url, self._deadline_s = url, deadline_s
        self.breaker = breaker or Breaker("the shared cache (Redis)")
        self.writes = Breaker("writing to the shared cache (Redis)")
        self._lane = Lane("shoal-redis")
        self._client: Any = None
        if "://" not in url:
            raise CacheInputError("redis_url must be a URL such as redis://localhost:6379/0")
        if "+" not in url.partition("://")[0]:
            self._client = connect(url)  # checks the URL; opens no connection yet

    def _get(self) -> Any:
        if self._client is None:
            self._client = connect(self.url)
        return self._client

    def call(self, work: Callable[[Any], T], *, write: bool = False, deadline_s: float | None = None) -> T | None:
        """Result of `work(client)`, or None. A write the server refuses (memory full) does not stop the reads."""
        if not self.breaker.allow():
            return None
        if write and not self.writes.allow():
            self.breaker.release()
            return None
        try:
            result = self._lane.call(lambda: work(self._get()), deadline_s or self._deadline_s)
        except Busy:
            self.breaker.release()
            self.writes.release()
            return None
        except Exception as error:  # whatever goes wrong in the shared tier is a miss for the caller
            reason = type(error).__name__
            if write and any(kind.__name__ in _REFUSED_WRITES for kind in type(error).__mro__):
                self.breaker.succeeded()
                self.writes.failed(reason)
            else:
                if write:
                    self.writes.release()
                self.breaker.failed(reason)
            return None
        self.breaker.succeeded()
        if write:
            self.writes.succeeded()
        return result

    def close(self) -> None:
        """Close the connections."""
        self._lane.close()
        if self._client is not None:
            self._client.close()
