"""A clock one can set, entries by a few words, and an embedder made of letters."""

import itertools
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shoal.cache.bucket import name_of, rank_of
from shoal.cache.entry import Entry


class Clock:
    """Seconds that pass only when told to. Starts at the real time, since Redis expires by its own clock."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


class LetterEmbedder:
    """Bags of letter pairs as unit vectors: close for texts that look alike, the same every time."""

    fingerprint = "letters:1"

    def __call__(self, texts: Sequence[str]) -> Any:
        rows = np.zeros((len(texts), 256), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            words = re.sub(r"\W+", " ", f" {text.lower()} ")
            for pair in itertools.pairwise(words):
                row[zlib.crc32("".join(pair).encode("utf-8", "replace")) % 256] += 1
            row /= np.linalg.norm(row) or 1.0
        return rows


@pytest.fixture
def clock() -> Clock:
    import time

    return Clock(time.time())


@pytest.fixture
def letters() -> LetterEmbedder:
    return LetterEmbedder()


@pytest.fixture
def make_entry(clock: Clock) -> Any:
    numbers = itertools.count()

    def make(key: str = "k", *, budget: float = 30, text: str = "answer", ttl: float = 100, **fields: Any) -> Entry:
        rank = rank_of(budget, 30)
        values = {
            "id": f"{key}.{rank}.{next(numbers)}", "key": key, "scope": "s", "tenant": "t", "kb": "", "text": text,
            "prompt": f"question {key}", "budget": budget, "depth": budget, "rank": rank, "bucket": name_of(rank, 30),
            "created": clock.now, "expires": clock.now + ttl,
        }  # fmt: skip
        return Entry(**{**values, **fields})

    return make
