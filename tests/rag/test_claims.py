import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.rag.claims import claim


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("泵的重量是40公斤。", "泵的重量为四十公斤。"),
        ("The warranty lasts two years.", "The warranty lasts 2 years."),
        ("It has 3,200 employees in Rome.", "In Rome it has 3200 employees."),
        ("海蓝公司成立于1998年。", "海蓝公司成立于一九九八年。"),
        ("公司现有员工三万五千人。", "公司现有员工3.5万人。"),
    ],
)
def test_the_same_in_other_figures(one: str, other: str) -> None:
    assert claim(one).repeats(claim(other))
    assert not claim(one).contradicts(claim(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The pump weighs 40 kg.", "The pump weighs 41 kg."),
        ("泵的重量是40公斤。", "泵的重量是四十一公斤。"),
        ("The shop is open on Sundays.", "The shop isn't open on Sundays."),
        ("商店周日营业。", "商店周日不营业。"),
        ("商店周日营业。", "商店周一营业。"),
        ("The office opens on 3 March 2020.", "The office opens on 3 May 2020."),
        ("The meeting is on Monday.", "The meeting is on Friday."),
        ("会议于5月3日举行。", "会议于5月8日举行。"),
    ],
)
def test_conflicts_of_numbers_dates_and_negation(one: str, other: str) -> None:
    for first, second in ((one, other), (other, one)):
        assert claim(first).contradicts(claim(second))
        assert not claim(first).repeats(claim(second))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The pump weighs 40 kg.", "The motor of the crane weighs 41 kg."),
        ("Of all players Sam White scored most goals.", "Of all players Tom Black scored most goals."),
        ("张伟出生于北京。", "李娜出生于北京。"),
        ("The tank holds hot water.", "The tank holds cold water."),
        ("无论如何，非常感谢。", "如何感谢？"),
    ],
)
def test_facts_of_one_kind_are_neither_the_same_nor_in_conflict(one: str, other: str) -> None:
    assert not claim(one).repeats(claim(other))
    assert not claim(one).contradicts(claim(other))


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_has_a_claim_and_both_ways_agree(one: str, other: str) -> None:
    first, second = claim(one), claim(other)
    assert first.repeats(second) == second.repeats(first)
    assert first.contradicts(second) == second.contradicts(first)
    assert not (first.repeats(second) and first.contradicts(second))
    assert not first.contradicts(first)
