"""API keys (S2): made once, stored as SHA-256, compared in constant time, each with its tenant and limits.

One JSON file, written atomically under a lock and readable by its owner only; a running service notices a change by
the file's stamp, so a revoked key stops working without a restart. `sync_keys` exchanges it with a Redis, by which
homes on other machines learn of keys made, changed and revoked; the newest word counts, a revocation always. Redis
holds no secret, but whoever may write there may let callers in. Knows no HTTP.
"""

import hashlib
import hmac
import json
import math
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from ...cache.breaker import Breaker
from ...cache.redis_link import RedisLink
from ..errors import RouterError

PREFIX = "sk-shoal-"
VERSION = 1  # of the key file
_TICK_S = 1e-3
SYNC_S = 1.0  # deadline of an exchange with Redis, which no request waits for
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeyFileError(RouterError, ValueError):
    """A key cannot be made, found or read; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key without its secret. `rpm` requests a minute, `concurrent` at once; 0 tells "no limit of its own".

    `admin` keys may change the knowledge base and see every tenant's usage.
    """

    id: str
    name: str
    tenant: str
    sha256: str = field(repr=False)
    admin: bool = False
    rpm: int = 0
    concurrent: int = 0
    max_tokens: int = 0
    quota: float = 0.0
    created: float = 0.0
    changed: float = 0.0

    def public(self) -> dict[str, Any]:
        """What `shoal keys list` shows: everything but the hash."""
        return {name: value for name, value in asdict(self).items() if name != "sha256"}


_NUMBERS = ("rpm", "concurrent", "max_tokens", "quota", "created", "changed")
LOCAL = ApiKey(id="local", name="local", tenant="default", sha256="", admin=True)


def create_key(
    path: Path,
    *,
    name: str,
    tenant: str = "default",
    admin: bool = False,
    rpm: int = 0,
    concurrent: int = 0,
    max_tokens: int = 0,
    quota: float = 0.0,
) -> tuple[str, ApiKey]:
    """A new key: the secret, shown this once, and its record. Raises `KeyFileError` for a bad tenant or limit."""
    if not TENANT.fullmatch(tenant):
        raise KeyFileError("a tenant is 1 to 64 letters, digits, dots, dashes or underscores, a letter or digit first")
    _check(rpm=rpm, concurrent=concurrent, max_tokens=max_tokens, quota=quota)
    secret = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(
        id=f"key-{secrets.token_hex(6)}",
        name=name[:80],
        tenant=tenant,
        sha256=_digest(secret),
        admin=admin,
        rpm=rpm,
        concurrent=concurrent,
        max_tokens=max_tokens,
        quota=quota,
        created=time.time(),
    )
    with _locked(path):
        keys, revoked = _load(path)
        _write(path, [*keys, key], revoked)
    return secret, key


def list_keys(path: Path) -> list[ApiKey]:
    return _load(path)[0]


def revoke_key(path: Path, key_id: str) -> ApiKey:
    """Removes the key with this id or name; raises `KeyFileError` when there is none, or more than one."""
    with _locked(path):
        keys, revoked = _load(path)
        found = _one(keys, key_id)
        _write(path, [key for key in keys if key.id != found.id], [*revoked, found.id])
    return found


def change_key(path: Path, key_id: str, **limits: Any) -> ApiKey:
    """Sets `rpm`, `concurrent`, `max_tokens` or `quota` of the key with this id or name. Raises `KeyFileError`."""
    _check(**limits)
    with _locked(path):
        keys, revoked = _load(path)
        old = _one(keys, key_id)
        new = replace(old, **limits, changed=max(time.time(), old.changed + _TICK_S))  # the newest word, any clock
        _write(path, [new if key is old else key for key in keys], revoked)
    return new


def share_keys(path: Path, redis_url: str | None) -> bool:
    """`sync_keys` over a link of its own; False when Redis does not answer, True also where there is none."""
    if redis_url is None:
        return True
    link = RedisLink(redis_url, breaker=Breaker("the shared keys (Redis)"))
    try:
        return sync_keys(path, link)
    finally:
        link.close()


