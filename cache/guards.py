"""Guards (C4): may an answer to one question stand for another that looks alike? English and Chinese, rules only.

Opposites and changed numbers score above 0.9 by cosine, true paraphrases often below 0.7, so no threshold can tell them
apart. These rules look at what embeddings blur: numbers, units, dates, versions, negation, opposites, names of one kind,
quoted text and code, the kind of question, direction and roles. Symmetric, pure, no model; well under a millisecond.
They only veto: that nothing was found does not mean that two texts ask the same (the threshold speaks for that).
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from .lexicon import (
    AXES,
    CLASSES,
    EMPTY_NEGATIONS,
    NEGATORS,
    OPPOSITES,
    PIVOTS,
    QUESTION_KINDS,
    STOP_WORDS,
    ZH_EMPTY_NEGATIONS,
    ZH_NEGATORS,
    ZH_PIVOTS,
    Table,
)
from .quantity import Quantity, quantities

MAX_CHARS = 2000

_WORD = re.compile(r"[a-z0-9][a-z0-9+#'\-]*|[\u3400-\u9fff]")
_HAN = re.compile(r"[\u3400-\u9fff]")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_QUOTE = re.compile(
    r"\"([^\"\n]{2,})\"|“([^”\n]+)”|「([^」\n]+)」|『([^』\n]+)』|《([^》\n]+)》|(?<!\w)'([^'\n]{2,})'(?!\w)|‘([^’\n]+)’(?!\w)"
)
_CAPITAL = re.compile(r"(?<![.!?:;\n\"“(]\s)(?<!^)\b([A-Z][\w&.-]*\w|[A-Z]{2,})")
_MIXED = re.compile(r"\b(?=\w*[a-z])(?=\w*\d)[a-z0-9-]+\b")
_CONTRACTED = re.compile(r"n['’]t\b")
_NEGATING_PREFIX = ("un", "in", "im", "ir", "il", "dis", "non", "non-", "de", "mis", "anti", "anti-")


def _terms(
    table: Table,
) -> tuple[dict[tuple[str, ...], set[tuple[str, int]]], dict[str, list[tuple[str, str, int]]]]:
    words: dict[tuple[str, ...], set[tuple[str, int]]] = {}
    han: dict[str, list[tuple[str, str, int]]] = {}
    for name, poles in table.items():
        for pole, terms in enumerate(poles):
            for term in terms:
                if _HAN.search(term):
                    han.setdefault(term[0], []).append((term, name, pole))
                else:
                    words.setdefault(tuple(term.split()), set()).add((name, pole))
    for options in han.values():
        options.sort(key=lambda option: -len(option[0]))
    return words, han


_AXIS_WORDS, _AXIS_HAN = _terms(AXES)
_CLASS_WORDS, _CLASS_HAN = _terms(CLASSES)
_SPLIT_VERB = re.compile(
    r"\b(turn|switch|power|log|sign|speed|slow|shut|lay|opt)(ed|ing|s|ned|ning)?((?:\s+\w+){1,4}?)\s+(on|off|in|out|up|down)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the guards look at in one text."""

    text: str
    words: tuple[str, ...]
    content: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    negations: int
    poles: frozenset[tuple[str, int]]
    members: frozenset[tuple[str, int]]
    names: frozenset[str]
    quotes: frozenset[str]
    kinds: frozenset[str]


def stem(word: str) -> str:
    """Light English stem: plural and possessive endings only, so that distinct words stay distinct."""
    word = word.removesuffix("'s").rstrip("'-")
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _found(
    words: tuple[str, ...],
    text: str,
    table: tuple[dict[tuple[str, ...], set[tuple[str, int]]], dict[str, list[tuple[str, str, int]]]],
) -> frozenset[tuple[str, int]]:
    english, han = table
    found: set[tuple[str, int]] = set()
    for n in (3, 2, 1):
        for i in range(len(words) - n + 1):
            found |= english.get(words[i : i + n], set())
    i = 0
    while i < len(text):
        for term, name, pole in han.get(text[i], ()):
            if text.startswith(term, i):
                found.add((name, pole))
                i += len(term) - 1
                break
        i += 1
    return frozenset(found)


