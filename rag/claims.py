"""What two sentences claim beside each other: the same, the opposite, or something else (A4).

Compares numbers, dates and negation, and the words around them, in English and Chinese. Errs towards "something else":
then both sentences stay and neither is marked. Knows nothing of vectors, passages or questions.
"""

import re
import unicodedata
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from .words import content_terms, terms

_ONES = {word: str(number) for number, word in enumerate(
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
)}  # fmt: skip
_NAMED = (
    r"january|february|march|april|may(?= \d)|(?<=\d )may|june|july|august|september|october|november|december|"
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
)
_DIGITS = "〇零一二三四五六七八九"
_FIGURES = {**{char: max(0, place - 1) for place, char in enumerate(_DIGITS)}, "两": 2}
_POWERS = {"十": 10, "百": 100, "千": 1000}
_HAN = "〇零一二三四五六七八九十百千万亿两"
_MEASURE = "年月日号点时分秒个名人次种位部岁天米元公斤吨克升瓦家座层届章%％倍里千亩条台"
_SIDES = re.compile(
    r"\b(?:on|off|up|down|in|out|over|under|above|below|before|after|into|inside|outside|left|right|from|to|with|against)\b"
    r"|[上下前后内外左右开关进出](?!午)"
)
_VALUE = re.compile(
    rf"(?:(?<![\w.)-])[-−])?\d+(?:[.:]\d+)*(?:[万亿])?|\b(?:{'|'.join(_ONES)})\b|\b(?:{_NAMED})(?=s?\b)"
    rf"|(?<=星期)[一二三四五六日天]|(?<=周)[一二三四五六日](?!\w*期)|[{_HAN}]{{2,}}|[{_HAN}](?=[{_MEASURE}])"
)
_NOT = re.compile(
    r"\b(?:not|no|never|cannot|without|neither|nor|none|nobody|nothing)\b|n't\b|n’t\b"
    r"|不(?![过仅但同断少久])|没|(?<!并)无(?![论数线锡])|未(?!来)|(?<!是)非(?![常洲])|并非|否(?!则)|(?<![特区分级性鉴识])别(?![的人称名])"
)
_NAME = re.compile(r"(?<=[\w,;:] )[A-Z]\w+")
_SAME_WORDS = 0.6  # share of words in common from which two sentences can say the same
_RIVAL_WORDS = 0.7  # and from which two that differ in a value speak of the same thing


@dataclass(frozen=True, slots=True)
class Claim:
    """The words of a sentence, its values (numbers, months, weekdays) in one form, its names, whether it denies."""

    words: frozenset[str]
    values: frozenset[str]
    names: frozenset[str]
    denies: bool
    order: tuple[str, ...] = ()  # words and values as they come
    sides: tuple[str, ...] = ()  # on, off, before, after, 上, 下

    def repeats(self, other: "Claim") -> bool:
        """Whether both can say the same: equal values, equal denial, mostly the same words.

        Not where the shared words and values come in another order (but for an end put first), "on" stands for "off",
        each has a name that the other lacks, or a single word is exchanged for another: so two facts of a kind differ.
        """
        agree = self.values == other.values and self.denies == other.denies and self.sides == other.sides
        shared = (self.words & other.words) | self.values
        agree = agree and _turned(_kept(self.order, shared), _kept(other.order, shared))  # who does what to whom
        exchanged = len(self.words - other.words) == 1 == len(other.words - self.words)
        named = bool(self.names - other.names) and bool(other.names - self.names)
        return agree and not exchanged and not named and _shared(self.words, other.words) >= _SAME_WORDS

    def contradicts(self, other: "Claim") -> bool:
        """Whether both speak of the same and each has a value that the other lacks, or one denies."""
        rival = bool(self.values - other.values) and bool(other.values - self.values)
        differ = rival or (self.denies != other.denies and self.values == other.values)
        return differ and _shared(self.words, other.words) >= _RIVAL_WORDS


@lru_cache(maxsize=4096)
def claim(sentence: str) -> Claim:
    """What the sentence claims."""
    text = re.sub(r"(?<=\d)[,，](?=\d{3})", "", unicodedata.normalize("NFKC", sentence).lower())
    values = frozenset(_plain(found.group()) for found in _VALUE.finditer(text))
    rest = _NOT.sub(" ", _VALUE.sub(" ", text))
    names = frozenset(found.lower() for found in _NAME.findall(sentence))
    words, order = frozenset(content_terms(rest)), list[str]()
    at = 0
    for found in _VALUE.finditer(text):
        order += [*(term for term in terms(text[at : found.start()]) if term in words), _plain(found.group())]
        at = found.end()
    order += [term for term in terms(text[at:]) if term in words]
    sides = tuple(sorted(_SIDES.findall(rest)))
    return Claim(words, values, names, _NOT.search(text) is not None, tuple(order), sides)


def _turned(one: list[str], other: list[str]) -> bool:
    """Whether both are the same, or one with its end put first, as "in Rome" may be."""
    return any(one[at:] + one[:at] == other for at in range(max(1, len(one))))


def _kept(order: Sequence[str], wanted: Set[str]) -> list[str]:
    """Those of `order` that are wanted, each where it first stands."""
    return list(dict.fromkeys(word for word in order if word in wanted))


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / (len(one | other) or 1)


def _plain(value: str) -> str:
    """A value in one form: "two", "2", "二" and "2.0" are equal, so are "三千二百" and "3200"."""
    if value[0] in "-−":
        return f"-{_plain(value[1:])}"
    value = _ONES.get(value, "日" if value == "天" else value)
    if value[0] in _HAN and all(char in _HAN for char in value):
        return str(_han(value))
    if value[-1] in "万亿" and value[:-1].replace(".", "", 1).isdigit():
        return f"{float(value[:-1]) * (10_000 if value[-1] == '万' else 100_000_000):g}"
    return f"{float(value):.12g}" if re.fullmatch(r"\d+(?:\.\d+)?", value) else value


def _han(value: str) -> int:
    """A number in Chinese characters; plain figures in a row, as in years, are read one by one."""
    if not set(value) & set("十百千万亿"):
        return int("".join(str(_FIGURES[char]) for char in value))
    whole = part = figure = 0
    for char in value:
        if char in _POWERS:
            part, figure = part + (figure or 1) * _POWERS[char], 0
        elif char == "万":
            whole, part, figure = whole + (part + figure) * 10_000, 0, 0
        elif char == "亿":
            whole, part, figure = (whole + part + figure) * 10**8, 0, 0
        else:
            figure = _FIGURES[char]
    return whole + part + figure
