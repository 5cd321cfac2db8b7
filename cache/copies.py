"""Near copies (C4): what differs between two texts that say almost the same in almost the same words. Pure, no model.

Two texts are laid over each other in the longest blocks of words (in Chinese: characters) that both have, as in greedy
string tiling (Wise, 1993). What is left over on either side is what was exchanged or added; the order of the blocks
tells whether parts changed places. Articles, politeness, auxiliaries and the like are quiet and never seen; inflected
words, misspelt ones and synonyms are equal. English and Chinese. It says what differs; `guards` and `swap` decide what
that means.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

from .facts import HAN, SPLIT_VERB, Facts, facts, likeness
from .lexicon import (
    COMMUTATIVE,
    ENDINGS,
    IRREGULAR,
    KNOWN,
    NUMBER_WORDS,
    QUIET,
    SCALE_WORDS,
    SOFT,
    SYNONYMS,
    UNITS,
    ZH_CANONICAL,
    ZH_QUIET,
    ZH_SOFT,
)
from .opposites import opposite
from .quantity import quantities

_WORD = re.compile(
    r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff](?:[^\s\u3000-\u9fff,;:?!()\"/]*[^\W_\u3400-\u9fff]|[+#]+)?|&|'s"
)
_CANONICAL = re.compile("|".join(sorted(map(re.escape, ZH_CANONICAL), key=len, reverse=True)))
_SHORT = re.compile(r"\b(what|who|where|when|how|why|it|that|there|here|he|she|let)'s\b")
_OWNER = re.compile(r"(?<=\w)(\w)'s\b")
_NUMBER = re.compile(rf"[\d.,]+|{'|'.join([*NUMBER_WORDS, *SCALE_WORDS])}|[零〇一二三四五六七八九两十百千万亿]+")
_EITHER = re.compile(r"([\u3400-\u9fff])[不没]\1")  # 能不能
_HUSH = re.compile("|".join(sorted(map(re.escape, ZH_QUIET), key=len, reverse=True)))
_MISSPELT, _LONG = 0.82, 5
_STATEMENT = 20  # characters
_LEAST = 0.4  # share of words two texts must have in common
_MOST = 240  # words or characters that are laid over each other
_NONE: frozenset[int] = frozenset()
_PASSIVE = ("by", "被")
_BE = re.compile(r"\b(?:is|are|was|were|be|been|being|get|gets|got)\b")
_ASKS = frozenset(("什么", "谁", "哪", "多少", "哪个", "什么人", "什么东西"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two texts laid over each other; "first" is the one that sorts first, so that the order of asking is no matter.

    `likeness`, `bag`: share of all words that both have, in order and in any order, 0..1. `content`: share of the
    words with meaning. `moved`: whether parts changed places in a way that is no mere change of style; `voice`:
    whether none did, though one text is active and the other passive ("did A beat B", "was A beaten by B").
    `first`, `second`: words, or runs of Chinese characters, that only one has; `turned`: prepositions exchanged for
    their opposites; `one_slot`: whether they begin and end alike and differ in one place; `length`: words of the
    shorter text.
    """

    likeness: float
    bag: float
    content: float
    moved: bool
    voice: bool
    first: tuple[str, ...]
    second: tuple[str, ...]
    turned: tuple[str, str] | None
    one_slot: bool
    length: int
    chinese: bool


def root(word: str) -> str:
    """A word without its regular endings, so that inflected forms are equal: cancelled, cancelling, cancels."""
    word = word if word == "'s" else word.removesuffix("'s").strip("'-")
    word = IRREGULAR.get(word, word)
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3:
            doubled = len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "sl"
            return (rest[:-1] if doubled else rest).removesuffix("e")
    if len(word) > 3 and word.endswith("es") and word[-3] in "sxzh":
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word


_QUIET, _SOFT = QUIET | {root(w) for w in QUIET}, SOFT | ZH_SOFT
_KNOWN = frozenset(root(w) for w in KNOWN)
_UNIT_OF = {root(alias): name for alias, name in UNITS.items()}
_GROUPS: dict[str, frozenset[int]] = {}
for _word, _numbers in SYNONYMS.items():
    _GROUPS[root(_word)] = _GROUPS.get(root(_word), _NONE) | _numbers


@lru_cache(maxsize=8192)
def _tokens(raw: str) -> tuple[str, ...]:
    text = SPLIT_VERB.sub(r"\1\2 \4 \3", facts(raw).text)
    if HAN.search(text):
        text = _EITHER.sub(r"\1", text)
        text = _HUSH.sub(" ", _CANONICAL.sub(lambda m: ZH_CANONICAL[m.group(0)], text))
        return tuple(root(w) if w.isascii() else w for w in _WORD.findall(text))[:_MOST]
    words = _WORD.findall(_OWNER.sub(r"\1 's ", _SHORT.sub(r"\1 ", text)))
    return tuple(stem for w in words if w not in _QUIET and (stem := root(w)) not in _QUIET)[:_MOST]