def _negations(words: tuple[str, ...], text: str) -> int:
    joined = " " + " ".join(words) + " "
    for phrase in EMPTY_NEGATIONS:
        joined = joined.replace(f" {phrase} ", " ")
    count = sum(word in NEGATORS for word in joined.split())
    if _HAN.search(text):
        for phrase in ZH_EMPTY_NEGATIONS:
            text = text.replace(phrase, "")
        text = re.sub(r"([\u3400-\u9fff])不\1", r"\1", text)  # 去不去
        for negator in ZH_NEGATORS:
            count += text.count(negator)
            text = text.replace(negator, " ")
    return count


def _kinds(text: str, words: tuple[str, ...]) -> frozenset[str]:
    joined = " " + " ".join(words) + " "
    found = [
        kind
        for kind, cues in QUESTION_KINDS
        if any(f" {cue} " in joined if cue.isascii() else cue in text for cue in cues)
    ]
    return frozenset(found[:1])


@lru_cache(maxsize=8192)
def facts(raw: str) -> Facts:
    """Facts of one text, remembered for the last few thousand texts."""
    original = unicodedata.normalize("NFKC", raw[:MAX_CHARS]).strip()
    quotes = [m.group(0).strip("` \n") for m in _CODE.finditer(original)]
    plain = _CODE.sub(" ", original)
    quotes += [next(g for g in m.groups() if g).strip() for m in _QUOTE.finditer(plain)]
    text = _CONTRACTED.sub(
        " not", plain.lower().replace("cannot", "can not").replace("can't", "can not").replace("won't", "will not")
    )
    text = text.replace("’", "'")
    words = tuple(stem(w) for w in _WORD.findall(text))
    raw_words = tuple(w.removesuffix("'s") for w in _WORD.findall(_SPLIT_VERB.sub(r"\1 \4 \3", text)))
    capitals = _CAPITAL.findall(plain)
    titled = sum(w[:1].isupper() for w in plain.split()) > 0.6 * max(len(plain.split()), 4)
    names = set() if titled else {stem(w.lower()) for w in capitals if w.lower() not in STOP_WORDS and w != "I"}
    return Facts(
        text=text,
        words=words,
        content=tuple(w for w in words if w not in STOP_WORDS),
        quantities=quantities(text),
        negations=_negations(raw_words, text),
        poles=_found(raw_words, text, (_AXIS_WORDS, _AXIS_HAN)),
        members=_found(raw_words, text, (_CLASS_WORDS, _CLASS_HAN)),
        names=frozenset(names | set(_MIXED.findall(text))),
        quotes=frozenset(quotes),
        kinds=_kinds(text, raw_words),
    )


def _differing(
    a: frozenset[tuple[str, int]], b: frozenset[tuple[str, int]], table: Table
) -> Iterator[str]:
    """Axes or classes on which each text names something that the other does not."""
    for name in sorted({n for n, _ in a} & {n for n, _ in b}):
        left, right = {p for n, p in a if n == name}, {p for n, p in b if n == name}
        if left != right:
            one = min(left - right or left)
            other = min(right - left or right)
            yield " / ".join(sorted((table[name][one][0], table[name][other][0])))


def _quantity(a: Facts, b: Facts) -> str | None:
    left, right = list(a.quantities), list(b.quantities)
    for item in list(left):  # equal, or equal in value with a unit on one side only
        match = item if item in right else next((o for o in right if o[0] == item[0] and "" in (o[1], item[1])), None)
        if match is not None:
            left.remove(item)
            right.remove(match)
    if not left and not right:
        return None
    shown = sorted(
        (" ".join(filter(None, left[0])) if left else "none", " ".join(filter(None, right[0])) if right else "none")
    )
    return f"number: {shown[0]} / {shown[1]}"


def _quotes(a: Facts, b: Facts) -> str | None:
    lost = [q for q in a.quotes - b.quotes if q.lower() not in b.text] + [
        q for q in b.quotes - a.quotes if q.lower() not in a.text
    ]
    return "quoted text or code" if lost else None


def _names(a: Facts, b: Facts) -> str | None:
    squash_a, squash_b = re.sub(r"[\W_]", "", a.text), re.sub(r"[\W_]", "", b.text)
    left = sorted(n for n in a.names if re.sub(r"\W", "", n) not in squash_b)
    right = sorted(n for n in b.names if re.sub(r"\W", "", n) not in squash_a)
    if left and right and not (_HAN.search(a.text) is None) ^ (_HAN.search(b.text) is None):
        return "name: " + " / ".join(sorted((left[0], right[0])))
    return None


