"""Guards (C4): may an answer to one question stand for another that looks alike? English and Chinese, rules only.

Opposites and changed numbers score above 0.9 by cosine, true paraphrases often below 0.7, so no threshold can tell
them apart. These rules look at what embeddings blur: numbers, units, dates, versions, negation, opposites, names of
one kind, quoted text and code, the kind of question, direction and roles. Symmetric, pure, no model; about half a
millisecond. They only veto: that nothing was found does not mean that two texts ask the same (the threshold speaks
for that).
"""

import re
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise

from .copies import difference
from .facts import Facts, Poles, facts
from .lexicon import (
    ALIKE_KINDS,
    AXES,
    CLASSES,
    MEMBER_OF,
    WEAK_AXES,
    Table,
)
from .opposites import opposite
from .quantity import FEW, Quantity

_ALIGNABLE = 80  # words or characters: longer texts are not aligned word by word
_CLOSE = 0.5  # share of content two texts need for the rules that only make sense between near copies
_RELATED = 0.34
_NEAR = 0.7  # and for a lone "not", which far-off paraphrases often have on one side ("is missing", "is not there")
# Share of words from which another order of the parts means another thing: of all words; of all, where those with
# meaning are the same; in Chinese of the characters with meaning.
_SAME, _SAME_IN_SENSE, _ZH_SAME = 0.75, 0.6, 0.6
_LINED = 3  # lines of a text that keeps them
_ORDERED = 10  # words of an English text in which that is so even where other words differ too


class Guards:
    """Vetoes pairs of texts that ask different things. Stateless; one instance can be shared by all threads."""

    def conflict(self, a: str, b: str) -> str | None:
        """Why the answer to one must not be given to the other, or None where no rule objects. Symmetric."""
        if a == b:
            return None
        if _relined(a, b):
            return "lines"
        x, y = facts(a), facts(b)
        if x.text == y.text and (x.code, x.flags, x.cased, x.signs) == (y.code, y.flags, y.cased, y.signs):
            return None
        return (
            _quantity(x, y)
            or _quoted(x, y)
            or _polarity(x, y)
            or _kind(x, y)
            or _owner(x, y)
            or _question(x, y)
            or _name(x, y)
            or _reordered(a, b)
        )

    def unsupported(self, question: str, sentence: str, passage: str) -> str | None:
        """What a question names that a sentence, offered as its answer, contradicts or its passage does not hold.

        Not symmetric: a statement may say more than was asked, never less.
        """
        asked, said, around = facts(question), facts(sentence), facts(passage)
        held = {value for value, _ in around.quantities}
        missing = [value for value, unit in asked.quantities if value not in held and unit != FEW]
        if missing:
            return f"number: {missing[0]}"
        strange = _unknown(asked.names, around) if asked.chinese == around.chinese else []
        if strange:
            return f"name: {strange[0]}"
        close = overlap(asked, said) >= _CLOSE
        axes = _differing(asked.poles, said.poles, AXES)
        opposed = next((shown for name, shown in axes if close or name not in WEAK_AXES), "")
        if close and not opposed:
            ours, theirs = set(asked.words) - set(said.words), set(said.words) - set(asked.words)
            opposed = next((f"{a} / {b}" for a in sorted(ours) for b in sorted(theirs) if opposite(a, b)), "")
        if opposed:
            return f"antonym: {opposed}"
        if asked.negations % 2 and not said.negations:
            return "negation"
        return _kind(asked, said)


def _relined(a: str, b: str) -> bool:
    """Whether texts of several lines, a table or code, have the same words on other lines."""
    rows_a, rows_b = ([row.split() for row in text.splitlines()] for text in (a, b))
    return max(len(rows_a), len(rows_b)) >= _LINED and rows_a != rows_b and a.split() == b.split()


def _pair(kind: str, one: str, other: str) -> str:
    return f"{kind}: " + " / ".join(sorted((one, other)))


def overlap(x: Facts, y: Facts) -> float:
    """Share of content words two texts have in common (Dice), 0..1."""
    a, b = set(x.content), set(y.content)
    return 2 * len(a & b) / (len(a) + len(b)) if a or b else 1.0


def _quantity(x: Facts, y: Facts) -> str | None:
    a, b = Counter(x.quantities), Counter(y.quantities)
    left, right = sorted((a - b).elements()), sorted((b - a).elements())
    for item in list(left):  # equal in value with a unit on one side only
        match = next((o for o in right if o[0] == item[0] and {o[1], item[1]} & {"", FEW}), None)
        if match is not None:
            left.remove(item)
            right.remove(match)
    left, right = _counting(left, right), _counting(right, left)
    if not left and not right:
        return None
    return _pair("number", *(" ".join(side[0]).strip() if side else "none" for side in (left, right)))


def _counting(mine: list[Quantity], others: list[Quantity]) -> list[Quantity]:
    """Without the "two" of "the two places" when the other text counts nothing."""
    return mine if others else [q for q in mine if q[1] != FEW]


def _quoted(x: Facts, y: Facts) -> str | None:
    if _lost_code(x, y) or _lost_code(y, x) or _recased(x.code, y.code) or x.flags != y.flags:
        return "code"
    if x.signs and y.signs and x.signs != y.signs:
        return _pair("sign", " ".join(x.signs), " ".join(y.signs))
    if units := _recased(x.cased, y.cased):
        return _pair("unit", *units)
    lost_x = [q.lower() for q in x.quotes if q.lower() not in y.text]
    lost_y = [q.lower() for q in y.quotes if q.lower() not in x.text]
    if lost_x and lost_y and all(_unlike(p, q) for p in lost_x for q in lost_y):
        return "quoted text"
    return None


