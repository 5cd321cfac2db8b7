"""Words whose exchange changes a question, English and Chinese (C4): reads `assets/lexicon.json`, holds no rules.

`AXES`: each axis is a list of poles, each pole a list of terms that mean the same; two texts on different poles of one
axis ask different things. `CLASSES`: names of one kind (months, countries, ...); naming different members is a conflict.
English terms are lower case and matched as whole words; Chinese terms are matched as substrings.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

Table = dict[str, tuple[tuple[str, ...], ...]]

_DATA: dict[str, Any] = json.loads(files(__package__).joinpath("assets", "lexicon.json").read_text("utf-8"))


def _table(rows: Mapping[str, list[str]]) -> Table:
    return {name: tuple(tuple(pole.split(", ")) for pole in poles) for name, poles in rows.items()}


AXES: Table = _table(_DATA["axes"])
CLASSES: Table = _table(_DATA["classes"])
# Opposites told apart only where two texts are otherwise aligned: too common as plain words to look for everywhere.
OPPOSITES = frozenset(frozenset(pair.split("/")) for pair in _DATA["opposites"].split())

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
STOP_WORDS = frozenset(_DATA["stop_words"].split())
PIVOTS = frozenset(_DATA["pivots"].split())
ZH_PIVOTS: tuple[str, ...] = tuple(_DATA["zh_pivots"].split())
