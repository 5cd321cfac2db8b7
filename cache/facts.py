"""What the guards look at in one text (C4): words, quantities, negations, poles, names, quotes, question kind. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from .fold import CODE, spelled
from .lexicon import (
    AUXILIARIES,
    AXES,
    CLASSES,
    EMPTY_NEGATIONS,
    NEGATORS,
    OWNERS,
    QUESTION_KINDS,
    QUESTION_LEADS,
    STOP_WORDS,
    ZH_EMPTY_NEGATIONS,
    ZH_NEGATORS,
    Table,
)
from .quantity import Quantity, quantities

MAX_CHARS = 2000

_WORD = re.compile(r"[a-z0-9][a-z0-9+#'\-]*|[\u3400-\u9fff]")
HAN = re.compile(r"[\u3400-\u9fff]")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*|\$[?!#@*$]")  # of a command: ls -R; of a shell: $?
_PATTERN = re.compile(r"\S*(?:\.[*+]|\\[a-z]|\[\^?[^\]\s]*\])\S*")  # a regular expression
_FAILED = re.compile(r"\bfail(?:s|ed|ing)? to\b")
_ADDRESS = re.compile(
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|[a-z]+://[^\s\u3000-\u9fff]+|(?<![\w/])(?:~|\.{1,2})?/[\w./-]+", re.IGNORECASE
)
_SIGN = re.compile(r"[<>=≤≥≠+×÷*^&|~%‰°±√→←\\]+|(?<=\s)[-−/](?=\s)|!=")  # what stands between what is compared
_USA = re.compile(r"\bU\.?S\.?(?:A\.?)?(?![\w.])")
_CASED = re.compile(r"(?<=\d)\s?([A-Za-z]{0,3}[A-Z][A-Za-z]{0,3})\b")  # units that case tells apart: Mb, MB
_QUOTE = re.compile(
    r"\"([^\"\n]{2,})\"|“([^”\n]+)”|「([^」\n]+)」|『([^』\n]+)』|《([^》\n]+)》"
    r"|(?<!\w)'([^'\n]{2,})'(?!\w)|‘([^’\n]+)’(?!\w)"
)
_CAPITAL = re.compile(r"(?<![.!?:;\n\"“(]\s)(?<!^)\b([A-Z][\w&.-]*\w|[A-Z]{2,})")
_MIXED = re.compile(r"(?<![a-z0-9])(?=[a-z0-9-]*[a-z])(?=[a-z0-9-]*\d)[a-z0-9-]+(?![a-z0-9])")
_DONT = re.compile(r"(?:^|[，。,！请你您])[别勿莫]")  # elsewhere mostly part of a word or a foreign name
_REPLY = re.compile(r"^(?:(?:yes|no|yeah|nope|sure|ok|okay)[,.!;]\s+|(?:不是的?|不|没有|是的?|对|好的?)[，,。！!])")
_CONTRACTED = re.compile(r"n't\b")
SPLIT_VERB = re.compile(
    r"\b(turn|switch|power|log|sign|speed|slow|shut|lay|opt)(ed|ing|s|ned|ning)?((?:\s+\w+){1,4}?)\s+(on|off|in|out|up|down)\b"
)

Poles = frozenset[tuple[str, int]]
_Words = dict[tuple[str, ...], set[tuple[str, int]]]
_Han = dict[str, list[tuple[str, str, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One text. `words` are lightly stemmed English words and single Chinese characters, `content` those with meaning.

    `poles` and `members` are `(axis or class, place)`; `owned` pairs an owner with what is owned; `code` holds
    addresses and paths too, `flags` those of commands, `signs` what stands in formulas, `cased` units with capitals.
    """

    text: str
    words: tuple[str, ...]
    content: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    negations: int
    poles: Poles
    members: Poles
    owned: frozenset[tuple[int, str]]
    names: frozenset[str]
    code: frozenset[str]
    flags: frozenset[str]
    signs: tuple[str, ...]
    cased: frozenset[str]
    quotes: frozenset[str]
    kinds: frozenset[str]
    chinese: bool


def stem(word: str) -> str:
    """Light English stem: plural and possessive endings only, so that distinct words stay distinct."""
    word = word.removesuffix("'s").rstrip("'-")
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def likeness(a: Sequence[str], b: Sequence[str]) -> float:
    """Share of two sequences that stands in both in the same order, 0..1. Symmetric."""
    first, second = sorted((list(a), list(b)))
    return SequenceMatcher(None, first, second, autojunk=False).ratio()


