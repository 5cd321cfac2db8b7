"""Words that only one of two texts has, set against each other."""

from typing import Any

import numpy as np
import pytest

from shoal.cache.align import ALIGNED, align, own_words
from shoal.cache.facts import facts
from shoal.cache.words import Words
from shoal.rag.embed import default_embedder


def aligned(a: str, b: str, words: Words) -> dict[str, float]:
    x, y = facts(a), facts(b)
    weights = dict.fromkeys((*x.words, *y.words), 5.0)
    row = align(x, y, weights, words)
    assert row == pytest.approx(align(y, x, weights, words))
    return dict(zip(ALIGNED, row, strict=True))


@pytest.mark.parametrize(
    ("a", "b", "own"),
    [
        ("the fast car", "a quick car", (["fast"], ["quick"])),
        ("how do I pay", "how do I pay", ([], [])),
        ("怎么修改登录密码", "怎么更改登录密码", (["修"], ["更"])),
        ("北京天气", "上海天气", (["北京"], ["上海"])),
        ("用 Python 读取文件", "用 Rust 读取文件", (["python"], ["rust"])),
        ("", "hello world", ([], ["world"])),
    ],
)
def test_what_each_text_has_alone(a: str, b: str, own: tuple[list[str], list[str]]) -> None:
    assert own_words(facts(a), facts(b)) == own


def test_a_synonym_is_a_match_and_another_thing_is_not() -> None:
    words = Words(default_embedder())
    same = aligned("how do I purchase a ticket", "how do I buy a ticket", words)
    other = aligned("how do I paint a ticket", "how do I buy a ticket", words)
    assert same["aligned min"] > other["aligned min"]
    assert same["unmatched max"] < other["unmatched max"]
    equal = aligned("the same", "the same", words)
    assert (equal["aligned min"], equal["unmatched max"], equal["strangers max"]) == (1.0, 0.0, 0.0)


def test_words_are_embedded_once_and_the_oldest_go(letters: Any) -> None:
    asked: list[str] = []

    class Counting:
        fingerprint = letters.fingerprint

        def __call__(self, texts: Any) -> Any:
            asked.extend(texts)
            return letters(texts)

    words = Words(Counting(), size=2)
    first = words(["one", "two", "one"])
    assert first.shape == (3, 256)
    assert np.array_equal(first[0], first[2])
    assert asked == ["one", "two"]
    words(["two"])
    words(["three"])  # "one" goes
    words(["two", "three"])
    assert asked == ["one", "two", "three"]
    words(["one"])
    assert asked == ["one", "two", "three", "one"]
    assert words(["four", "five", "six"]).shape == (3, 256)  # more at once than are kept
