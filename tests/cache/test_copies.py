"""What differs between near copies: pure, without the embedder."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cache.copies import alike, difference, root


@pytest.mark.parametrize(
    ("a", "b", "parts"),
    [
        ("Who discovered radium?", "Who discovered oxygen?", {"radium", "oxygen"}),
        ("How do I prune roses?", "how can I prune the plum trees", {"ros", "plum", "tre"}),
        ("镭是谁发现的", "氧气是谁发现的", {"镭", "氧气"}),
        ("怎么修剪月季?", "怎么修剪薰衣草?", {"月季", "薰衣草"}),
        ("怎么修改密码?", "请问如何更改密码？", set()),
        ("How do I buy a used car?", "how can I purchase the used car", set()),
        ("Was the flight cancelled?", "was the flight canceled", set()),
        ("When will my parcel be delivered?", "when is my parcel's delivery", set()),
        ("How do I log in to the portal?", "how do I login to the portal?", set()),
        ("Can I get a virtual card?", "Can I obtain a virtual card?", set()),
        ("Turn the heating off", "turn off the heating", set()),
        ("这个功能能不能离线用?", "这个功能能离线用吗", set()),
    ],
)
def test_parts_that_only_one_has(a: str, b: str, parts: set[str]) -> None:
    d = difference(a, b)
    assert d is not None
    assert set(d.first + d.second) == parts
    assert d == difference(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Is gold heavier than lead?", "Is lead heavier than gold?"),
        ("Does a fox eat a badger?", "Does a badger eat a fox?"),
        ("Can a tenant sue a neighbour?", "Can a neighbour sue a tenant?"),
        ("Who taught Latin before Greek?", "Who taught Greek before Latin?"),
        ("How do I fly from Rome to Paris?", "How do I fly from Paris to Rome?"),
        ("Is Zeeland a part of Holland?", "Is Holland a part of Zeeland?"),
        ("Does stress cause insomnia?", "Does insomnia cause stress?"),
        ("黄金比铅重吗?", "铅比黄金重吗?"),
        ("香港属于广东吗?", "广东属于香港吗?"),
        ("狐狸会吃刺猬吗?", "刺猬会吃狐狸吗?"),
        ("牛奶能代替豆浆吗?", "豆浆能代替牛奶吗?"),
        ("先买票后上车可以吗?", "先上车后买票可以吗?"),
        ("1940 年他担任加拿大驻澳大利亚专员", "1940 年他担任澳大利亚驻加拿大专员"),
        ("解偶联蛋白在 1978 年被发现，于 1988 年首次被克隆。", "解偶联蛋白在 1978 年被克隆，于 1988 年首次被发现。"),
    ],
)
def test_who_did_it_to_whom(a: str, b: str) -> None:
    d = difference(a, b)
    assert d is not None
    assert d.moved


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("In 2020, who won the cup?", "Who won the cup in 2020?"),
        ("If it rains, where do we meet?", "Where do we meet if it rains?"),
        ("What is the capital of France?", "What is France's capital?"),
        ("difference between a llama and an alpaca", "difference between an alpaca and a llama"),
        ("Is tea or coffee better for sleep?", "is coffee or tea better for sleep"),
        ("Did Porto beat Ajax?", "Was Ajax beaten by Porto?"),
        ("怎么重置密码?", "密码怎么重置?"),
        ("2020年谁赢了世界杯?", "谁赢了2020年世界杯?"),
        ("羊驼和骆驼有什么区别?", "骆驼和羊驼有什么区别?"),
    ],
)
def test_a_whole_part_may_go_elsewhere(a: str, b: str) -> None:
    d = difference(a, b)
    assert d is not None
    assert not d.moved


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("deliver", "delivery", True), ("purchase", "buy", True), ("recieve", "receive", True),
        ("employee", "employer", False), ("legal", "illegal", False), ("active", "inactive", False),
        ("2023", "2024", False), ("lavender", "rose", False),
    ],
)  # fmt: skip
def test_words_that_say_the_same(a: str, b: str, same: bool) -> None:
    assert alike(*sorted((root(a), root(b)))) is same


WORDS = "in from to before and by not Rome Paris fox badger eats 比 和 北京 上海 怎么 的 打开".split()  # noqa: SIM905


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=9), st.lists(st.sampled_from(WORDS), max_size=9))
def test_symmetric(a: list[str], b: list[str]) -> None:
    assert difference(" ".join(a), " ".join(b)) == difference(" ".join(b), " ".join(a))


@settings(deadline=None)
@given(st.text(max_size=60))
def test_a_text_does_not_differ_from_itself(a: str) -> None:
    d = difference(a, a)
    assert d is None or (not d.moved and not d.first + d.second and d.turned is None)
