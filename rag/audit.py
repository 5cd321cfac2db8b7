"""Audit of a knowledge base: what is hard to read is split, what stays hard is set aside, never deleted (A5).

Every document has the mean depth score of its passages. One below the limit is cut into atomic units, a sentence or a
few with the headings above them, and each unit is scored again; units still below the limit go to the quarantine: out
of every search, kept with vector and reading, and brought back by `restore`. Documents themselves stay whole, so
citations keep pointing into them. What the scorer cannot judge stays as it is. Depends on text, splitter, scorer and
limit alone: run twice, it changes nothing; killed, it goes on. Knows no model: the score is handed in.
"""

import hashlib
import json
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .audit_recall import Asked, K, answered, holes
from .audit_scenarios import scenarios
from .audit_scores import DepthScore, ScoreFile
from .chunk import Chunk, Splitter
from .document import Document, file_name
from .errors import RagError
from .ingest import EncodeAll, passage_text
from .store import Store

ALLOWED = 0.01  # share of questions that may lose their answer before everything is put back
LIMIT = 0.1  # calibrated depth score below which a text is hard: the hardest tenth of the reference texts
UNIT = 48  # rough tokens of an atomic unit at most
PASSAGES = 4  # of a document, spread over it, that its score is taken from
BINS = 20
_BATCH = 64  # documents read, split and written together
_LISTED = 200  # quarantined passages and hardest documents in a report, at most
_SHOWN = 240  # characters of them

