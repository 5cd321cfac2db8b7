"""Near copies are denied by default (C4): where two questions are almost the same text, whatever differs must be shown
to be harmless, else the answer to one does not serve the other.

"Who first discovered radium" and "... oxygen" are near copies, and no list of names, opposites or things is ever
complete. So the lists say what is harmless (`copies`): quiet words, inflection, synonyms, one whole part gone past
another. Exchanged words that no list knows are compared by the embedder, alone: synonyms lie close together, other
things of one kind mostly do not. Loose paraphrases, which share less, are left to the second look.
"""

import re

from .copies import Difference, asked, difference
from .facts import HAN, facts
from .lexicon import SWAP_NEUTRAL, ZH_ADDABLE
from .opposites import opposite
from .semantic import Embed
from .words import Words

_CLOSE, _ZH_CLOSE = 0.8, 0.75  # cosine of exchanged words from which they say the same, for the bundled embedder
_SLOT_CLOSE = 0.66  # and where loose copies differ in one word only
# Shares from which an exchange and an addition need to be harmless: in English of all words, which true paraphrases
# seldom leave as they are; in Chinese of the characters with meaning, or of all.
_EXCHANGED, _ADDED = 0.65, 0.8
_ZH_EXCHANGED, _ZH_ADDED, _ZH_LIKE = 0.5, 0.6, 0.55
# Longest English texts, in words, that are denied by default: with several exchanges, with one, with an addition.
# Longer ones are often reworded throughout; there one exchanged word counts where all the rest is the same.
_SHORT, _LONGEST, _ADD_LONGEST = 7, 10, 9
_SLOT_LIKE = 0.9
_ZH_SLOT = 9  # most parts of one place that are compared
_ZH_STATEMENT, _ZH_LOOSE = 20, 3  # characters of a statement; parts that each of two loosely reworded ones has alone
_ASKS = re.compile(r"[?？吗么呢谁哪几]|多少|如何|怎|为何|请|帮")


class Swap:
    """Vetoes near copies that differ in something not known to be harmless. Thread-safe."""

    def __init__(self, embed: Embed) -> None:
        self._words = Words(embed)

    def conflict(self, a: str, b: str) -> str | None:
        """Why the answer to one must not be given to the other, or None. Symmetric."""
        d = difference(a, b) if a != b else None
        if d is None:
            return None
        near = _near(d)
        if near and d.turned:
            return "exchanged: " + " / ".join(sorted(d.turned))
        one, other = asked(facts(a)), asked(facts(b))
        if near and one and other and one != other and max(len(d.first), len(d.second)) <= 1:
            return "question: " + " / ".join(sorted((*one, *other)))
        free = ZH_ADDABLE - {facts(text).text[:1] for text in (a, b)}  # where it opens a text it opens a word: 上海
        found = self._parts(d, near, free)
        if found is None and _loose_statement(d, a, b):
            return "reworded statement"
        if found is None and near and bool(one) != bool(other) and bool(d.first) != bool(d.second):
            return "question: " + "".join(one | other) + " / " + (d.first or d.second)[0]  # who, which street
        return found

    def _parts(self, d: Difference, near: bool, free: frozenset[str]) -> str | None:
        first, second = self._unmatched(d, _ZH_CLOSE if d.chinese else _CLOSE)
        if first and second and near:
            return "exchanged: " + " / ".join(sorted((first[0], second[0])))
        if first and second and _one_place(d):
            first, second = self._unmatched(d, _SLOT_CLOSE)
            return "exchanged: " + " / ".join(sorted((first[0], second[0]))) if first and second else None
        copied = (
            max(d.content - _ZH_ADDED, d.likeness - _ADDED) >= 0
            if d.chinese
            else d.likeness >= _ADDED and d.length <= _ADD_LONGEST
        )
        first, second = ([w for w in side if not set(w) <= free] for side in (first, second))
        return f"added: {(first or second)[0]}" if bool(first) != bool(second) and copied else None

    def _unmatched(self, d: Difference, close: float) -> tuple[list[str], list[str]]:
        """Words of each side that say something, without pairs that are close."""
        one, other = ([w for w in side if w not in SWAP_NEUTRAL] for side in (d.first, d.second))
        if not one or not other:
            return one, other
        cosines = self._words(one) @ self._words(other).T
        pairs = sorted((-float(cosines[i, j]), i, j) for i in range(len(one)) for j in range(len(other)))
        for distance, i, j in pairs:
            if -distance >= close and one[i] and other[j] and _comparable(one[i], other[j], d.chinese):
                one[i] = other[j] = ""
        return [w for w in one if w], [w for w in other if w]


def _one_place(d: Difference) -> bool:
    if d.chinese:
        return d.one_slot and max(len(d.first), len(d.second)) <= _ZH_SLOT
    return d.one_slot and len(d.first) == 1 == len(d.second) and (d.length <= _LONGEST or d.likeness >= _SLOT_LIKE)


def _loose_statement(d: Difference, a: str, b: str) -> bool:
    """Whether two Chinese statements, which ask for nothing, share some words and differ in many.

    Nothing that the second look was fitted on is like them (its Chinese statements are near copies), so its rating says
    nothing of who did what.
    """
    many = min(len(d.first), len(d.second)) >= _ZH_LOOSE and d.length >= _ZH_STATEMENT
    return d.chinese and many and not _ASKS.search(a + b)


def _near(d: Difference) -> bool:
    if d.chinese:
        return d.content >= _ZH_EXCHANGED or d.likeness >= _ZH_LIKE
    return d.likeness >= _EXCHANGED and d.length <= (_LONGEST if d.one_slot else _SHORT)


def _comparable(a: str, b: str, chinese: bool) -> bool:
    """Whether closeness says anything: numbers, opposites, single characters, Chinese names are always close."""
    if chinese and (not (HAN.match(a) or HAN.match(b)) or max(len(a), len(b)) == 1):
        return False
    return not opposite(a, b) and not any(c.isdigit() for c in a + b)
