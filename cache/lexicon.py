"""Words whose exchange changes a question, English and Chinese (C4): reads `assets/lexicon.json`, holds no rules.

`AXES`: each axis is a list of poles, each pole a list of terms that mean the same; two texts on different poles of
one axis ask different things. `CLASSES`: names of one kind (months, countries, ...); naming different members is a
conflict. English terms are lower case and matched as whole words; Chinese terms are matched as substrings.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

Table = dict[str, tuple[tuple[str, ...], ...]]

_DATA: dict[str, Any] = json.loads(files(__package__).joinpath("assets", "lexicon.json").read_text("utf-8"))


def _table(rows: Mapping[str, list[str]]) -> Table:
    return {name: tuple(tuple(pole.split(", ")) for pole in poles) for name, poles in rows.items()}


def _synonyms() -> list[str]:
    """Pairs from WordNet: a word and its synonyms a line."""
    text = files(__package__).joinpath("assets", "synonyms.txt").read_text("utf-8")
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return [f"{word} {other}" for word, *others in lines for other in others]


def _members(groups: list[str]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for n, group in enumerate(groups):
        for word in group.split():
            found.setdefault(word, set()).add(n)
    return {word: frozenset(numbers) for word, numbers in found.items()}


AXES: Table = _table(_DATA["axes"])
CLASSES: Table = _table(_DATA["classes"])
# Name of one word -> the class and place it has.
MEMBER_OF = {
    term: (name, place) for name, poles in CLASSES.items() for place, pole in enumerate(poles) for term in pole
}
# Axes whose words also stand for other things: they count only between texts that share most of their content.
WEAK_AXES = frozenset(_DATA["weak_axes"].split(", "))
# Possessives by owner; "my account" and "your account" differ, "my child" and "your service" need not.
OWNERS = {word: owner for owner, words in enumerate(_DATA["owners"]) for word in words.split()}
# Opposites told apart only where two texts are otherwise aligned: too common as plain words to look for everywhere.
OPPOSITES = frozenset(frozenset(pair.split("/")) for pair in _DATA["opposites"].split())

# Beginnings and endings that turn one word into its opposite: inflate and deflate, payer and payee.
PREFIX_OPPOSITES = tuple(tuple(pair.split("/")) for pair in _DATA["prefix_opposites"].split())
SUFFIX_OPPOSITES = tuple(tuple(pair.split("/")) for pair in _DATA["suffix_opposites"].split())

NUMBER_WORDS: dict[str, float] = _DATA["number_words"]
SCALE_WORDS: dict[str, float] = _DATA["scale_words"]
ORDINAL_WORDS: dict[str, int] = _DATA["ordinal_words"]
CURRENCY_SIGNS: dict[str, str] = _DATA["currency_signs"]
# One name per unit; a quantity in another unit is another quantity.
UNITS = {alias: name for name, aliases in _DATA["units"].items() for alias in aliases.split()}

NEGATORS = frozenset(_DATA["negators"].split())
# Words that hold a negator but negate nothing: A-not-A questions, 不过, "no matter"; removed before counting.
EMPTY_NEGATIONS: tuple[str, ...] = tuple(_DATA["empty_negations"])
ZH_NEGATORS: tuple[str, ...] = tuple(_DATA["zh_negators"].split())
ZH_EMPTY_NEGATIONS: tuple[str, ...] = tuple(_DATA["zh_empty_negations"].split())

QUESTION_KINDS = tuple((kind, tuple(cues.split(", "))) for kind, cues in _DATA["question_kinds"].items())
# Kinds of question that ask for the same often enough: "how do I find it", "where do I find it".
ALIKE_KINDS = frozenset(frozenset(pair.split("/")) for pair in _DATA["question_pairs_alike"])
# Words after which a question word asks, where else it would only join clauses ("people who left", "when you pay").
QUESTION_LEADS = frozenset(_DATA["question_leads"].split())
# What follows "when" and "where" that ask; "when paying abroad" does not.
AUXILIARIES = frozenset(_DATA["aux_verbs"].split())
# Words that may stand in one of two near copies and not say anything: "is used to get", "gets".
SWAP_NEUTRAL = frozenset(_DATA["swap_neutral"].split())
_GROUPS: list[str] = [*_DATA["synonyms"], *_synonyms()]
# Word -> the groups of synonyms it is in; a word of one group for another changes nothing.
SYNONYMS: dict[str, frozenset[int]] = _members(_GROUPS)
# Words that are spelt as they should be.
KNOWN = frozenset(SYNONYMS)
# Irregular forms: won is win.
IRREGULAR = dict(pair.split("/") for pair in _DATA["irregular"].split())
# Endings in which two words with one beginning may differ and say the same: deliver, delivery.
ENDINGS = frozenset(("", *_DATA["endings"].split()))
# Of two near copies: words never seen; words that are seen but may be added or exchanged; what parts may turn around.
QUIET = frozenset(_DATA["quiet"].split())
SOFT = frozenset(_DATA["soft"].split())
COMMUTATIVE = frozenset(_DATA["commutative"].split())
# Chinese words that say the same, the first standing for all; words never seen; characters that may be added.
ZH_CANONICAL = {word: group.split()[0] for group in _DATA["zh_same"] for word in group.split()[1:]}
ZH_QUIET = tuple(_DATA["zh_quiet"].split())
ZH_SOFT = frozenset(_DATA["zh_soft"])
# Chinese characters that say nothing where one of two near copies has them and the other nothing instead: 买到, 在家里.
ZH_ADDABLE = frozenset(_DATA["zh_addable"])
STOP_WORDS = frozenset(_DATA["stop_words"].split())
