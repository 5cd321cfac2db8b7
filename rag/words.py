"""Text to index terms: English words lightly stemmed, Chinese cut by jieba, both folded to one form.

Knows nothing of documents or scores. Also tells how long a text is in rough tokens, without any tokenizer.
"""

import logging
import re
import unicodedata
import warnings
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import platformdirs

from .errors import need

_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_RUN = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_UNIT = re.compile(rf"[^\W_{_CJK}]+|[^\s]")
_HAS_CJK = re.compile(f"[{_CJK}]")

_STOP_EN = (
    "a an and are as at be been but by did do does for from had has have he her his how i in into is it its me my of "
    "on or our she so than that the their them then there these they this those to us was we were what when where "
    "which while who whom whose why will with would you your"
)
_STOP_ZH = (
    "的 了 是 在 和 与 及 或 也 都 就 着 把 被 为 于 而 其 之 以 有 这 那 哪 哪个 哪些 哪里 什么 谁 多少 "
    "几 怎么 怎样 如何 为什么 何时 请问 吗 呢 吧 啊 个 一个 对 到 从 由 中 上 下 里 等 他 她 它 我 你 们"
)
STOP = frozenset(f"{_STOP_EN} {_STOP_ZH}".split())


def has_cjk(text: str) -> bool:
    """Whether the text holds a Chinese character."""
    return _HAS_CJK.search(text) is not None


def length(text: str) -> int:
    """Rough tokens: a word, a Chinese character and a mark of punctuation count one each."""
    return sum(1 for _ in _UNIT.finditer(text))


@cache
def _jieba() -> Any:
    with warnings.catch_warnings():  # invalid escapes in its sources
        warnings.simplefilter("ignore")
        jieba = need("jieba", "search")
    jieba.setLogLevel(logging.CRITICAL)  # it tells of a dictionary that it could not keep, with a traceback
    cutter = jieba.Tokenizer()
    folder = Path(platformdirs.user_cache_dir("shoal"))  # never the shared temporary folder, where others can write
    with suppress(OSError):  # then its dictionary is made anew by each process, in a second
        folder.mkdir(parents=True, exist_ok=True)
    cutter.tmp_dir = str(folder)
    cutter.initialize()
    return cutter


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """An English word without its plural, past or -ing ending; others as they are. Errs on the side of too little."""
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    for ending, instead in (("sses", "ss"), ("ies", "y"), ("ied", "y")):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word[: -len(ending)] + instead
    if word.endswith("s") and word[-2] not in "sui":
        word = word[:-1]
    for ending in ("ing", "ed"):
        root = word[: -len(ending)]
        if word.endswith(ending) and len(root) >= 3 and re.search("[aeiouy]", root):
            word = root[:-1] if root[-1] == root[-2] and root[-1] not in "lsz" else root
            break
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


def terms(text: str) -> list[str]:
    """Index terms in order: folded (NFKC, lower case), stop words kept, Chinese cut into words and their parts."""
    return [term for term, _ in surfaces(text)]


def surfaces(text: str) -> list[tuple[str, str]]:
    """(index term, the folded word it stands for) in order: what to count by, and what to show."""
    folded = unicodedata.normalize("NFKC", text).lower()
    out: list[tuple[str, str]] = []
    for match in _RUN.finditer(folded):
        run = match.group()
        if has_cjk(run[0]):
            out.extend((word, word) for word in _jieba().lcut_for_search(run))
        else:
            out.append((stem(run), run))
    return out


def content_terms(text: str) -> list[str]:
    """The terms of a question that carry meaning, each once; all of them when nothing but stop words is left."""
    found = dict.fromkeys(terms(text))
    kept = [term for term in found if term not in STOP]
    return kept or list(found)