def _lost_code(x: Facts, y: Facts) -> bool:
    """Whether the other text lacks a piece of code, in back ticks or plain."""
    held = {c.lower() for c in y.code}
    return any(c.lower() not in held and c.strip().lower() not in y.text for c in x.code)


def _recased(x: frozenset[str], y: frozenset[str]) -> tuple[str, str] | None:
    """What only one has, and the other in another case: Mb, MB; `ls -R`, `ls -r`."""
    pairs = ((a, b) for a in sorted(x - y) for b in sorted(y - x) if a.lower() == b.lower())
    return next(pairs, None)


def _unlike(a: str, b: str) -> bool:
    return SequenceMatcher(None, a[:200], b[:200], autojunk=False).ratio() < 0.8


def _differing(a: Poles, b: Poles, table: Table) -> Iterator[tuple[str, str]]:
    """Axes or classes on which each text names something that the other does not."""
    for name in sorted({n for n, _ in a} & {n for n, _ in b}):
        left, right = {p for n, p in a if n == name}, {p for n, p in b if n == name}
        if left - right and right - left:
            yield name, " / ".join(sorted((table[name][min(left - right)][0], table[name][min(right - left)][0])))


def _polarity(x: Facts, y: Facts) -> str | None:
    close = overlap(x, y) >= _CLOSE
    opposed = [shown for name, shown in _differing(x.poles, y.poles, AXES) if close or name not in WEAK_AXES]
    aligned = _aligned(x, y) or _lessened(x, y) or _lessened(y, x)
    if aligned and not opposed:
        opposed = [aligned]
    if (x.negations - y.negations) % 2 == 1:  # "not on" is "off": one of each says the same
        return "negation" if overlap(x, y) >= _NEAR and len(opposed) != 1 else None
    return f"antonym: {opposed[0]}" if opposed else None


def _aligned(x: Facts, y: Facts) -> str | None:
    """Two near copies that differ in a word: is it the opposite?"""
    if max(len(x.words), len(y.words)) > _ALIGNABLE:
        return None
    matcher = SequenceMatcher(None, x.words, y.words, autojunk=False)
    if matcher.real_quick_ratio() < 0.6 or matcher.ratio() < 0.6:
        return None
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "replace" and j - i == 1 == m - k and opposite(x.words[i], y.words[k]):
            return " / ".join(sorted((x.words[i], y.words[k])))
    return None


def _lessened(x: Facts, y: Facts) -> str | None:
    """Whether one says "less hungry" and the other "hungrier"."""
    for word, following in pairwise(x.words):
        if word == "less" and "less" not in y.words:
            grown = next((w for w in y.words if w in (f"{following}er", f"{following[:-1]}ier")), None)
            if grown:
                return f"less {following} / {grown}"
    return None


def _kind(x: Facts, y: Facts) -> str | None:
    other = next(_differing(x.members, y.members, CLASSES), None)
    return f"different kind: {other[1]}" if other else None


def _owner(x: Facts, y: Facts) -> str | None:
    if overlap(x, y) < _NEAR:  # "if I die, my account" and "your account, when you die" ask the same
        return None
    for owner, thing in sorted(x.owned - y.owned):
        if any(t == thing and o != owner and (o, t) not in x.owned for o, t in y.owned):
            return f"owner of: {thing}"
    return None


def _question(x: Facts, y: Facts) -> str | None:
    far = not x.chinese and overlap(x, y) < _RELATED
    if not far and x.kinds and y.kinds and x.kinds != y.kinds and x.kinds | y.kinds not in ALIKE_KINDS:
        return _pair("question", *x.kinds, *y.kinds)
    return None


def _name(x: Facts, y: Facts) -> str | None:
    if x.chinese != y.chinese:
        return None
    left, right = _unknown(x.names, y), _unknown(y.names, x)
    return _pair("name", left[0], right[0]) if left and right else None


def _unknown(names: frozenset[str], other: Facts) -> list[str]:
    """Names the other text lacks, even misspelt, glued together, abbreviated or as an adjective (France, French)."""
    squeezed = re.sub(r"[\W_]", "", other.text)
    return [
        name
        for name in sorted(names)
        if re.sub(r"\W", "", name) not in squeezed
        and MEMBER_OF.get(name) not in other.members
        and not _abbreviates(name, other)
        and not any(
            w[:4] == name[:4] or SequenceMatcher(None, w, name, autojunk=False).ratio() > 0.8
            for w in other.words
            if len(w) > 3 and w[0] == name[0] and not any(c.isdigit() for c in name)
        )
    ]


def _abbreviates(name: str, other: Facts) -> bool:
    """Whether a short name stands for, or is spelt out as, words of the other text: fb, MS, NLP."""
    if len(name) <= 5:
        initials = "".join(w[0] for w in other.words)
        if name in initials or any(_subsequence(name, w) for w in other.names if len(w) > len(name)):
            return True
    return any(len(short) <= 4 and _subsequence(short, name) for short in other.names if len(short) < len(name))


def _subsequence(short: str, long: str) -> bool:
    """fb in facebook, ms in microsoft: the same first letter, the rest in order."""
    letters = iter(long)
    return short[:1] == long[:1] and short.isalpha() and all(c in letters for c in short)


def _reordered(a: str, b: str) -> str | None:
    """Near copies whose parts changed places, or should have: mostly somebody did it to somebody else."""
    d = difference(a, b)
    if d is not None and d.voice and d.content == 1:
        return "roles"
    if d is None or not d.moved:
        return None
    in_sense = d.content == 1 and d.bag >= _SAME_IN_SENSE
    moved = d.content >= _ZH_SAME if d.chinese else (d.bag >= _SAME and d.length <= _ORDERED) or in_sense
    return "order of the parts" if moved else None
