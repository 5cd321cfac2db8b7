"""Takes disguises off a text, for matching (R4): look-alike letters, traditional characters, spacing, leet.

Knows no topic and no attack word. `squash` is quick and leaves ordinary text as it is; `respaced` reads a text whose
spaces cannot be trusted, word by word from a list of common ones, and costs a few µs a character. Tables are made
by `train/disguises.py`.
"""

import gzip
import json
import math
import re
import unicodedata
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote

ASSETS = Path(__file__).parent / "assets"
_CJK = "\u3400-\u9fff"
_DIGITS = str.maketrans("013457@$!", "oieastasi")
_DOTTED = re.compile(r"(?<![A-Za-z])[A-Za-z](?:[._\-*|/~·][A-Za-z'])+(?![A-Za-z])")
_SPACED = re.compile(r"(?<![A-Za-z])(?:[A-Za-z']\s){2,}[A-Za-z](?![A-Za-z])")
_INNER = re.compile(r"(?<=[A-Za-z])[._*|~^]+(?=[A-Za-z])")
_PERCENT = re.compile("%[0-9A-Fa-f]{2}")
# characters of attack words that fall into two
_WHOLE = {
    "田心": "思",
    "相心": "想",
    "扌隹": "推",
    "王里": "理",
    "竹合": "答",
    "日取": "最",
    "尸云": "层",
    "忄夬": "快",
}
_HALVES = re.compile("|".join(_WHOLE))
_GAP = re.compile(rf"(?<=[{_CJK}])[^\w。！？；：!?;:、\n]{{1,4}}(?=[{_CJK}])")
_STUFFED = re.compile(rf"(?<=[{_CJK}])[^{_CJK}。！？；：!?;:、\n]{{1,3}}(?=[{_CJK}])")
_LETTERED = re.compile(r"[A-Za-z0-9@$!]*[A-Za-z][A-Za-z0-9@$!]*")
_RUN = re.compile(r"[a-z0-9@$!|+]+(?:[^\S\n]*[a-z0-9@$!|+'*_~.\-]+)*")
# digits and signs read as letters; 1 | ! may be i or l, which the word list decides
_SQUEEZED = str.maketrans("0345789@$!|+", "oeastbgasllt".replace("l", "1"))
_LONGEST = 16  # letters of a word
_UNKNOWN = 25.0  # cost of a letter that belongs to no word
_MARKS = ("Mn", "Me")
_HIDDEN = (*_MARKS, "Cf", "Cc", "Cs", "Co")


@cache
def _tables() -> tuple[dict[int, str], dict[int, str]]:
    """Look-alikes to Latin letters, traditional characters to simplified ones, for `str.translate`."""
    raw = json.loads((ASSETS / "look_alikes.json").read_text(encoding="utf-8"))
    return {ord(a): b for a, b in zip(*raw["latin"], strict=True)}, {
        ord(a): b for a, b in zip(*raw["simplified"], strict=True)
    }


def squash(text: str) -> str:
    """Plain lower-case text out of a disguised one: full width, zero width, accents, look-alikes, traditional Chinese,
    s p a c i n g, leet.

    Meant for matching, not for reading: single spaced-out letters are joined into words.
    """
    text = _unescaped(text)
    if not text.isascii():
        text = _plain_letters(text)
    elif "\x7f" in text or not text.isprintable():
        text = "".join(ch for ch in text if ch.isprintable() or ch in "\n\t")
    text = _LETTERED.sub(lambda m: _unleet(m.group(0)), _closed(text))
    for disguise in (_DOTTED, _SPACED):
        text = disguise.sub(lambda m: re.sub(r"[^A-Za-z']", "", m.group(0)), text)
    return re.sub(r"\s+", " ", _INNER.sub("", text)).strip().lower()


def _unescaped(text: str) -> str:
    """Text without percent signs and entities that stand for letters (`least%20thinking`, `b&#111;mb`)."""
    if _PERCENT.search(text):
        text = unquote(text, errors="ignore")
    return unescape(text) if "&" in text and ";" in text else text


def rejoined(text: str) -> str:
    """Squashed text with characters that were written as their halves put together (田心 for 思)."""
    return _HALVES.sub(lambda m: _WHOLE[m.group(0)], text)


def _plain_letters(text: str) -> str:
    latin, simplified = _tables()
    text = unicodedata.normalize("NFKC", text).replace("\u2019", "'")
    text = "".join(ch for ch in text if unicodedata.category(ch) not in _HIDDEN or ch in "\n\t")
    text = unicodedata.normalize("NFKD", text)
    text = "".join(ch for ch in text if unicodedata.category(ch) not in _MARKS).translate(latin).translate(simplified)
    return _GAP.sub("", text)


def unstuffed(text: str) -> str:
    """Chinese text without the up to three signs, digits or letters that stand between two characters."""
    return _STUFFED.sub("", text)


def _closed(text: str) -> str:
    """Text whose letters stand apart and whose words stand farther apart, as words; any other text as it is."""
    tokens = text.split()
    if 5 * sum(len(token) == 1 for token in tokens) < 4 * len(tokens) or not re.search(r"\S {2,}\S", text):
        return text
    return " ".join(word.replace(" ", "") for word in re.split(r" {2,}", text.strip()))


def _unleet(word: str) -> str:
    """A word whose inner digits stand for letters (l3ast); plain words, numbers and endings like `!` stay."""
    core = word.rstrip("!$@")
    return core.translate(_DIGITS) + word[len(core) :] if re.search(r"[A-Za-z][013457@$!]+[A-Za-z]", core) else word


@cache
def _costs() -> dict[str, float]:
    """Cost of a word, lower for common ones (Zipf's law by rank)."""
    ranked = gzip.decompress((ASSETS / "words.txt.gz").read_bytes()).decode("utf-8").split()
    scale = math.log(len(ranked))
    return {word: math.log((rank + 1) * scale) for rank, word in enumerate(ranked)}


def squeezed(text: str) -> str:
    """The letters of squashed text without what stands between them, digits read as letters; `1` is an i or an l."""
    return re.sub(r"[^a-z1]", "", text.translate(_SQUEEZED))


def respaced(text: str) -> str:
    """Squashed text with its Latin letters parted into common words, whatever spaces and digits it had."""
    return _RUN.sub(lambda m: _parted(m.group(0)), text)


def _parted(run: str) -> str:
    """One run of letters, digits and spaces as words; ends of sentences stay."""
    parts = re.split(r"((?<=\w)[.!?]+(?=\s|$))", run)
    return "".join(part if i % 2 else " " + segmented(squeezed(part)) for i, part in enumerate(parts)).strip()


def segmented(letters: str) -> str:
    """Letters `a` to `z` and `1` (i or l) as the likeliest words, a space between; unknown letters stand alone."""
    costs = _costs()
    best: list[tuple[float, str, int]] = [(0.0, "", 0)]
    for end in range(1, len(letters) + 1):
        options = [(best[end - 1][0] + _UNKNOWN, letters[end - 1 : end].replace("1", "i"), end - 1)]
        for start in range(max(0, end - _LONGEST), end):
            piece = letters[start:end]
            for word in (piece.replace("1", "i"), piece.replace("1", "l")) if "1" in piece else (piece,):
                cost = costs.get(word)
                if cost is not None:
                    options.append((best[start][0] + cost, word, start))
        best.append(min(options))
    words, end = [], len(letters)
    while end:
        _, word, start = best[end]
        words.append(word)
        end = start
    return " ".join(reversed(words))