def sync_keys(path: Path, link: RedisLink, *, namespace: str = "shoal") -> bool:
    """Exchanges the file's keys and revocations with those in Redis; False when it does not answer.

    The file then holds them all, so that the service goes on by it while Redis is away.
    """
    records, gone = f"{namespace}:{{keys}}:records", f"{namespace}:{{keys}}:revoked"
    found = link.call(lambda client: (client.hgetall(records), client.smembers(gone)), deadline_s=SYNC_S)
    if found is None:
        return False
    there = {key.id: key for key in map(_told, found[0].values()) if key is not None}
    told = {one.decode(errors="replace") for one in found[1]}
    keys, revoked = _merge(path, there.values(), sorted(told))
    news = {key.id: json.dumps(asdict(key)) for key in keys if there.get(key.id) != key}
    buried = set(revoked) - told

    def tell(client: Any) -> bool:
        if news:
            client.hset(records, mapping=news)
        if buried:
            client.sadd(gone, *buried)
        if out := set(revoked) & there.keys():
            client.hdel(records, *out)
        return True

    return bool(link.call(tell, deadline_s=SYNC_S))


class KeyRing:
    """The keys of a running service. `path` None: no keys, every caller is `LOCAL`."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._keys: list[ApiKey] = []

    @property
    def open(self) -> bool:
        return self._path is None

    def find(self, secret: str) -> ApiKey | None:
        """The key with this secret, looking at every key so that the time tells nothing about any of them."""
        digest, found = _digest(secret), None
        for key in self._current():
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def _current(self) -> list[ApiKey]:
        if self._path is None:
            return []
        with self._lock:
            try:
                stat = self._path.stat()
                stamp = (stat.st_mtime_ns, stat.st_ino)
            except FileNotFoundError:
                return []
            if stamp != self._stamp:
                self._keys, self._stamp = _load(self._path)[0], stamp
            return self._keys


def _one(keys: list[ApiKey], key_id: str) -> ApiKey:
    found = [key for key in keys if key_id in (key.id, key.name)]
    if len(found) != 1:
        raise KeyFileError(f"{len(found)} keys are called that; `shoal keys list` shows the ids")
    return found[0]


def _check(**limits: float) -> None:
    if not all(0 <= limit < math.inf for limit in limits.values()):
        raise KeyFileError("limits must be 0 (none) or more")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _locked(path: Path) -> FileLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_suffix(".lock"), timeout=10)


def _merge(path: Path, told: Iterable[ApiKey], gone: Iterable[str]) -> tuple[list[ApiKey], list[str]]:
    """The file's keys and revocations with those told of, written where that changes anything."""
    with _locked(path):
        keys, revoked = _load(path)
        all_gone = list(dict.fromkeys([*revoked, *gone]))
        newest = {key.id: key for key in sorted([*keys, *told], key=_age) if key.id not in all_gone}
        if list(newest.values()) != keys or all_gone != revoked:
            _write(path, list(newest.values()), all_gone)
    return list(newest.values()), all_gone


def _age(key: ApiKey) -> tuple[float, float, str]:
    return key.created, key.changed, key.sha256


def _told(record: bytes) -> ApiKey | None:
    """A key as another service wrote it down; None where that is not one."""
    try:
        raw = json.loads(record)
        key = ApiKey(**{each.name: raw[each.name] for each in fields(ApiKey) if each.name in raw})
    except (ValueError, TypeError):
        return None
    texts, numbers = (key.id, key.name, key.sha256), [getattr(key, name) for name in _NUMBERS]
    sound = isinstance(key.tenant, str) and TENANT.fullmatch(key.tenant) and isinstance(key.admin, bool)
    sound = sound and all(isinstance(text, str) for text in texts)
    return key if sound and all(isinstance(n, int | float) and 0 <= n < math.inf for n in numbers) else None


def _load(path: Path) -> tuple[list[ApiKey], list[str]]:
    """Keys, and ids of those that were revoked."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        if raw["version"] != VERSION:
            raise KeyFileError(f"{path} has version {raw['version']!r}; this version of Shoal reads {VERSION}")
        return [ApiKey(**record) for record in raw["keys"]], list(raw.get("revoked", ()))
    except FileNotFoundError:
        return [], []
    except KeyFileError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise KeyFileError(f"{path} is not a key file; restore it or remove it and make new keys") from error


def _write(path: Path, keys: list[ApiKey], revoked: list[str]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".keys-")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "keys": [asdict(key) for key in keys], "revoked": revoked}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
