"""Questions that keep coming, as entries for the FAQ (R7): how often each was asked, with the answer kept for it.

Kept traces say how often (by hash, or as text where that is kept), the log of answers on disk says what was answered;
both outlive the process. An entry must make sense alone, so only questions without a system message or earlier turns
count, both where they were asked and where they were answered; what the FAQ answered, what had to fit a schema, and
answers retracted or expired are left out. Nothing is promoted by itself: a person reads the file, then imports it.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..cache.cold import ColdLog
from ..cache.key import semantic_text
from .decision import Route
from .features import read_hints
from .traces import TraceStore

LOOKED_AT = 100_000  # newest traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A question asked `times` times, and the newest answer kept for it."""

    question: str
    answer: str
    times: int

    def to_dict(self) -> dict[str, Any]:
        return {"question": self.question, "answer": self.answer, "times": self.times}


def suggestions(
    traces: TraceStore,
    answers: ColdLog,
    *,
    at_least: int = 10,
    tenant: str = "default",
    known: Callable[[str], bool] = lambda question: False,
) -> list[Suggestion]:
    """Questions asked at least so many times in the traces that are kept, most frequent first, without `known` ones.

    Depth tags are no part of a question: with and without them it counts as the same one.
    """
    asked = _asked(traces, tenant)
    alone = {row["id"] for row in answers.requests() if _alone(row["request"])}
    newest: dict[str, str] = {}
    times: Counter[str] = Counter()
    for entry in answers.entries():
        question = read_hints(entry.prompt)[0]
        if entry.tenant == tenant and entry.id in alone and semantic_text(question) is not None:
            newest[question] = entry.text.strip()
            times[question] += asked.pop(_hash(entry.prompt), 0)
    rows = [
        Suggestion(question=question, answer=answer, times=times[question])
        for question, answer in newest.items()
        if times[question] >= at_least and not known(question)
    ]
    return sorted(rows, key=lambda row: (-row.times, row.question))


def _alone(request: Mapping[str, Any] | None) -> bool:
    """Whether the logged request is a question and nothing else that its answer could depend on."""
    messages = (request or {}).get("messages") or []
    return len(messages) == 1 and messages[0]["role"] == "user" and not (request or {}).get("schema")


def _asked(traces: TraceStore, tenant: str) -> Counter[str]:
    """How often each question, by hash, was asked alone and answered by anything but the FAQ."""
    asked: Counter[str] = Counter()
    for row in traces.newest(tenant=tenant, limit=LOOKED_AT):
        record = traces.get(row["id"], tenant=tenant) if row["route"] != Route.FAQ.value else None
        if record is not None and record.prompt.get("turns") == 1:
            asked[str(record.prompt.get("sha256"))] += 1
    return asked


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def write(rows: list[Suggestion], path: Path) -> None:
    """A JSONL file that `shoal faq import` reads."""
    lines = [json.dumps({"question": row.question, "answer": row.answer}, ensure_ascii=False) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