@lru_cache(maxsize=8192)
def _hushed(raw: str) -> frozenset[str]:
    """Roots of the quiet words of a text: "obtain" in one says no more than "get" in the other."""
    return frozenset(root(w) for w in _WORD.findall(facts(raw).text)) & _QUIET


@lru_cache(maxsize=16384)
def alike(a: str, b: str) -> bool:
    """Whether two roots say the same by form or by the list of synonyms: deliver, delivery; purchase, buy; recieve."""
    if a == b:
        return True
    if HAN.match(a) or HAN.match(b) or any(c.isdigit() for c in a + b) or opposite(a, b):
        return False
    if a in _UNIT_OF and b in _UNIT_OF and _UNIT_OF[a] != _UNIT_OF[b]:
        return False  # seconds, minutes: moments to a dictionary
    if _GROUPS.get(a, _NONE) & _GROUPS.get(b, _NONE):
        return True
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if same >= 4 and a[same:] in ENDINGS and b[same:] in ENDINGS:
        return True
    if a[0] != b[0] or min(len(a), len(b)) < _LONG or (a in _KNOWN and b in _KNOWN) or max(a, b).startswith(min(a, b)):
        return False
    return likeness(a, b) > _MISSPELT


def _content(words: Sequence[str]) -> list[str]:
    return [w for w in words if w not in _SOFT]


def _glued(x: Sequence[str], y: Sequence[str]) -> list[str]:
    """`x` with neighbours that `y` writes as one word as that word: "log in", "login"."""
    out = list(x)
    for i in range(len(out) - 1, 0, -1):
        if (whole := "".join(out[i - 1 : i + 1])) in y:
            out[i - 1 : i + 1] = [whole]
    return out


def _unified(x: Sequence[str], y: Sequence[str]) -> list[str]:
    """`y` with words of its own written as the like words that only `x` has."""
    out, free = list(y), [w for w in dict.fromkeys(_content(x)) if w not in y]
    for word in dict.fromkeys(_content(out)):
        twin = next((w for w in free if alike(*sorted((w, word)))), None) if word not in x else None
        if twin is not None:
            free.remove(twin)
            out = [twin if w == word else w for w in out]
    return out


Block = tuple[int, int, int]  # where in one, where in the other, how long


def _tiles(x: Sequence[str], y: Sequence[str], least: int) -> tuple[list[Block], list[str], list[str]]:
    """Blocks that both have, and both texts with "" in their places."""
    one: list[str | int] = list(x)
    other: list[str | int] = list(y)
    found: list[Block] = []

    def take(i: int, j: int, n: int) -> None:
        found.append((i, j, n))
        one[i : i + n], other[j : j + n] = [-1 - k for k in range(i, i + n)], list(range(j, j + n))

    matcher = SequenceMatcher(None, autojunk=False)
    while True:
        matcher.set_seqs(one, other)  # type: ignore[arg-type]
        i, j, n = matcher.find_longest_match()
        if n < max(least, 2):
            break
        take(i, j, n)
    for i, word in enumerate(x):
        if one[i] == word and word in other:
            only = one.count(word) == 1 == other.count(word)
            if only or (least == 1 and word not in _SOFT):
                take(i, other.index(word), 1)
    left_x, left_y = ([w if isinstance(w, str) else "" for w in side] for side in (one, other))
    return sorted(found), left_x, left_y


def _moved(tiles: list[Block], x: Sequence[str], y: Sequence[str], *, chinese: bool) -> bool:
    """Whether the blocks stand in another order, other than by one of them, whole, gone past its neighbour.

    "In 2020, who won" and "who won in 2020" are one such step, as are "reset of the password" and "password reset".
    "A before B" and "B before A" are more, but around "and" nothing changes, nor around "是" where one side only asks
    ("什么是X"); passive voice may turn things round, and must not leave the subject where it was. In a long Chinese
    sentence one step is enough to say another thing.
    """
    place = {i: rank for rank, (i, _, _) in enumerate(sorted(tiles, key=lambda t: t[1]))}
    runs: list[list[int]] = []  # first and last rank of blocks that are neighbours in both
    words: list[list[str]] = []
    for i, _, n in tiles:
        if runs and runs[-1][1] + 1 == place[i]:
            runs[-1][1] = place[i]
            words[-1] += x[i : i + n]
        else:
            runs.append([place[i]] * 2)
            words.append(list(x[i : i + n]))
    start, end = 0, len(tiles) - 1
    while runs and runs[0][0] == start:
        start = runs.pop(0)[1] + 1
        words.pop(0)
    while runs and runs[-1][1] == end:
        end = runs.pop()[0] - 1
        words.pop()
    if len(runs) == 2 and ((chinese and min(len(x), len(y)) >= _STATEMENT) or _same_subject(tiles, x, y, start)):
        return True
    if len(runs) <= 2 or (len(runs) == 3 and _turns_freely(words)):
        return False
    return ("by" in x) == ("by" in y)


