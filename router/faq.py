"""Direct answers from a list of frequent questions (R3): import, match, and reasons not to match.

Knows an embedder and a conflict check (negation, numbers, names; handed in, one implementation with the cache). A match
needs a fitted score, made of cosine, lead over the next entry and shared words; `train/faq_fit.py` fits it against a
false-answer budget. Entries live in one JSONL file; every change rewrites it whole or not at all.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from .errors import RouterError
from .faq_files import Entry, plain, read_entries, stored_entries
from .features import Embed, FloatArray, language_of

__all__ = [
    "Candidate",
    "Conflict",
    "Entry",
    "Faq",
    "ImportReport",
    "Match",
    "Scoring",
    "overlap",
    "plain",
    "read_entries",
]

Conflict = Callable[[str, str], str | None]
SCORING = Path(__file__).parent / "assets" / "faq.json"
_CANDIDATES = 8  # phrasings looked at
_LEAD = 0.15  # lead beyond which more says nothing: in a small FAQ every entry is far ahead of the next
_ASIDE = 0.05  # how much farther than a contradicted phrasing an entry may be: else that one was meant
MAX_ENTRIES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The entry that answers. `score`: fitted probability that it is right; `cosine`: nearness to `matched`."""

    entry_id: str
    question: str
    answer: str
    matched: str
    score: float
    cosine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    added: int
    updated: int
    unchanged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Fitted weights: probability that an entry is right = sigmoid(bias + weights · (cosine, lead, overlap))."""

    bias: float
    cosine: float
    lead: float
    overlap: float
    threshold: float

    @classmethod
    def shipped(cls) -> "Scoring":
        raw = json.loads(SCORING.read_text(encoding="utf-8"))
        return cls(**{name: float(raw[name]) for name in cls.__slots__})

    def probability(self, *, cosine: float, lead: float, overlap: float) -> float:
        """The fitted probability that an entry this near, so far ahead and with so many words shared is right."""
        z = self.bias + self.cosine * cosine + self.lead * lead + self.overlap * overlap
        return float(1 / (1 + np.exp(-z)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An entry that may answer: its closest phrasing, and how far it is ahead of the next entry."""

    entry: Entry
    phrasing: str
    cosine: float
    lead: float
    overlap: float
    same: bool

    def probability(self, scoring: Scoring) -> float:
        """The fitted probability that this entry is the right one; 1 for the same words."""
        if self.same:
            return 1.0
        return scoring.probability(cosine=self.cosine, lead=self.lead, overlap=self.overlap)


_STOP_TEXT = (
    "a an the is are was were be am do does did can could will would should may i my me we our you your it its to of "
    "in on at for with and or how what when where which who why there this that please from by as if have has had "
    "not no any some get"
)
_STOP = frozenset(_STOP_TEXT.split())


def words(text: str) -> frozenset[str]:
    """Content words of English, character pairs of Chinese."""
    text = plain(text)
    latin = {w for w in re.findall(r"[a-z0-9]+", text) if w not in _STOP}
    chinese = re.findall(r"[\u3400-\u9fff]+", text)
    return frozenset(latin | {run[i : i + 2] for run in chinese for i in range(max(1, len(run) - 1))})


def overlap(a: str, b: str) -> float:
    """Shared content words over all of them, 0 to 1; 0.3, a neutral value, across languages."""
    if language_of(a) != language_of(b):
        return 0.3
    x, y = words(a), words(b)
    return len(x & y) / max(1, len(x | y))


