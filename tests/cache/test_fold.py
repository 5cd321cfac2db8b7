import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cache.fold import fold, spelled


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("ＡＩ？", "AI?"),
        ("１２", "12"),
        ("5 ㎏", "5 kg"),
        ("ﬁle", "file"),
        ("re\u200bset", "reset"),
        ("\ufeffhi", "hi"),
    ],
)
def test_width_and_ligatures_do_not_count(a: str, b: str) -> None:
    assert fold(a) == fold(b)


@pytest.mark.parametrize(
    ("a", "b"), [("10²", "102"), ("2⁵", "25"), ("3½", "31/2"), ("步骤①②", "步骤12"), ("x₁", "x1"), ("2⁻³", "2-3")]
)
def test_signs_that_mean_something_else_stay(a: str, b: str) -> None:
    assert fold(a) != fold(b)
    assert spelled(a) != spelled(b) or a == "x₁"


@pytest.mark.parametrize(
    ("sign", "written"), [("10²", "10^2"), ("3½ cups", "3 1/2  cups"), ("H₂O", "H2O"), ("第①步", "第 1 步")]
)
def test_signs_written_out(sign: str, written: str) -> None:
    assert spelled(sign) == written


@given(st.text(alphabet=st.sampled_from("ab1²½①Ａ１ﬁ\u200b\u0301\u00adＫ₁ "), max_size=12) | st.text(max_size=30))
def test_folding_twice_is_folding_once(text: str) -> None:
    assert fold(fold(text)) == fold(text)
