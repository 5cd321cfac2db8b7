"""Depth scores of texts, asked for once: kept on disk by the text's hash and the scorer's fingerprint (A3, A5).

So an audit that was killed goes on where it was, and the next one pays only for what is new. Knows no model.
"""

import hashlib
import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

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

    def __call__(self, texts: Iterable[str], progress: Callable[[int, int], None] | None = None) -> list[float]:
        """Scores of the texts, in their order. Raises RagError when the scorer gives something that is no score."""
        asked = list(texts)
        keys = [self._key(text) for text in asked]
        known = self._known(keys)
        missing = dict.fromkeys(key for key in keys if key not in known)
        by_key = dict(zip(keys, asked, strict=True))
        wanted = sorted(missing, key=lambda key: len(by_key[key]))  # alike in length, so that batches are even
        done = len(keys) - len(wanted)
        for start in range(0, len(wanted), BATCH):
            part = wanted[start : start + BATCH]
            found = [float(value) for value in self._score([by_key[key] for key in part])]
            if len(found) != len(part) or not all(math.isnan(one) or -1e-6 <= one <= 1 + 1e-6 for one in found):
                raise RagError(
                    f"the depth score {self._score.fingerprint} gave {len(found)} values for {len(part)} texts, or one "
                    "outside 0 to 1: it does not fit this audit"
                )
            self._keep([(key, one) for key, one in zip(part, found, strict=True) if not math.isnan(one)])
            known.update(zip(part, found, strict=True))
            done += len(part)
            if progress:
                progress(done, len(keys))
        return [known[key] for key in keys]

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
