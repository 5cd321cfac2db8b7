"""A veto that needs the embedder (C4): two questions alike but for one word or name, and the two mean different things.

"Who first discovered radium" and "... oxygen" are near copies, and no list of names is ever complete. The exchanged
words alone tell: synonyms lie close together (92% of English and 98% of Chinese pairs above the limit), names of one
kind mostly do not (17%). Only near copies are looked at; loose paraphrases are left to the second look.
"""

from functools import lru_cache

from .facts import HAN, facts, stem
from .lexicon import SWAP_NEUTRAL, SYNONYMS
from .semantic import Embed

LIMIT = 0.66  # cosine of the exchanged parts, for the bundled embedder: a wrong answer costs more than a miss
_WORDS, _CHARACTERS = 1, 4  # longest part that is exchanged
_SHARED = 1  # content words (or characters) that must stay


# Chinese words that say the same, the first standing for all: cut by characters, they would look like exchanged parts.
_SAME = (
    "怎么 怎样 如何", "修改 更改 变更", "重置 重设", "取消 撤销", "查询 查看", "购买 选购", "登录 登陆",
    "账号 帐号 账户 帐户", "费用 价格 价钱", "多久 多长时间", "退款 退钱", "快递 物流", "联系 联络",
    "开通 启用", "忘记 忘了",
)  # fmt: skip
_NONE: frozenset[int] = frozenset()
_SYNONYMS = {stem(word): groups for word, groups in SYNONYMS.items()}
_CANONICAL = {word: group.split()[0] for group in _SAME for word in group.split()[1:]}


def _plain(text: str) -> str:
    for word, canonical in _CANONICAL.items():
        text = text.replace(word, canonical)
    return text


def exchanged(a: str, b: str) -> tuple[str, str] | None:
    """The one part in which two near copies differ, in sorted order; None for other pairs."""
    x, y = facts(_plain(a)), facts(_plain(b))
    if x.chinese != y.chinese:
        return None
    left, right = (list(f.words if f.chinese else f.content) for f in (x, y))
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    one, other = left[start : len(left) - end], right[start : len(right) - end]
    limit = _CHARACTERS if x.chinese else _WORDS
    if not one or not other or max(len(one), len(other)) > limit or start + end < _SHARED:
        return None
    first, second = sorted((_joined(one), _joined(other)))
    return first, second


def _joined(words: list[str]) -> str:
    return "".join(words) if all(HAN.match(w) for w in words) else " ".join(words)


class Swap:
    """Vetoes near copies whose exchanged parts are further apart than `limit` by cosine."""

    def __init__(self, embed: Embed, limit: float = LIMIT) -> None:
        self._limit = limit
        self._cosine = lru_cache(maxsize=4096)(lambda one, other: float(_dot(embed, one, other)))

    def conflict(self, a: str, b: str) -> str | None:
        """Why the answer to one must not be given to the other, or None. Symmetric."""
        parts = exchanged(a, b)
        if parts is None or _alike(*parts) or self._cosine(*parts) >= self._limit:
            return None
        return "exchanged: " + " / ".join(parts)


def _alike(one: str, other: str) -> bool:
    """Whether the exchange is of synonyms, or of words that say little."""
    return bool({one, other} & SWAP_NEUTRAL or _SYNONYMS.get(one, _NONE) & _SYNONYMS.get(other, _NONE))


def _dot(embed: Embed, one: str, other: str) -> float:
    first, second = embed([one, other])
    return float(first @ second)
