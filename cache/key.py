"""Cache keys (C3): a canonical form of the whole request, hashed, with the tenant as a hard partition.

Two requests have the same key exactly when nothing that could change the answer differs. Messages are folded (`fold`)
and their white space collapsed, except inside code (fenced, in back ticks, or indented lines), which stays as it is,
and so does everything beside the messages: a stop string may well be a line feed. A text of three lines and more keeps
them: it may be a table, verses, or code that nobody marked. The depth budget is not part of the
key (the bucket stands beside it), nor are fields that only change how an answer is sent.

The *scope* is the key without the last user turn: system prompt, earlier turns, sampling, tools, fingerprints,
tenant. Two requests may be compared by meaning only inside one scope, so a follow-up ("how old is he") can meet
another one only after exactly the same conversation, and no tenant ever sees another's entries. Knows nothing of
tiers.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import CacheInputError
from .fold import CODE, fold

Prompt = str | Sequence[Mapping[str, Any]]

# How an answer is sent, who pays, what the cache may do: none of it changes the answer.
_DELIVERY = """stream stream_options user metadata cache cache_control no_cache no_store max_age tenant timeout store
max_depth budget depth trace headers extra_headers prompt"""
IGNORED = frozenset(_DELIVERY.split())
_CODE = re.compile(f"({CODE.pattern})", re.DOTALL)
_SPACE = re.compile(r"\s+")
_BREAK = re.compile(r"\s*[\n\r]\s*")
_WRAPPED = 1  # line breaks that may come of a narrow window
_INDENTED = re.compile(r"[\n\r](?: {2,}| *\t[ \t]*)\S")
SEMANTIC_MAX_CHARS = 600
_LONGEST_INT = 1024  # bits; no float is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """Where an answer lives. `hash` and `scope` are hex; `text` is the last user turn, None where it must be exact."""

    hash: str
    scope: str
    tenant: str
    model: str
    kb: str
    embedder: str
    text: str | None


def normal_text(text: str) -> str:
    """Folded, with single spaces, outside code and indented lines; surrogate pairs joined; ends trimmed. Line breaks
    are kept where there is more than one."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if _pairs(text) else text
    parts = _CODE.split(text.strip())
    free = [i for i in range(0, len(parts), 2) if not _INDENTED.search(parts[i])]
    for i in free:
        parts[i] = fold(parts[i])
    parts[0], parts[-1] = parts[0].lstrip(), parts[-1].rstrip()
    lines = sum(len(_BREAK.findall(parts[i])) for i in free) > _WRAPPED
    for i in free:
        rows = _BREAK.split(parts[i]) if lines else [parts[i]]
        parts[i] = "\n".join(_SPACE.sub(" ", row) for row in rows)
    return "".join(parts).strip()


def _pairs(text: str) -> bool:
    """Whether every surrogate is half of a pair, so that joining loses nothing."""
    try:
        text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return False
    return True