def _turns_freely(words: list[list[str]]) -> bool:
    """Whether what stands around the middle of three runs may change places."""
    asks = any("".join(side) in _ASKS for side in (words[0], words[2]))
    return set(words[1]) <= COMMUTATIVE and ("是" not in words[1] or asks)


def _same_subject(tiles: list[Block], x: Sequence[str], y: Sequence[str], kept: int) -> bool:
    """Whether one text is passive, the other not, and the same stands first: "A beat B", "A was beaten by B".

    `kept`: how many of the first blocks have not moved.
    """
    for marker in _PASSIVE:
        if (marker in x) != (marker in y):
            side, text = (0, x) if marker in x else (1, y)
            return sum(tile[side] < text.index(marker) for tile in tiles) == kept > 0
    return False


def _in_place(tiles: list[Block]) -> bool:
    """Whether the blocks stand in the same order."""
    return all(one[1] < other[1] for one, other in pairwise(tiles))


def _be(f: Facts) -> bool:
    return _BE.search(f.text) is not None


def _passive(f: Facts) -> bool:
    """Whether an English text looks passive and names who did it."""
    be = _BE.search(f.text)
    return be is not None and re.search(r"\bby\b", f.text[be.end() :]) is not None


def _runs(left: Sequence[str], other: frozenset[str], chinese: bool) -> tuple[str, ...]:
    """What is left of one text, without what the other says by a quiet word or has said already."""
    if not chinese:
        return tuple(w for w in left if w and w not in _SOFT and not any(alike(*sorted((w, o))) for o in other))
    return tuple("".join(w if w and w not in _SOFT else " " for w in left).split())


def _same_numbers(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Whether two sides are the same numbers, written differently: 14, fourteen, 十四."""
    sides = ([quantities(w) if _NUMBER.fullmatch(w) else () for w in side] for side in (first, second))
    one, other = (sorted(side) for side in sides)
    return one == other and all(one)


def _turned(left_x: Sequence[str], left_y: Sequence[str]) -> tuple[str, str] | None:
    """A preposition or particle for its opposite: on, off."""
    pairs = ((a, b) for a in left_x if a in SOFT for b in left_y if b in SOFT and opposite(a, b))
    return next(pairs, None)


def _same_frame(tiles: list[Block], x: Sequence[str], y: Sequence[str]) -> bool:
    """Whether both begin and end alike and differ in one place only."""
    shared = sum(n for _, _, n in tiles)
    start = next((n for i, j, n in tiles if i == 0 == j), 0)
    end = next((n for i, j, n in tiles if i + n == len(x) and j + n == len(y)), 0)
    return shared > 0 and start + end >= shared


def difference(a: str, b: str) -> Difference | None:
    """What differs, or None for texts of two languages and for those that share too few words. Symmetric."""
    return _difference(*sorted((a, b)))


@lru_cache(maxsize=1024)
def _difference(a: str, b: str) -> Difference | None:
    f, g = facts(a), facts(b)
    bag = _dice(f.words, g.words)
    if f.chinese != g.chinese or bag < _LEAST:
        return None
    (x, quiet_x), (y, quiet_y) = sorted(((_tokens(t), _hushed(t)) for t in (a, b)), key=lambda side: side[0])
    if not f.chinese:
        x, y = tuple(_glued(x, y)), tuple(_glued(y, x))
        y = tuple(_unified(x, y))
    tiles, left_x, left_y = _tiles(x, y, 2 if f.chinese else 1)
    first, second = _runs(left_x, quiet_y.union(y), f.chinese), _runs(left_y, quiet_x.union(x), f.chinese)
    if first and _same_numbers(first, second):
        first = second = ()
    return Difference(
        likeness=likeness(f.words, g.words),
        bag=bag,
        content=_dice(_content(x), _content(y)),
        moved=_moved(tiles, x, y, chinese=f.chinese),
        voice=not f.chinese and _in_place(tiles) and _passive(f) != _passive(g) and not (_be(f) and _be(g)),
        first=first,
        second=second,
        turned=_turned(left_x, left_y),
        one_slot=_same_frame(tiles, x, y),
        length=min(len(f.words), len(g.words)),
        chinese=f.chinese,
    )


def _dice(x: Sequence[str], y: Sequence[str]) -> float:
    return 2 * (Counter(x) & Counter(y)).total() / (len(x) + len(y)) if x or y else 1.0


def asked(f: Facts) -> frozenset[str]:
    """What kind of thing a question asks for, but for "how", which says little."""
    return f.kinds - {"how"}
