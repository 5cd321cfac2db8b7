"""Questions put into the other language word by word, by nearest neighbours in the bundled encoder's own space.

No parallel text is at hand; single words of both languages lie close in that space, so each word is exchanged for its
nearest one when that is near enough. Rough, but enough to teach a matcher not to lean on shared words.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ..embed import default_embedder
from ..words import _jieba, has_cjk

_LATIN = re.compile(r"[A-Za-z][A-Za-z'-]+")
_PIECE = re.compile(r"[A-Za-z][A-Za-z'-]*|\d[\d,.]*|[^\sA-Za-z\d]")
NEAR = 0.7


class Lexicon:
    """Word for word exchange, made from the words of the texts given (the most frequent 12,000 and 16,000)."""

    def __init__(self, texts: Iterable[str]) -> None:
        english: Counter[str] = Counter()
        chinese: Counter[str] = Counter()
        for text in texts:
            if has_cjk(text):
                chinese.update({word for word in _jieba().lcut(text) if re.fullmatch(r"[\u4e00-\u9fff]{1,6}", word)})
            else:
                english.update(set(_LATIN.findall(text)))
        ours = [word for word, _ in english.most_common(12_000)]
        theirs = [word for word, _ in chinese.most_common(16_000)]
        near = default_embedder()(ours) @ default_embedder()(theirs).T
        self._to_chinese = _nearest(ours, theirs, near)
        self._to_english = _nearest(theirs, ours, near.T)

    def other(self, question: str) -> str:
        """The question with every known word exchanged."""
        if has_cjk(question):
            return " ".join(self._to_english.get(word, word) for word in _jieba().lcut(question))
        pieces = []
        for piece in _PIECE.findall(question):
            found = self._to_chinese.get(piece) or self._to_chinese.get(piece.lower()) or piece
            pieces.append(f" {found} " if found.isascii() and found.isalnum() else found)
        return "".join(pieces)


def _nearest(words: Sequence[str], others: Sequence[str], near: np.ndarray) -> dict[str, str]:
    best = near.argmax(axis=1)
    return {word: others[best[i]] for i, word in enumerate(words) if near[i, best[i]] > NEAR}