def _canonical(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if value.bit_length() > _LONGEST_INT:
            raise CacheInputError(f"{path} has more than {_LONGEST_INT} bits; such a request cannot be cached")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CacheInputError(f"{path} is {value}; a request with such a number cannot be cached")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(k): _canonical(v, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_canonical(item, f"{path}[{i}]") for i, item in enumerate(value)]
    raise CacheInputError(f"{path} is a {type(value).__name__}; only JSON values can be part of a cache key")


def _content(content: Any, path: str) -> Any:
    """A list of text parts is the same as the joined text; anything else keeps its shape."""
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        parts = list(content)
        if parts and all(isinstance(p, Mapping) and p.get("type") == "text" for p in parts):
            return normal_text("".join(str(p.get("text", "")) for p in parts))
    return normal_text(content) if isinstance(content, str) else _canonical(content, path)


def messages_of(prompt: Prompt) -> list[dict[str, Any]]:
    """The prompt as canonical messages; a plain string is one user turn. Raises `CacheInputError` on other shapes."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": normal_text(prompt)}]
    given = [m for m in prompt if isinstance(m, Mapping)] if isinstance(prompt, Sequence) else []
    if not given or len(given) != len(prompt):
        raise CacheInputError("a prompt must be a string or a non-empty list of {'role', 'content'} messages")
    messages = []
    for i, message in enumerate(given):
        if not isinstance(message.get("role"), str):
            raise CacheInputError(f"message {i} has no role; give each message a 'role' and a 'content'")
        rest = {k: v for k, v in message.items() if k != "content" and v is not None}
        content = _content(message.get("content"), f"messages[{i}].content")
        messages.append({**_canonical(rest, f"messages[{i}]"), "content": content})
    return messages


def _params(request: Mapping[str, Any] | None) -> dict[str, Any]:
    params = {k: v for k, v in (request or {}).items() if k not in IGNORED and k != "messages" and v is not None}
    if not params.get("temperature"):  # greedy: the seed and the sampling levers change nothing
        for name in ("temperature", "seed", "top_p", "top_k", "min_p"):
            params.pop(name, None)
    if params.get("stop") in ("", [], ()):
        params.pop("stop")
    if isinstance(params.get("stop"), str):
        params["stop"] = [params["stop"]]
    canonical: dict[str, Any] = _canonical(params, "request")
    return canonical


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def key_of(
    prompt: Prompt | None = None,
    *,
    request: Mapping[str, Any] | None = None,
    tenant: str = "default",
    model: str = "",
    kb: str = "",
    embedder: str = "",
) -> CacheKey:
    """Key of a request: `prompt` (or `request["messages"]`) plus everything else in `request` that changes an answer.

    `model` is the fingerprint of model and gates; give `kb` and `embedder` only for answers that used them.
    Raises `CacheInputError` for prompts or values that have no canonical form.
    """
    if prompt is None:
        prompt = (request or {}).get("messages")
    if prompt is None:
        raise CacheInputError("nothing to look up: give a prompt or a request with 'messages'")
    for name, value in (("tenant", tenant), ("model", model), ("kb", kb), ("embedder", embedder)):
        if not isinstance(value, str):
            raise CacheInputError(f"{name} must be a string, got {type(value).__name__}")
    if not tenant:
        raise CacheInputError("tenant must not be empty: entries of all tenants would meet")
    try:
        messages, params = messages_of(prompt), _params(request)
    except RecursionError:
        raise CacheInputError("the request is nested too deeply to be cached; flatten it") from None
    where = [tenant, model, kb, embedder, params]
    last = messages[-1]
    plain = last["role"] == "user" and isinstance(last["content"], str) and set(last) <= {"role", "content"}
    short = plain and 0 < len(last["content"]) <= SEMANTIC_MAX_CHARS
    text = last["content"] if short and not _INDENTED.search(last["content"]) else None
    return CacheKey(
        hash=_digest(["key", *where, messages]),
        scope=_digest(["scope", *where, messages[:-1]]),
        tenant=tenant,
        model=model,
        kb=kb,
        embedder=embedder,
        text=text,
    )


_DANGLING = frozenset("it its that those these they them he him his she her hers this ones one".split())  # noqa: SIM905
_DANGLING_HAN = ("它", "他", "她", "这个", "那个", "这样", "那样", "上面", "刚才", "之前说", "那它", "那么呢")
_OPENERS = ("and ", "what about", "how about", "but ", "also ", "then ", "so ", "那", "还有呢", "然后呢")


def semantic_text(text: str | None) -> str | None:
    """What may be compared by meaning: None for texts that lean on something unsaid ("how old is he", "那它呢",
    "commit it").

    Such a text means something else in every conversation. With its conversation in the scope it still hits exactly.
    """
    if not text:
        return None
    lower = text.lower()
    words = re.findall(r"[a-z']+|[\u3400-\u9fff]", lower)
    short = len(words) <= 8
    leaning = (
        lower.startswith(_OPENERS)
        or text.endswith("呢")
        or (bool(_DANGLING & set(words)) or any(w in text for w in _DANGLING_HAN))
    )
    return None if short and leaning else text