Progress = Callable[[str, float, float], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A document's depth score, 0 to 1, high = easy, NaN = not known, and where it came from."""

    doc_id: str
    score: float
    where: str
    text: str  # its beginning


@dataclass(slots=True, kw_only=True)
class Audit:
    """One audit of one store. `search` gives the passages found for a question; `folder` keeps scores and report."""

    store: Store
    splitter: Splitter
    encode_all: EncodeAll
    search: Callable[[str], Sequence[str]]
    folder: Path
    score: DepthScore
    limit: float = LIMIT
    allowed: float = ALLOWED
    progress: Progress = field(default=lambda what, done, total: None)
    units: Splitter = field(init=False)
    _scores: ScoreFile = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.limit <= 1:
            raise RagError(f"the limit is {self.limit:g}; a depth score lies between 0 and 1")
        self.units = Splitter(size=min(UNIT, self.splitter.size))
        self._scores = ScoreFile(self.folder / "scores.sqlite", self.score)

    def run(self, asked: Sequence[Asked] | None = None, *, dry_run: bool = False) -> dict[str, Any]:
        """Audit, and give the report, JSON-ready; it is also `report.json` in the folder, of a dry run `dry-run.json`.

        `asked`: questions that answer recall is measured with before and after; without them, sentences with a hole.
        Where more than `allowed` of them lose their answer, everything goes back in and the report says so.
        `dry_run`: score everything and change nothing. Raises RagError for an empty knowledge base.
        """
        began = time.monotonic()
        try:
            if not self.store.counts()[0]:
                raise RagError("the knowledge base is empty: add documents first (shoal kb add PATH)")
            before = self._before(asked, dry_run)
            judged = self._judge()
            hard = sorted((one for one in judged if one.score < self.limit), key=lambda one: (one.score, one.doc_id))
            units = self._units([one.doc_id for one in hard])
            if not dry_run:
                self._place({one.doc_id for one in hard}, units)
            recall = self._after(before, dry_run)
            undone = "after" in recall and recall["before"] - recall["after"] > self.allowed
            if undone:
                self._place(set(), {})
            labels = self._label(dry_run)
        finally:
            self._scores.close()
        report = {
            "format": 1,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "scorer": self.score.fingerprint,
            "limit": self.limit,
            "dry_run": dry_run,
            "undone": undone,
            "documents": self._counts(judged, units),
            "size": {"before": before["size"], "after": self.store.size(), "quarantined": self.store.size(aside=True)},
            "depth": self._depth(judged, units, labels),
            "hardest": [
                {
                    **asdict(one),
                    "score": round(one.score, 4),
                    "quarantined": sum(s < self.limit for s in units[one.doc_id]),
                }
                for one in hard[:_LISTED]
            ],
            "recall": recall,
            "quarantine": self._quarantine(),
            "seconds": round(time.monotonic() - began, 1),
        }
        _write(self.folder / ("dry-run.json" if dry_run else "report.json"), report)
        if not dry_run:
            (self.folder / "state.json").unlink(missing_ok=True)
        return report

    # before

    def _before(self, asked: Sequence[Asked] | None, dry_run: bool) -> dict[str, Any]:
        """Size and recall before anything changed; an audit that was killed takes them from where it began."""
        kept = self.folder / "state.json"
        if kept.exists() and not dry_run:
            state: dict[str, Any] = json.loads(kept.read_text("utf-8"))
            if (state["given"], state.get("documents")) == (_rows(asked), self._held()):
                return state
        posed = holes(self._documents(), self.store.rarity) if asked is None else asked
        found = answered(posed, self.search, lambda done, all_: self.progress("asking before", done, all_))
        state = {
            "size": self.store.size(),
            "given": _rows(asked),
            "documents": self._held(),
            "recall": {"kind": "holes" if asked is None else "questions", "asked": _rows(posed), "found": found},
        }
        if not dry_run:
            _write(kept, state)
        return state

    def _held(self) -> str:
        """Changes with the documents, not with their passages."""
        return hashlib.sha256(json.dumps(list(self.store.digests())).encode()).hexdigest()[:24]

    def _documents(self) -> Iterator[Document]:
        for doc_id, _ in self.store.digests():
            if (document := self.store.document(doc_id)) is not None:
                yield document

    # scores

    def _judge(self) -> list[Judged]:
        judged: list[Judged] = []
        total = self.store.counts()[0]
        for wave in _batches(_batches(self._documents(), _BATCH), self._scores.wave):
            passages = [[_spread(self.splitter.split(one.text, one.doc_id)) for one in batch] for batch in wave]
            told = partial(self._scored, len(judged), sum(map(len, wave)), total)
            scored = self._scores.many([*map(_texts, wave, passages)], told)
            for batch, cut, scores in zip(wave, passages, map(iter, scored), strict=True):
                judged += [_judged(one, chunks, scores) for one, chunks in zip(batch, cut, strict=True) if chunks]
            self.progress("scoring documents", len(judged), total)
        return judged

    def _scored(self, before: int, size: int, total: int, done: int, of: int) -> None:
        self.progress("scoring documents", before + size * done / of, total)

    def _units(self, doc_ids: Sequence[str]) -> dict[str, list[float]]:
        """Scores of the units of the documents, in order."""
        found: dict[str, list[float]] = {}
        hard = (one for one in map(self.store.document, doc_ids) if one is not None)
        for wave in _batches(_batches(hard, _BATCH), self._scores.wave):
            units = [[self.units.split(one.text, one.doc_id) for one in batch] for batch in wave]
            scored = self._scores.many([*map(_texts, wave, units)])
            for batch, cut, scores in zip(wave, units, map(iter, scored), strict=True):
                found |= {one.doc_id: [next(scores) for _ in part] for one, part in zip(batch, cut, strict=True)}
            self.progress("scoring units of hard documents", len(found), len(doc_ids))
        return found

    # what is searched

    def _place(self, hard: set[str], scores: dict[str, list[float]]) -> None:
        """Every document in the form it should have: its passages if easy, its units, some set aside, if hard."""
        placed, back = self.store.placed(), self.store.restored()
        done, total = 0, self.store.counts()[0]
        for batch in _batches(self._documents(), max(_BATCH, self.encode_all.batch // PASSAGES)):
            changed: list[tuple[Document, list[Chunk]]] = []
            aside: dict[str, float] = {}
            for document in batch:
                splitter = self.units if document.doc_id in hard else self.splitter
                chunks = splitter.split(document.text, document.doc_id)
                out = {
                    chunk.chunk_id: score
                    for chunk, score in zip(chunks, scores.get(document.doc_id, ()), strict=False)
                    if score < self.limit and chunk.chunk_id not in back
                }
                kept = frozenset(chunk.chunk_id for chunk in chunks) - set(out)
                if placed.get(document.doc_id) != (kept, frozenset(out)):
                    changed.append((document, chunks))
                    aside |= out
            if changed:
                made = self.encode_all([(document.title, chunks) for document, chunks in changed])
                ready = [(document, encoded) for (document, _), encoded in zip(changed, made, strict=True)]
                self.store.replace(ready, aside=aside)
            done += len(batch)
            self.progress("splitting and setting aside", done, total)

    def _label(self, dry_run: bool) -> dict[str, str]:
        """The scenario of each document, the commonest of its passages; passages keep theirs as a label."""
        rows = list(self.store.passages())
        if not rows:
            return {}
        self.progress("naming scenarios", 0, 1)
        found = scenarios([text for _, _, text, _ in rows], np.stack([vector for *_, vector in rows]))
        labels = [(chunk_id, doc_id, label) for (chunk_id, doc_id, _, _), label in zip(rows, found, strict=True)]
        if not dry_run and sorted(labels) != self.store.scenarios():
            self.store.set_scenarios(labels)
        by_document: dict[str, Counter[str]] = defaultdict(Counter)
        for _, doc_id, label in labels:
            by_document[doc_id][label] += 1
        self.progress("naming scenarios", 1, 1)
        return {doc_id: count.most_common(1)[0][0] for doc_id, count in by_document.items()}

    # report

    def _counts(self, judged: Sequence[Judged], units: dict[str, list[float]]) -> dict[str, int]:
        hard = list(units.values())
        return {
            "all": len(judged),
            "easy": sum(one.score >= self.limit for one in judged),
            "not_scored": sum(math.isnan(one.score) for one in judged),
            "split": len(hard),
            "split_wholly_hard": sum(all(score < self.limit for score in scores) for scores in hard),
            "units": sum(map(len, hard)),
            "hard_units": sum(score < self.limit for scores in hard for score in scores),
        }

    def _depth(self, judged: Sequence[Judged], units: dict[str, list[float]], labels: dict[str, str]) -> dict[str, Any]:
        easy = [one.score for one in judged if one.score >= self.limit]
        kept = [score for scores in units.values() for score in scores if score >= self.limit]
        return {
            "bins": BINS,
            "before": _histogram([one.score for one in judged]),
            "after": _histogram([*easy, *kept]),
            "by_source": _grouped(judged, units, self.limit, {one.doc_id: one.where for one in judged}),
            "by_scenario": _grouped(judged, units, self.limit, labels),
        }

    def _after(self, before: dict[str, Any], dry_run: bool) -> dict[str, Any]:
        recall = before["recall"]
        asked = [Asked(question=one["question"], answers=tuple(one["answers"])) for one in recall["asked"]]
        report: dict[str, Any] = {"kind": recall["kind"] if asked else "none", "k": K, "asked": len(asked)}
        if not asked:
            return report
        report["before"] = round(sum(recall["found"]) / len(asked), 4)
        if dry_run:
            return report
        found = answered(asked, self.search, lambda done, all_: self.progress("asking after", done, all_))
        lost = [one for one, was, is_ in zip(asked, recall["found"], found, strict=True) if was and not is_]
        report["after"] = round(sum(found) / len(asked), 4)
        report["lost"] = _rows(lost[:_LISTED])
        return report

    def _quarantine(self) -> dict[str, Any]:
        found = sorted(self.store.quarantined(), key=lambda one: (one.score, one.chunk_id))
        shown = [
            {"id": one.chunk_id, "doc_id": one.doc_id, "span": [one.start, one.end], "score": round(one.score, 4),
             "text": one.text[:_SHOWN]}
            for one in found[:_LISTED]
        ]  # fmt: skip
        return {"passages": len(found), "hardest": shown}


def read_report(folder: Path) -> dict[str, Any] | None:
    """The last report in an audit's folder; None where there is none that can be read."""
    try:
        report: dict[str, Any] = json.loads((folder / "report.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return report


def _rows(asked: Sequence[Asked] | None) -> list[dict[str, Any]] | None:
    return None if asked is None else [{"question": one.question, "answers": list(one.answers)} for one in asked]


def _write(path: Path, value: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value, ensure_ascii=False) + "\n", "utf-8")
    os.replace(draft, path)


def _batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(items, size)):
        yield batch


def _texts(documents: Sequence[Document], cut: Sequence[Sequence[Chunk]]) -> list[str]:
    return [passage_text(one.title, chunk) for one, chunks in zip(documents, cut, strict=True) for chunk in chunks]


def _judged(document: Document, chunks: Sequence[Chunk], scores: Iterator[float]) -> Judged:
    """The document by the next scores, one of each chunk."""
    found = [(next(scores), chunk.end - chunk.start) for chunk in chunks]
    known = [one for one in found if not math.isnan(one[0])]
    return Judged(
        doc_id=document.doc_id,
        score=sum(score * size for score, size in known) / sum(size for _, size in known) if known else math.nan,
        where=_where(document),
        text=document.text[:_SHOWN],
    )


def _spread(chunks: Sequence[Chunk]) -> list[Chunk]:
    return [chunks[i] for i in np.linspace(0, len(chunks) - 1, min(PASSAGES, len(chunks))).astype(int)]


def _where(document: Document) -> str:
    """What a document is counted under: the file of a row, else the folder, else the kind of file."""
    name = file_name(document.doc_id, document.source)
    if name != document.doc_id:
        return name
    folder, slash, _ = name.rpartition("/")
    if slash:
        return f"{folder}/"
    return f"*{Path(name).suffix}" if document.source and Path(name).suffix else "texts"


def _histogram(scores: Sequence[float]) -> list[int]:
    known = [one for one in scores if not math.isnan(one)]
    counts: list[int] = np.histogram(np.clip(known, 0, 1), bins=BINS, range=(0, 1))[0].tolist()
    return counts


def _grouped(
    judged: Sequence[Judged], units: dict[str, list[float]], limit: float, names: dict[str, str]
) -> list[dict[str, Any]]:
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        groups[names.get(one.doc_id, "other")].append(one)
    rows = [
        {
            "name": name,
            "documents": len(members),
            "mean": _mean([one.score for one in members]),
            "hard": sum(one.doc_id in units for one in members),
            "hard_units": sum(score < limit for one in members for score in units.get(one.doc_id, ())),
            "scores": _histogram([one.score for one in members]),
        }
        for name, members in groups.items()
    ]
    return sorted(rows, key=lambda row: (row["mean"] is None, row["mean"] or 0.0, row["name"]))


def _mean(scores: Sequence[float]) -> float | None:
    known = [one for one in scores if not math.isnan(one)]
    return round(sum(known) / len(known), 4) if known else None
