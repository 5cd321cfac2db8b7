"""One request as it is kept: the router's trace (R8) and, in mode `full`, the decisions of every token (G7).

Text of the prompt is replaced by its hash, and text of passages left out, unless the record is made to keep it. The
answer's own tokens are part of a full trace. Knows no files.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from ...gated_llm.errors import TraceError
from ...gated_llm.trace import DepthTrace
from ..decision import Answer, Request

FORM = 1
_MOST = 64 * 1024 * 1024  # bytes a record may unpack to


class Mode(StrEnum):
    """How much of a request is kept: nothing, the trace with its depth report, or every token's decisions too."""

    OFF = "off"
    LIGHT = "light"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A kept request. `at`: seconds since 1970; `trace`: the router's, as JSON; `tokens` only in mode `full`.

    `prompt`: `{"sha256", "characters"}` of the last turn, `{"turns"}`, how many messages there were with it and a
    system message, and `{"messages"}` where text is kept.
    """

    id: str
    tenant: str
    at: float
    prompt: Mapping[str, Any]
    trace: Mapping[str, Any]
    tokens: DepthTrace | None = None

    @property
    def mode(self) -> Mode:
        return Mode.LIGHT if self.tokens is None else Mode.FULL

    @classmethod
    def of(cls, request: Request, answer: Answer, *, at: float, keep_text: bool = False) -> Self:
        """The record of an answered request."""
        trace = answer.trace.to_dict()
        prompt: dict[str, Any] = {
            "sha256": hashlib.sha256(request.text.encode()).hexdigest(),
            "characters": len(request.text),
            "turns": len(request.messages),
        }
        if keep_text:
            prompt["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
        else:
            trace["passages"] = {
                kind: [{name: value for name, value in passage.items() if name != "text"} for passage in passages]
                for kind, passages in trace["passages"].items()
                if kind != "fused"
            }
        return cls(id=answer.trace.id, tenant=request.tenant, at=at, prompt=prompt, trace=trace, tokens=answer.tokens)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what `GET /v1/traces/{id}` and `shoal trace show --json` give. The tenant is not told."""
        return {
            "form": FORM,
            "id": self.id,
            "at": self.at,
            "mode": self.mode.value,
            "prompt": dict(self.prompt),
            "trace": dict(self.trace),
            "tokens": None if self.tokens is None else self.tokens.to_dict(),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, tenant: str = "") -> Self:
        """What `to_dict` made. Raises TraceError for another form or damaged data."""
        form = raw.get("form") if isinstance(raw, Mapping) else None
        if form != FORM:
            raise TraceError(
                f"This record has form {form!r}; this version of Shoal reads form {FORM}. "
                "Show it with the version that made it, or ask again."
            )
        try:
            tokens = raw["tokens"]
            record = cls(
                id=str(raw["id"]),
                tenant=tenant,
                at=float(raw["at"]),
                prompt=dict(raw["prompt"]),
                trace=dict(raw["trace"]),
                tokens=None if tokens is None else DepthTrace.from_dict(tokens),
            )
            for name in ("route", "decision", "cache", "depth", "steps", "latency_ms", "layer_tokens"):
                record.trace[name]
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"The record is damaged ({type(error).__name__}): ask again to make another.") from error
        return record

    def pack(self) -> bytes:
        """As the store keeps it."""
        return zlib.compress(json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":")).encode(), 6)

    @classmethod
    def unpack(cls, body: bytes, *, tenant: str) -> Self:
        """What `pack` made. Raises TraceError."""
        try:
            raw = json.loads(zlib.decompressobj().decompress(body, _MOST))
        except (zlib.error, ValueError) as error:
            raise TraceError("The record cannot be unpacked: it was damaged on disk.") from error
        return cls.from_dict(raw, tenant=tenant)

    @classmethod
    def read(cls, text: str) -> Self:
        """A record from JSON or base64 of JSON, as the service and the command line give them. Raises TraceError."""
        try:
            return cls.from_dict(json.loads(text if text.lstrip().startswith("{") else base64.b64decode(text)))
        except ValueError as error:
            raise TraceError("This is neither a trace as JSON nor base64 of one.") from error


def encoded(record: Mapping[str, Any]) -> str:
    """Base64 of a record's JSON."""
    return base64.b64encode(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()).decode()
