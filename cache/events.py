"""News between processes (C5): drops and new answers, through a Redis stream, so that no process serves what another
retracted.

A stream is read from the last seen id, so news sent while a process was cut off is caught up with, unlike pub/sub.
When the server lost its data, or the stream has moved past what was seen, the only safe answer is `reset`: forget
everything local.
"""

import json
import logging
from collections.abc import Callable, Mapping
from secrets import token_hex
from threading import Event, Thread
from typing import Any

from .redis_link import RedisLink, connect

log = logging.getLogger(__name__)

_BLOCK_MS = 500
_KEEP = 10_000  # events kept on the server

Handler = Callable[[str, Mapping[str, Any]], None]


class Events:
    """Publishes this process's news and hands the others' to `handler(kind, data)` on a thread of its own.

    Kinds: `drop`, `put`, `reset`, and `tick` about twice a second while the server is there.
    """

    def __init__(self, link: RedisLink, handler: Handler, *, namespace: str = "shoal") -> None:
        self._link, self._handler = link, handler
        self._stream, self._birth = f"{namespace}:events", f"{namespace}:born"
        self._me = token_hex(8)
        self._closed, self.connected = Event(), Event()
        self._client: Any = None
        self._last: str | None = None
        self._born: bytes | None = None
        self._thread = Thread(target=self._run, name="shoal-cache-events", daemon=True)
        self._thread.start()

    def publish(self, kind: str, data: Mapping[str, Any]) -> None:
        """Tell the other processes; silently lost when the server is down (drops are sent again by their tier)."""
        body = json.dumps(data, ensure_ascii=True)
        fields = {"src": self._me, "kind": kind, "data": body}
        self._link.call(lambda client: client.xadd(self._stream, fields, maxlen=_KEEP, approximate=True), write=True)

    def close(self) -> None:
        """Stop listening; returns within a second."""
        self._closed.set()
        client = self._client
        if client is not None:
            _hang_up(client)
        self._thread.join(2.0)

    def _run(self) -> None:
        pause = 0.1
        while not self._closed.is_set():
            try:
                if self._client is None:
                    self._client = connect(self._link.url, socket_timeout_s=_BLOCK_MS / 1000 + 2)
                self._follow()
                pause = 0.1
            except Exception as error:  # any fault of the server: try again later, the link's breaker tells the user
                log.debug("cache events interrupted: %s", type(error).__name__)
                self.connected.clear()
                self._closed.wait(pause)
                pause = min(2 * pause, 2.0)

    def _follow(self) -> None:
        while not self._closed.is_set():
            self._check_birth()
            replies = self._client.xread({self._stream: self._last}, count=256, block=_BLOCK_MS) or []
            for _, items in replies.items() if isinstance(replies, dict) else replies:
                for item_id, fields in items:
                    self._last = item_id.decode()
                    self._take(fields)
            self._tell("tick", {})

    def _check_birth(self) -> None:
        """Start, or notice that the server is not the one we knew."""
        self._client.set(self._birth, token_hex(8), nx=True)
        born = self._client.get(self._birth)
        if self._last is None or born != self._born:
            known = self._born is not None
            newest = self._client.xrevrange(self._stream, count=1)
            self._last, self._born = (newest[0][0].decode() if newest else "0-0"), born
            if known:
                self._tell("reset", {})
        elif not self.connected.is_set():
            oldest = self._client.xrange(self._stream, count=1)
            if (
                oldest
                and _order(oldest[0][0].decode()) > _order(self._last)
                and self._client.xlen(self._stream) >= _KEEP
            ):
                self._tell("reset", {})
        self.connected.set()

    def _take(self, fields: Mapping[bytes, bytes]) -> None:
        if fields.get(b"src") == self._me.encode():
            return
        try:
            kind, data = fields[b"kind"].decode(), json.loads(fields[b"data"])
        except (KeyError, ValueError):
            return  # of another version
        self._tell(kind, data)

    def _tell(self, kind: str, data: Mapping[str, Any]) -> None:
        try:
            self._handler(kind, data)
        except Exception:
            log.exception("cache event %r could not be handled", kind)


def _order(event_id: str) -> tuple[int, int]:
    ms, _, n = event_id.partition("-")
    return int(ms), int(n or 0)


def _hang_up(client: Any) -> None:
    """Wake a reader blocked on its socket."""
    pools = [client.connection_pool] if hasattr(client, "connection_pool") else []
    pools += [
        node.redis_connection.connection_pool for node in getattr(client, "get_nodes", list)() if node.redis_connection
    ]
    for pool in pools:
        pool.disconnect(inuse_connections=True)
