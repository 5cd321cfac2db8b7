"""Plain frozen data that every part of the router speaks: request, decision, trace, answer.

Knows no model, no cache and no I/O. Field names are the ones users see in JSON (R8); depths are in layers, times in ms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Self

from .errors import InvalidRequest

if TYPE_CHECKING:
    from ..gated_llm.trace import DepthTrace

TRACE_VERSION = 1
ROLES = frozenset({"system", "user", "assistant"})
TRACE_MODES = ("off", "light", "full")


class Route(StrEnum):
    """Where an answer comes from, shallowest first. `CACHE` is reported, never decided."""

    FAQ = "faq"
    CACHE = "cache"
    EXTRACT = "extract"
    DIRECT = "direct"
    RAG = "rag"
    DEEP = "deep"


class State(StrEnum):
    """What a user interface may show about how the conversation is being thought about."""

    THINKING_FAST = "thinking_fast"
    ANALYSING_DEEPLY = "analysing_deeply"
    STEADY = "steady"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged:
    """An event: the conversation entered `state` after `skip_rates`, its last answers."""

    state: State
    skip_rates: tuple[float, ...]

    def to_dict(self) -> dict[str, object]:
        return {"event": "state", "state": self.state.value, "skip_rates": [round(rate, 4) for rate in self.skip_rates]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    content: str

    def __post_init__(self) -> None:
        if not isinstance(self.role, str) or self.role not in ROLES:
            raise InvalidRequest(f"role must be one of {sorted(ROLES)}, not {str(self.role)[:20]!r}", "messages")
        if not isinstance(self.content, str):
            raise InvalidRequest(f"content must be text, not {type(self.content).__name__}", "messages")
        if any("\ud800" <= char <= "\udfff" for char in self.content):
            raise InvalidRequest("content is not valid Unicode text: it holds half a character; send UTF-8", "messages")


Prompt = str | Sequence[Message | Mapping[str, Any]]
MaxDepth = int | str | None


def check_thumb(answer_id: object, up: object, tenant: object) -> None:
    """Raises `InvalidRequest` naming the part of a thumb that has the wrong type."""
    for name, value, kind in (("answer_id", answer_id, str), ("up", up, bool), ("tenant", tenant, str)):
        if not isinstance(value, kind):
            wanted = "true or false" if kind is bool else "text"
            raise InvalidRequest(f"{name} must be {wanted}, not {type(value).__name__}", name)


def messages_of(prompt: Prompt) -> tuple[Message, ...]:
    """Text or chat messages as a tuple of `Message`; raises `InvalidRequest` when empty or the last turn is blank."""
    if isinstance(prompt, str):
        messages = [Message(role="user", content=prompt)]
    elif isinstance(prompt, Sequence):
        messages = [m if isinstance(m, Message) else _message(m) for m in prompt]
    else:
        raise InvalidRequest("a prompt is text or a list of messages with role and content", "messages")
    if not messages or not messages[-1].content.strip():
        raise InvalidRequest("the request is empty: send some text in the last message", "messages")
    return tuple(messages)


def _message(raw: object) -> Message:
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"a message has role and content, not {type(raw).__name__}", "messages")
    missing = {"role", "content"} - set(raw)
    if missing:
        raise InvalidRequest(f"a message needs role and content; {', '.join(sorted(missing))} missing", "messages")
    return Message(role=str(raw["role"]), content=raw["content"])


def _within(name: str, value: float | None, low: float, high: float, param: str | None = None) -> None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and (not known or not isfinite(value) or not low <= value <= high):
        bounds = f"between {low:g} and {high:g}" if isfinite(high) else f"a number from {low:g} up"
        raise InvalidRequest(f"{name} must be {bounds}, not {str(value)[:20]}", param or name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheControl:
    """What the caller allows the answer cache to do (C5). `sampled` also stores answers drawn at a temperature."""

    read: bool = True
    write: bool = True
    max_age_s: float | None = None
    sampled: bool = False

    def __post_init__(self) -> None:
        for name in ("read", "write", "sampled"):
            if not isinstance(getattr(self, name), bool):
                kind = type(getattr(self, name)).__name__
                raise InvalidRequest(f"cache: {name} must be true or false, not {kind}", "cache")
        _within("max_age_s", self.max_age_s, 0.0, inf, "cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, checked when made. `max_depth` None or "auto" leaves the budget to the router.

    `schema`: a JSON schema that the answer must fit, so that only the model or an answer made for it will do. `trace`:
    how much of it is kept, "off", "light" or "full" (G7); None leaves that to the setting.
    """

    messages: tuple[Message, ...]
    tenant: str = "default"
    max_depth: MaxDepth = None
    profile: str = "balanced"
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    cache: CacheControl = CacheControl()
    schema: Mapping[str, Any] | None = None
    trace: str | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.messages, tuple) or not all(isinstance(m, Message) for m in self.messages):
            raise InvalidRequest("messages must be a tuple of Message; Request.of takes text and lists", "messages")
        if not self.messages:
            raise InvalidRequest("messages must not be empty", "messages")
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if (value is not None or name in _NEEDED) and (not isinstance(value, kind) or isinstance(value, bool)):
                raise InvalidRequest(f"{name} must be {kind.__name__}, not {type(value).__name__}", name)
        if not self.tenant or len(self.tenant) > 128:
            raise InvalidRequest("tenant must be 1 to 128 characters", "tenant")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, not {self.max_tokens}", "max_tokens")
        _within("temperature", self.temperature, 0.0, 2.0)
        _within("top_p", self.top_p, 0.0, 1.0)
        if self.schema is not None and not isinstance(self.schema, Mapping):
            raise InvalidRequest(f"schema must be a JSON object, not {type(self.schema).__name__}", "schema")
        if self.stop is not None and any(not isinstance(s, str) or not s for s in self.stop):
            raise InvalidRequest("stop must be strings that are not empty", "stop")
        if self.trace is not None and self.trace not in TRACE_MODES:
            raise InvalidRequest(
                f"trace must be one of {', '.join(TRACE_MODES)}, not {str(self.trace)[:20]!r}", "trace"
            )

    @classmethod
    def of(cls, prompt: "Prompt | Request", **fields: Any) -> Self:
        """A request from text, messages or a ready request (fields then replace its own)."""
        if isinstance(prompt, Request):
            own = {name: getattr(prompt, name) for name in cls.__slots__}
            return cls(**{**own, **fields})
        if isinstance(fields.get("stop"), str):
            fields["stop"] = (fields["stop"],)
        elif isinstance(fields.get("stop"), Sequence):
            fields["stop"] = tuple(fields["stop"])
        return cls(messages=messages_of(prompt), **fields)

    @property
    def text(self) -> str:
        """The last turn: what is being asked."""
        return self.messages[-1].content

    @property
    def history(self) -> tuple[Message, ...]:
        return self.messages[:-1]


