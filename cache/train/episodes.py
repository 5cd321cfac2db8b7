"""Look-ups as they happen in a cache, with the answers known (C4): a question, its nearest stored ones, which are
right.

Texts of each pool are split into stored ones and questions; for a share of the questions everything of their group is
taken out of the cache, so that nearest is not always right. Sets without paraphrases get rule-made ones.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..align import own_words
from ..facts import facts
from ..guards import Guards
from ..pair import BUCKETS, PAIR, bucket, pair_features
from ..scorer import both
from ..semantic import Embed
from ..swap import Swap
from ..words import Words
from .corpora import Pool, akin, plain
from .paraphrase import paraphrase

TOP = 5
_ABSENT = 0.3
_BEHIND = 0.02
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One look-up: features [n, len(PAIR)] of the candidates that the guards let through, their answers and labels.

    Labels: 1 the same meaning, 0 another, -1 not known (a loose group, a distant member).
    """

    part: str
    question: str
    features: FloatArray
    answers: tuple[str, ...]
    labels: NDArray[np.int8]
    held_right: bool  # whether the cache held a right answer


class Embedding:
    """Texts to vectors, remembered."""

    def __init__(self, embed: Embed) -> None:
        self._embed, self._known = embed, dict[str, FloatArray]()
        self.fingerprint = embed.fingerprint

    def __call__(self, texts: Sequence[str]) -> FloatArray:
        new = sorted({t for t in texts if t not in self._known}, key=len)
        for start in range(0, len(new), 256):
            part = new[start : start + 256]
            self._known.update(zip(part, self._embed(part), strict=True))
        return np.stack([self._known[t] for t in texts])


def word_weights(pools: Sequence[Pool]) -> FloatArray:
    """Inverse document frequency per word slot [BUCKETS], over the texts of the pools."""
    seen, n = np.zeros(BUCKETS, dtype=np.float32), 0
    for pool in pools:
        for text in pool.texts:
            n += 1
            seen[list({bucket(w) for w in facts(text).words})] += 1
    return np.log((n + 1) / (seen + 1)).astype(np.float32)


class Builder:
    """Makes episodes from pools with one embedder and one table of word weights."""

    def __init__(self, embed: Embedding, idf: FloatArray, seed: int) -> None:
        self._embed, self._idf, self._rng = embed, idf, random.Random(seed)
        self._conflict = both(Guards().conflict, Swap(embed).conflict)
        self._words = Words(embed, size=10**6)

    def split(
        self, pool: Pool, part: str, *, questions: int, stored: float = 0.5, known_from: float = 0.75
    ) -> list[Episode]:
        """Real look-ups: a share of the pool is stored, the rest asks. In loose pools only near members of a group
        count."""
        order = list(range(len(pool.texts)))
        self._rng.shuffle(order)
        cut = int(len(order) * stored)
        held, asking = order[:cut], order[cut:][:questions]
        groups = [pool.groups[i] for i in held]
        floor = -1.0 if pool.strict else known_from
        texts = [pool.texts[i] for i in asking]
        wanted = [pool.groups[i] for i in asking]
        return self._look_up(part, [pool.texts[i] for i in held], groups, texts, wanted, floor, wanted, groups)

    def reworded(self, pool: Pool, part: str, *, questions: int) -> list[Episode]:
        """Rule-made paraphrases of stored texts; other members of the same group count as unknown."""
        chosen = self._rng.sample(range(len(pool.texts)), min(questions, len(pool.texts)))
        texts = [paraphrase(pool.texts[i], self._rng) for i in chosen]
        groups = [str(i) for i in range(len(pool.texts))]
        loose = [pool.groups[i] for i in chosen]
        return self._look_up(part, pool.texts, groups, texts, [str(i) for i in chosen], -1.0, loose, pool.groups)

    def _look_up(
        self,
        part: str,
        stored: list[str],
        groups: list[str],
        questions: list[str],
        wanted: list[str],
        floor: float,
        loose: list[str],
        loose_groups: list[str],
    ) -> list[Episode]:
        """`groups` are what is right, `loose_groups` what may be: such a candidate counts neither way."""
        held, asked, found_all = self._embed(stored), self._embed(questions), []
        for i, question in enumerate(questions):
            cosines = held @ asked[i]
            near = np.argpartition(-cosines, min(20 * TOP, len(cosines) - 1))[: 20 * TOP]
            absent = self._rng.random() < _ABSENT
            found: list[tuple[int, int]] = []
            for j in near[np.argsort(-cosines[near])].tolist():
                if plain(stored[j]) == plain(question):
                    continue
                label = int(groups[j] == wanted[i])
                if label and cosines[j] < floor:
                    label = -1
                if not label and akin(loose_groups[j], loose[i]):
                    label = -1
                if label and absent:
                    continue
                found.append((j, label))
                if len(found) == TOP:
                    break
            found_all.append((question, [(j, float(cosines[j]), label) for j, label in found], not absent))
        self._learn([(question, stored[j]) for question, found, _ in found_all for j, _, _ in found])
        return [self._episode(part, question, stored, groups, found, held) for question, found, held in found_all]

    def _learn(self, pairs: list[tuple[str, str]]) -> None:
        """Embed the words that will be aligned, many at once."""
        words = {w for a, b in pairs for side in own_words(facts(a), facts(b)) for w in side}
        if words:
            self._words(sorted(words))

    def _episode(
        self,
        part: str,
        question: str,
        stored: list[str],
        groups: list[str],
        found: list[tuple[int, float, int]],
        held_right: bool,
    ) -> Episode:
        vetoed = {j for j, _, _ in found if self._conflict(question, stored[j])}
        limit = max((cosine for j, cosine, _ in found if j in vetoed), default=0.0) - _BEHIND
        kept = [(j, cosine, label) for j, cosine, label in found if j not in vetoed and cosine >= limit]
        rows = [pair_features(question, stored[j], cosine, self._idf, self._words) for j, cosine, _ in kept]
        return Episode(
            part=part, question=question, features=np.array(rows, dtype=np.float32).reshape(len(kept), len(PAIR)),
            answers=tuple(groups[j] for j, _, _ in kept),
            labels=np.array([label for _, _, label in kept], dtype=np.int8), held_right=held_right,
        )  # fmt: skip