def _terms(table: Table) -> tuple[_Words, _Han]:
    words: _Words = {}
    han: _Han = {}
    for name, poles in table.items():
        for pole, terms in enumerate(poles):
            for term in terms:
                if HAN.search(term):
                    han.setdefault(term[0], []).append((term, name, pole))
                else:
                    words.setdefault(tuple(term.split()), set()).add((name, pole))
    for options in han.values():
        options.sort(key=lambda option: -len(option[0]))
    return words, han


_AXIS_TERMS, _CLASS_TERMS = _terms(AXES), _terms(CLASSES)


def _found(words: tuple[str, ...], text: str, table: tuple[_Words, _Han]) -> Poles:
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
    if HAN.search(text):
        for phrase in ZH_EMPTY_NEGATIONS:
            text = text.replace(phrase, "")
        text = re.sub(r"([\u3400-\u9fff])不\1", r"\1", text)  # 去不去
        for negator in ZH_NEGATORS:
            count += text.count(negator)
            text = text.replace(negator, " ")
        count += len(_DONT.findall(text))
    return count


def _kinds(text: str, words: tuple[str, ...]) -> frozenset[str]:
    """The first kind in the list whose cue asks: it opens the text or follows a word that introduces a question."""
    for kind, cues in QUESTION_KINDS:
        for cue in cues:
            if not cue.isascii():
                if cue in text:
                    return frozenset((kind,))
                continue
            parts = tuple(cue.split())
            for i in range(len(words) - len(parts) + 1):
                end = i + len(parts)
                if words[i:end] != parts or not (i == 0 or words[i - 1] in QUESTION_LEADS or len(parts) > 1):
                    continue
                if parts[-1] not in ("when", "where") or words[end : end + 1] == () or words[end] in AUXILIARIES:
                    return frozenset((kind,))
    return frozenset()


def _owned(words: tuple[str, ...], text: str) -> frozenset[tuple[int, str]]:
    english = {(OWNERS[w], words[i + 1]) for i, w in enumerate(words[:-1]) if w in OWNERS}
    chinese = {
        (owner, text[m.end() : m.end() + 2])
        for word, owner in OWNERS.items()
        if not word.isascii()
        for m in re.finditer(word, text)
    }
    return frozenset(english | chinese)


def _names(plain: str, text: str) -> frozenset[str]:
    words = plain.split()
    titled = sum(w[:1].isupper() for w in words) > 0.8 * max(len(words), 5)
    capitals = [] if titled else [w.lower() for w in _CAPITAL.findall(plain)]
    return frozenset({stem(w) for w in capitals if w not in STOP_WORDS} | set(_MIXED.findall(text)))


@lru_cache(maxsize=8192)
def facts(raw: str) -> Facts:
    """Facts of one text (its first 2,000 characters), remembered for the last few thousand texts."""
    raw = raw[:MAX_CHARS].replace("``", '"') if raw.count("``") != raw.count("```") else raw[:MAX_CHARS]
    code = [m.group(0).strip("`~") for m in CODE.finditer(raw)]
    plain = spelled(CODE.sub(" ", raw)).replace("''", '"').replace("’", "'").strip()
    code += [m.group(0).rstrip(".,;:!?)") for each in (_ADDRESS, _PATTERN) for m in each.finditer(plain)]
    plain = plain if plain.isupper() else _USA.sub("USA", plain)
    quotes = [next(g for g in m.groups() if g).strip() for m in _QUOTE.finditer(plain)]
    text = plain.lower().replace("cannot", "can not").replace("can't", "can not").replace("won't", "will not")
    text = _REPLY.sub("", _CONTRACTED.sub(" not", _FAILED.sub("not", text)))
    words = tuple(stem(w) for w in _WORD.findall(text))
    whole = tuple(w.removesuffix("'s") for w in _WORD.findall(SPLIT_VERB.sub(r"\1 \4 \3", text)))
    return Facts(
        text=text,
        words=words,
        content=tuple(w for w in words if w not in STOP_WORDS),
        quantities=quantities(text),
        negations=_negations(whole, text),
        poles=_found(whole, text, _AXIS_TERMS) | _found(words, "", _AXIS_TERMS),
        members=_found(whole, text, _CLASS_TERMS),
        owned=_owned(words, text),
        names=_names(plain, text),
        code=frozenset(code),
        flags=frozenset(_FLAG.findall(plain)),
        signs=tuple(sorted(_SIGN.findall(plain))),
        cased=frozenset(_CASED.findall(plain)),
        quotes=frozenset(quotes),
        kinds=_kinds(text, whole),
        chinese=HAN.search(text) is not None,
    )
