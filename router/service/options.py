"""What an operator can set about the service: names, limits, timeouts. Plain data; reads no environment."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Sizes in bytes, times in seconds. Every limit is refused at the edge, before any work is done for the request.

    `aliases` are further model names that are accepted; `keys_path` is the key file (None: no keys, every caller is
    the local administrator). `concurrent` requests are worked on at once and `queue` more may wait `queue_s` each.
    """

    aliases: Sequence[str] = ("shoal",)
    keys_path: Path | None = None
    ledger_path: Path | None = None
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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not (value > 0 or (field.name == "queue" and value == 0)):
                raise ValueError(f"{field.name} must be above 0, not {value}")