def _aligned(a: Facts, b: Facts) -> str | None:
    """Two texts that differ only in a word or two: are those words opposites?"""
    if max(len(a.words), len(b.words)) > 80:
        return None
    matcher = SequenceMatcher(None, a.words, b.words, autojunk=False)
    if matcher.ratio() < 0.5:
        return None
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "replace" or j - i > 3 or m - k > 3:
            continue
        for x in a.words[i:j]:
            for y in b.words[k:m]:
                short, long = sorted((x, y), key=len)
                negated = len(short) > 3 and any(long == p + short for p in _NEGATING_PREFIX)
                less = (
                    (short.endswith("ful") and long.endswith("less")) or (short.endswith("less") and long.endswith("ful"))
                )
                if frozenset((x, y)) in OPPOSITES or negated or (less and x[:3] == y[:3]):
                    return "antonym: " + " / ".join(sorted((x, y)))
    return None


def _roles(a: Facts, b: Facts) -> str | None:
    """The same words with two of them exchanged around a third: who did it to whom, from where to where."""
    common = set(a.content) & set(b.content)
    if len(common) < 2 or len(common) < 0.75 * max(len(set(a.content)), len(set(b.content))) or len(common) > 24:
        return None
    if ("by" in a.words) != ("by" in b.words) and ("比" not in a.text):
        return None  # active and passive voice
    place_a = {w: i for i, w in enumerate(a.words)}
    place_b = {w: i for i, w in enumerate(b.words)}
    pivots = [p for p in set(a.words) & set(b.words) if p in PIVOTS or (p in common and not _HAN.match(p))]
    ends = [w for w in sorted(common) if not _HAN.match(w)]
    for pivot in sorted(pivots):
        pa, pb = place_a[pivot], place_b[pivot]
        before_a = {w for w in ends if place_a[w] < pa}
        after_b = {w for w in ends if place_b[w] > pb}
        first = before_a & after_b - {pivot}
        second = {w for w in ends if place_a[w] > pa and place_b[w] < pb} - {pivot}
        if first and second:
            return "order: " + " / ".join(sorted((min(first), min(second))))
    return None


def _chinese_roles(a: str, b: str) -> str | None:
    if max(len(a), len(b)) > 80:
        return None
    for pivot in ZH_PIVOTS:
        if a.count(pivot) == 1 == b.count(pivot):
            (la, ra), (lb, rb) = a.split(pivot), b.split(pivot)
            one, other = _common(la, rb), _common(ra, lb)
            if one and other and one not in lb and other not in la and one not in ra and other not in rb:
                return f"order: around {pivot}"
    return None


def _common(x: str, y: str) -> str:
    match = SequenceMatcher(None, x, y, autojunk=False).find_longest_match(0, len(x), 0, len(y))
    return x[match.a : match.a + match.size] if match.size >= 2 else ""


class Guards:
    """Vetoes pairs of texts that ask different things. Stateless; one instance can be shared by all threads."""

    def conflict(self, a: str, b: str) -> str | None:
        """Why the answer to one must not be given to the other, or None where no rule objects. Symmetric."""
        if a == b:
            return None
        x, y = facts(a), facts(b)
        if x.text == y.text and x.quotes == y.quotes:
            return None
        return self._compare(x, y)

    def _compare(self, x: Facts, y: Facts) -> str | None:
        if reason := _quantity(x, y) or _quotes(x, y):
            return reason
        opposed = list(_differing(x.poles, y.poles, AXES))
        aligned = _aligned(x, y)
        negated = (x.negations - y.negations) % 2 == 1
        if negated and not (len(opposed) == 1 and aligned is None):  # "not on" is "off"
            return "negation"
        if not negated and (opposed or aligned):
            return f"antonym: {opposed[0]}" if opposed else aligned
        if other := next(_differing(x.members, y.members, CLASSES), None):
            return f"different kind: {other}"
        if x.kinds and y.kinds and x.kinds != y.kinds:
            return "question: " + " / ".join(sorted((*x.kinds, *y.kinds)))
        return _names(x, y) or _roles(x, y) or _chinese_roles(x.text, y.text)
