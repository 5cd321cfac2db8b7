import pytest

from shoal.cache.swap import Swap, exchanged
from shoal.rag.embed import default_embedder


@pytest.mark.parametrize(
    ("a", "b", "parts"),
    [
        ("Who discovered radium?", "Who discovered oxygen?", None),  # too little stays
        ("Who first discovered radium?", "Who first discovered oxygen?", ("oxygen", "radium")),
        ("镭是谁发现的", "氧气是谁发现的", ("氧气", "镭")),
        ("去上海要带什么", "去海南要带什么", ("上海", "海南")),
        ("How do I buy a car?", "how can I purchase the car", None),
        ("How do I buy a used car?", "how can I purchase the used car", ("buy", "purchase")),
        ("the same text", "the same text", None),
        ("How do I reset my password?", "密码怎么重置", None),
    ],
)
def test_the_part_that_differs(a: str, b: str, parts: tuple[str, str] | None) -> None:
    assert exchanged(a, b) == parts == exchanged(b, a)


def test_synonyms_pass_and_names_do_not() -> None:
    swap = Swap(default_embedder())
    assert swap.conflict("How do I buy a used car?", "How do I purchase a used car?") is None
    assert swap.conflict("Who first discovered radium?", "Who first discovered oxygen?") == "exchanged: oxygen / radium"
    assert swap.conflict("镭是谁发现的", "氧气是谁发现的") is not None
