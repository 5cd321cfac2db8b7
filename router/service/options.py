"""What an operator can set about the service: names, limits, timeouts. Plain data; reads no environment."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from ..errors import RouterError
from ..prices import PriceTable

MIB = 1024 * 1024
_MAY_LACK = ("max_prompt_tokens", "gates_after")


class BadOptions(RouterError, ValueError):
    """An option of the service has a value it cannot have; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Sizes in bytes, times in seconds. Every limit is refused at the edge, before any work is done for the request.

    `aliases` are further model names that are accepted; `keys_path` is the key file (None: no keys, every caller is
    the local administrator), `redis_url` where keys and their limits are shared with other processes. `concurrent`
    requests are worked on at once and `queue` more may wait `queue_s` each. `span_text` puts the text of requests and
    answers into OpenTelemetry spans. `gates_after` thumbs-down start a recalibration of learned gates; None for never.
    `prices` are what `/v1/usage` shows.
    """

    aliases: Sequence[str] = ("shoal",)
    keys_path: Path | None = None
    ledger_path: Path | None = None
    redis_url: str | None = field(default=None, repr=False)
    max_body: int = 1 * MIB
    max_prompt_chars: int = 200_000
    max_prompt_tokens: int | None = None
    max_tokens: int = 2048
    max_inputs: int = 256
    concurrent: int = 8
    queue: int = 32
    queue_s: float = 10.0
    body_s: float = 20.0
    first_token_s: float = 120.0
    between_s: float = 60.0
    total_s: float = 600.0
    head_s: float = 10.0
    drain_s: float = 20.0
    max_connections: int = 512
    span_text: bool = False
    gates_after: int | None = None
    prices: PriceTable = field(default_factory=PriceTable)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(each.default, bool):
                if not isinstance(value, bool):
                    raise BadOptions(f"{each.name} must be true or false, not {value!r}")
            elif isinstance(each.default, int | float) or (each.name in _MAY_LACK and value is not None):
                whole = int | float if isinstance(each.default, float) else int
                above = isinstance(value, whole) and not isinstance(value, bool) and 0 < value < math.inf
                if not above and not (each.name == "queue" and value == 0):
                    raise BadOptions(f"{each.name} must be a number above 0, not {value!r}")

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """From the table `service` of shoal.toml: everything but paths, Redis and prices. Raises `BadOptions`."""
        known = {each.name for each in fields(cls)} - {"keys_path", "ledger_path", "redis_url", "prices"}
        if unknown := sorted(raw.keys() - known):
            raise BadOptions(f"service has no option {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
        return cls(**raw)