class Faq:
    """Entries with their embeddings. Safe to call from many threads; without a path it lives in memory only."""

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        embed: Embed,
        conflict: Conflict | None = None,
        path: str | Path | None = None,
        scoring: Scoring | None = None,
    ) -> None:
        self._embed, self._conflict = embed, conflict or (lambda a, b: None)
        self._file = Path(path) / "faq.jsonl" if path is not None else None
        self._scoring = scoring or Scoring.shipped()
        self._lock = threading.RLock()
        self._seen: tuple[int, int] | None = None
        self._vectors: dict[str, FloatArray] = {}
        self._entries: dict[str, Entry] = {}
        self._index: tuple[list[tuple[str, str]], FloatArray] | None = None
        self._refresh()
        own = list(entries)
        if own:
            self.add(own)

    @classmethod
    def open(
        cls, path: str | Path, *, embed: Embed, conflict: Conflict | None = None, scoring: Scoring | None = None
    ) -> "Faq":
        """The FAQ kept in the folder `path`; an empty one when there is none yet."""
        return cls(embed=embed, conflict=conflict, path=path, scoring=scoring)

    def __len__(self) -> int:
        self._refresh()
        return len(self._entries)

    def entries(self) -> tuple[Entry, ...]:
        self._refresh()
        return tuple(self._entries.values())

    def import_file(self, path: str | Path) -> ImportReport:
        """Adds the entries of a .csv, .jsonl or .md file, all or none; doing it again changes nothing.

        Raises RouterError (see `read_entries`).
        """
        return self.add(read_entries(Path(path)))

    def add(self, entries: Iterable[Entry]) -> ImportReport:
        """Adds entries, all or none; one with a known id takes the place of the old one.

        Raises RouterError when they are too many, OSError when they cannot be written.
        """
        with self._lock:
            self._refresh()
            all_of_them = self._entries.copy()
            added = updated = unchanged = 0
            for entry in entries:
                old = all_of_them.get(entry.id)
                added, updated, unchanged = (
                    added + (old is None),
                    updated + (old not in (None, entry)),
                    unchanged + (old == entry),
                )
                all_of_them[entry.id] = entry
            if len(all_of_them) > MAX_ENTRIES:
                raise RouterError(
                    f"an FAQ holds at most {MAX_ENTRIES} entries; put larger collections into a knowledge base"
                )
            if added or updated:
                self._keep(all_of_them)
            return ImportReport(added=added, updated=updated, unchanged=unchanged)

    def delete(self, entry_id: str) -> bool:
        """Removes an entry; False when there is none of that id."""
        with self._lock:
            self._refresh()
            found = entry_id in self._entries
            if found:
                self._keep({known: entry for known, entry in self._entries.items() if known != entry_id})
            return found

    def match(self, text: str, vector: FloatArray | None = None) -> Match | None:
        """The entry that answers `text`, or None when none surely does. `vector` [dim] is its embedding where known.

        An entry in the question's language is preferred; one in another language answers when it is the only match.
        """
        mine = language_of(text)
        accepted = [
            (candidate.entry.language == mine, score, candidate)
            for candidate in self._candidates(text, vector, self._scoring)
            if (score := candidate.probability(self._scoring)) >= self._scoring.threshold
        ]
        if not accepted:
            return None
        _, score, best = max(accepted, key=lambda found: found[:2])
        return Match(
            entry_id=best.entry.id,
            question=best.entry.question,
            answer=best.entry.answer,
            matched=best.phrasing,
            score=score,
            cosine=best.cosine,
        )

    def candidates(self, text: str, vector: FloatArray | None = None) -> list[Candidate]:
        """The nearest entries that do not contradict `text`, nearest first, with what their score is made of."""
        return self._candidates(text, vector)

    def _candidates(self, text: str, vector: FloatArray | None, scoring: Scoring | None = None) -> list[Candidate]:
        """With a `scoring`, phrasings that can change nothing about what it accepts are not looked at."""
        self._refresh()
        with self._lock:
            if not self._entries:
                return []
            keys, matrix = self._matrix()
            entries = self._entries.copy()
        asked = plain(text)
        cosines = matrix @ (self._embed([text])[0] if vector is None else vector)
        order, least = np.argsort(-cosines).tolist(), -1.0
        near = [(i, asked == plain(keys[i][1])) for i in order[:_CANDIDATES]]
        looked = near
        if scoring is not None:
            met = [(float(cosines[i]), same, partial(overlap, text, keys[i][1])) for i, same in near]
            looked = near[: _relevant(met, scoring)]
        best: dict[str, tuple[float, str]] = {}  # entry -> its closest phrasing that does not contradict the question
        for i, same in looked:
            entry_id, phrasing = keys[i]
            if not same and self._conflict(text, phrasing) is not None:
                least = max(least, float(cosines[i]) - _ASIDE)
            elif entry_id not in best and cosines[i] >= least:
                best[entry_id] = 1.0 if same else float(cosines[i]), phrasing
        seen = {keys[i][0] for i, _ in near}
        next_best = next((float(cosines[i]) for i in order if keys[i][0] not in seen), 0.0)
        return [self._candidate(text, asked, entries, best, entry_id, next_best) for entry_id in best]

    @staticmethod
    def _candidate(
        text: str,
        asked: str,
        entries: dict[str, Entry],
        best: dict[str, tuple[float, str]],
        entry_id: str,
        next_best: float,
    ) -> Candidate:
        """Its lead is over the closest other entry that does not contradict the question.

        Entries in another language are no rivals: an entry is not in doubt because its own translation is close.
        """
        entry, (cosine, phrasing) = entries[entry_id], best[entry_id]
        rivals = [
            c for other, (c, _) in best.items() if other != entry_id and entries[other].language == entry.language
        ]
        return Candidate(
            entry=entry,
            phrasing=phrasing,
            cosine=cosine,
            lead=min(_LEAD, cosine - max(rivals, default=next_best)),
            overlap=overlap(text, phrasing),
            same=plain(phrasing) == asked,
        )

    def _matrix(self) -> tuple[list[tuple[str, str]], FloatArray]:
        if self._index is None:
            keys = [(entry.id, phrasing) for entry in self._entries.values() for phrasing in entry.phrasings]
            new = list(dict.fromkeys(phrasing for _, phrasing in keys if phrasing not in self._vectors))
            if new:
                self._vectors.update(zip(new, self._embed(new), strict=True))
            self._vectors = {phrasing: self._vectors[phrasing] for _, phrasing in keys}
            self._index = keys, np.array([self._vectors[phrasing] for _, phrasing in keys], dtype=np.float32)
        return self._index

    def _keep(self, entries: dict[str, Entry]) -> None:
        """Takes these entries in place of all others, on disk first."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            half = self._file.with_suffix(f".{os.getpid()}.tmp")
            lines = (json.dumps(entry.to_dict(), ensure_ascii=False) + "\n" for entry in entries.values())
            try:
                half.write_text("".join(lines), encoding="utf-8")
                os.replace(half, self._file)
            finally:
                half.unlink(missing_ok=True)
            self._seen = _stamp(self._file)
        self._entries, self._index = entries, None

    def _refresh(self) -> None:
        """Reads the file again when another process has changed it."""
        if self._file is None or (now := _stamp(self._file)) == self._seen:
            return
        with self._lock:
            if now != self._seen:
                self._entries = stored_entries(self._file) if now else {}
                self._index, self._seen = None, now


def _relevant(near: Sequence[tuple[float, bool, Callable[[], float]]], scoring: Scoring) -> int:
    """How many phrasings (cosine, whether the same words, overlap; nearest first) have a part in what is accepted:
    those that may be accepted themselves, and those so close to them that they take away of their lead."""
    if scoring.lead < 0:
        return len(near)

    def able(cosine: float, overlap: float) -> bool:
        return scoring.probability(cosine=cosine, lead=_LEAD, overlap=overlap) >= scoring.threshold

    most = 1.0 if scoring.overlap > 0 else 0.0
    may = [same or (able(cosine, most) and able(cosine, shared())) for cosine, same, shared in near]
    if not any(may):
        return 0
    least = min(cosine for (cosine, _, _), yes in zip(near, may, strict=True) if yes) - _LEAD
    return max(i for i, ((cosine, _, _), yes) in enumerate(zip(near, may, strict=True), 1) if yes or cosine >= least)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size
