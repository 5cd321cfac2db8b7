"""Depth scores of texts, asked for once: kept on disk by the text's hash and the scorer's fingerprint (A3, A5).

So an audit that was killed goes on where it was, and the next one pays only for what is new. Knows no model.
"""

import hashlib
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol, runtime_checkable

from .errors import RagError

BATCH = 32  # texts scored between two commits: what a kill can cost


class DepthScore(Protocol):
    """Depth scores [n], 0 to 1, of n texts by themselves: high where a gated model skims them, low where it digs.

    NaN is a text that it cannot judge.
    `fingerprint` changes when scores do. Longer texts may be cut by the scorer; what an audit hands over are passages.
    """

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, texts: Sequence[str], /) -> Sequence[float]: ...


@runtime_checkable
class ScoreMany(DepthScore, Protocol):
    """A depth score that works on several batches of texts at a time; `wave` groups of them are worth handing over."""

    @property
    def wave(self) -> int: ...

    def many(self, batches: Sequence[Sequence[str]], /) -> Iterator[tuple[int, Sequence[float]]]:
        """(place of a batch, its scores), as they come."""
        ...


class ScoreFile:
    """The scores of one scorer in a SQLite file beside the knowledge base."""

    def __init__(self, path: Path, score: DepthScore) -> None:
        self._score, self._path = score, path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, score REAL NOT NULL) WITHOUT ROWID"
        )

    @property
    def wave(self) -> int:
        """Groups of texts that are worth asking for together."""
        return self._score.wave if isinstance(self._score, ScoreMany) else 1

    def __call__(self, texts: Iterable[str], progress: Callable[[int, int], None] | None = None) -> list[float]:
        """Scores of the texts, in their order. Raises RagError when the scorer gives something that is no score."""
        return self.many([list(texts)], progress)[0]

    def many(
        self, groups: Sequence[Sequence[str]], progress: Callable[[int, int], None] | None = None
    ) -> list[list[float]]:
        """Scores of each group's texts. Batches are of one group, the same whoever scores them."""
        keys = [[self._key(text) for text in group] for group in groups]
        by_key = dict(zip(chain(*keys), chain(*groups), strict=True))
        known, parts, total = self._known(list(by_key)), list[list[bytes]](), sum(map(len, keys))
        asked = set(known)
        for names in keys:
            fresh = dict.fromkeys(key for key in names if key not in asked)
            wanted = sorted(fresh, key=lambda key: len(by_key[key]))  # alike in length, so that batches are even
            asked.update(wanted)
            parts += [wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH)]
        done = total - sum(map(len, parts))
        for place, found in self._asked([[by_key[key] for key in part] for part in parts]):
            self._check(len(parts[place]), found)
            self._keep([(key, one) for key, one in zip(parts[place], found, strict=True) if not math.isnan(one)])
            known.update(zip(parts[place], found, strict=True))
            done += len(found)
            if progress:
                progress(done, total)
        return [[known[key] for key in names] for names in keys]

    def _asked(self, batches: Sequence[Sequence[str]]) -> Iterator[tuple[int, list[float]]]:
        if isinstance(self._score, ScoreMany):
            found: Iterable[tuple[int, Sequence[float]]] = self._score.many(batches)
        else:
            found = enumerate(map(self._score, batches))
        for place, scores in found:
            yield place, [float(value) for value in scores]

    def _check(self, count: int, found: Sequence[float]) -> None:
        if len(found) != count or not all(math.isnan(one) or -1e-6 <= one <= 1 + 1e-6 for one in found):
            raise RagError(
                f"the depth score {self._score.fingerprint} gave {len(found)} values for {count} texts, or one "
                "outside 0 to 1: it does not fit this audit"
            )

    def known(self, texts: Sequence[str]) -> list[float | None]:
        """Scores of the texts as far as they were asked for before, in their order."""
        keys = [self._key(text) for text in texts]
        found = self._known(keys)
        return [found.get(key) for key in keys]

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(f"{self._score.fingerprint}\0{text}".encode()).digest()[:16]

    def _known(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        found: dict[bytes, float] = {}
        for start in range(0, len(keys), 900):
            part = keys[start : start + 900]
            query = f"SELECT key, score FROM scores WHERE key IN ({','.join('?' * len(part))})"
            found.update(self._file.execute(query, part))
        return found

    def _keep(self, scores: Sequence[tuple[bytes, float]]) -> None:
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", scores)
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            raise RagError(
                f"{self._path}: {error}; check free space and permissions, then run the audit again"
            ) from error