# What a field of a request must be, where it is given; bool is no number here.
_KINDS: Mapping[str, type] = {
    "tenant": str, "profile": str, "max_tokens": int, "stop": tuple, "seed": int, "cache": CacheControl,
    "request_id": str,
}  # fmt: skip
_NEEDED = frozenset({"tenant", "profile", "cache"})  # never None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where a request should go and how deep it may think (R1, R2).

    `budget` is in layers out of `total`; `bucket` is the budget's range as cache keys use it; `reasons` are for people;
    `deepest` is what a second try may use (R9), None for all layers.
    """

    route: Route
    budget: float
    total: int
    bucket: str
    confidence: float
    cacheable: bool
    profile: str = "balanced"
    reasons: tuple[str, ...] = ()
    deepest: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "route": self.route.value,
            "budget": self.budget,
            "bucket": self.bucket,
            "confidence": round(self.confidence, 4),
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened to a request, in order: `name`, how long it took, and what it found."""

    name: str
    ms: float
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "ms": round(self.ms, 3), "detail": dict(self.detail)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The one record of a request (R8), the same in Python, CLI, HTTP, LangChain and LlamaIndex.

    `kept` and `dropped` are passages; `fused` is the text with citations that the model read, made of those kept.
    `experience` is the conversation's state after it (R6): "thinking_fast", "analysing_deeply" or "steady".
    """

    id: str
    route: Route
    decision: Decision
    steps: tuple[Step, ...]
    depth: Mapping[str, Any]
    tier: str | None
    latency_ms: float
    layer_tokens: float
    kept: tuple[Mapping[str, Any], ...] = ()
    dropped: tuple[Mapping[str, Any], ...] = ()
    fused: str = ""
    experience: str = "steady"
    version: int = TRACE_VERSION

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "id": self.id,
            "route": self.route.value,
            "decision": {**self.decision.to_dict(), "profile": self.decision.profile, "total": self.decision.total},
            "cache": {"tier": self.tier},
            "passages": {
                "kept": [dict(p) for p in self.kept],
                "dropped": [dict(p) for p in self.dropped],
                "fused": self.fused,
            },
            "depth": dict(self.depth),
            "layer_tokens": self.layer_tokens,
            "latency_ms": round(self.latency_ms, 3),
            "experience": self.experience,
            "steps": [step.to_dict() for step in self.steps],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Text with the trace that explains it. `finish_reason` is "stop", "length" or "cancelled", or what
    a remote model said of itself: "content_filter" or "error".

    `tokens`: every token's decisions, for a request with `trace="full"` that the local model answered. `event`: where
    this answer changed how the conversation is being thought about (R6).
    """

    text: str
    trace: Trace
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens: "DepthTrace | None" = None
    event: StateChanged | None = None

    @property
    def route(self) -> Route:
        return self.trace.route

    def to_dict(self) -> dict[str, Any]:
        """The JSON that `shoal ask --json` prints."""
        depth, decision = self.trace.depth, self.trace.decision
        return {
            "text": self.text,
            "route": self.trace.route.value,
            "depth": {name: depth[name] for name in ("max", "mean", "total")},
            "budget": decision.budget,
            "bucket": decision.bucket,
            "cache": {"tier": self.trace.tier},
            "latency_ms": round(self.trace.latency_ms, 3),
            "trace": self.trace.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of a streamed answer; `depth` is the deepest token so far (G6).

    The last one carries the answer, and the event where it changed how the conversation is being thought about (R6).
    """

    text: str
    depth: float
    answer: Answer | None = None
    event: StateChanged | None = None
