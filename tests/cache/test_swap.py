import pytest

from shoal.cache import same_question
from shoal.cache.swap import Swap, exchanged
from shoal.rag.embed import default_embedder


@pytest.mark.parametrize(
    ("a", "b", "parts"),
    [
        ("Who discovered radium?", "Who discovered oxygen?", ("oxygen", "radium")),
        ("Who first discovered radium?", "Who first discovered oxygen?", ("oxygen", "radium")),
        ("镭是谁发现的", "氧气是谁发现的", ("氧气", "镭")),
        ("去上海要带什么", "去海南要带什么", ("上海", "海南")),
        ("How do I buy a car?", "how can I purchase the car", ("buy", "purchase")),
        ("怎么修改密码?", "如何更改密码?", None),  # the same words
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


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Is coffee good for me?", "Is coffee bad for me?"),
        ("When did the shop move to Berlin?", "When did the shop leave Berlin?"),
        ("When was the bridge opened?", "When was the bridge destroyed?"),
        ("When was the shop founded?", "When was the shop sold?"),
        ("What is the first step of the setup?", "What is the second step of the setup?"),
        ("When was the lighthouse built?", "When was the lighthouse demolished?"),
        ("Who wrote the report?", "Who read the report?"),
        ("台灯保修几年?", "吊灯保修几年?"),
    ],
)
def test_one_changed_word_changes_the_question(a: str, b: str) -> None:
    veto = same_question(default_embedder())
    assert veto(a, b) is not None
    assert veto(b, a) is not None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("When was the shop founded?", "When was the shop established?"),
        ("Where is my package?", "Where is my parcel?"),
        ("How do I buy a lamp?", "How do I purchase a lamp?"),
        ("怎么修改密码?", "如何更改密码?"),
        ("The function loads a table.", "The function retrieves a table."),
        ("It is used to select records.", "It selects records."),
    ],
)
def test_synonyms_keep_the_question(a: str, b: str) -> None:
    assert same_question(default_embedder())(a, b) is None
