"""Questions that keep coming, as entries for the FAQ (R7): how often each was asked, with the answer kept for it.

Kept traces say how often (by hash, or as text where that is kept), the log of answers on disk says what was answered;
both outlive the process. What the FAQ or a follow-up's history answered, and answers retracted or expired, are left
out. Nothing is promoted by itself: a person reads the file, then imports it.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..cache.cold import ColdLog
from .decision import Route
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
    """Questions asked at least so many times in the traces that are kept, most frequent first, without `known` ones."""
    asked = _asked(traces, tenant)
    newest = {_hash(entry.prompt): entry for entry in answers.entries() if entry.tenant == tenant and entry.prompt}
    rows = [
        Suggestion(question=entry.prompt.strip(), answer=entry.text.strip(), times=asked[key])
        for key, entry in newest.items()
        if asked[key] >= at_least
    ]
    return sorted((row for row in rows if not known(row.question)), key=lambda row: (-row.times, row.question))


def _asked(traces: TraceStore, tenant: str) -> Counter[str]:
    """How often each question, by hash, was answered by anything but the FAQ."""
    asked: Counter[str] = Counter()
    for row in traces.newest(tenant=tenant, limit=LOOKED_AT):
        record = traces.get(row["id"], tenant=tenant) if row["route"] != Route.FAQ.value else None
        if record is not None:
            asked[str(record.prompt.get("sha256"))] += 1
    return asked


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def write(rows: list[Suggestion], path: Path) -> None:
    """A JSONL file that `shoal faq import` reads."""
    lines = [json.dumps({"question": row.question, "answer": row.answer}, ensure_ascii=False) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
