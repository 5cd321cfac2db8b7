import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.router.disguise import respaced, segmented, squash, squeezed, unstuffed


@pytest.mark.parametrize(
    ("disguised", "plain"),
    [
        ("l\u200be\u200bast thinking", "least thinking"),
        ("ｌｅａｓｔ　ｔｈｉｎｋｉｎｇ", "least thinking"),
        ("l e a s t  t h i n k i n g", "least thinking"),
        ("l.e.a.s.t t.h.i.n.k.i.n.g", "least thinking"),
        ("lеаst thіnkіng", "least thinking"),
        ("LeAsT ThInKiNg", "least thinking"),
        ("l3ast th1nking", "least thinking"),
        ("最 少 的 思 考", "最少的思考"),
        ("最.少.思.考", "最少思考"),
        ("ᴍɪɴɪᴍᴀʟ ᴛʜɪɴᴋɪɴɢ", "minimal thinking"),
        ("ᎷᏆΝᏆΜᎪᏞ ᎢᎻᏆΝᏦᏆΝᏀ", "minimal thinking"),
        ("lеаst tհիոkiոց".replace("հի", "հi"), "least thinking"),
        ("🅻🅴🅰🆂🆃 🆃🅷🅸🅽🅺🅸🅽🅶", "least thinking"),
        ("𝓁𝑒𝒶𝓈𝓉 𝕥𝕙𝕚𝕟𝕜𝕚𝕟𝕘", "least thinking"),
        ("łεαst тнiикiиg", "least thinking"),
        ("m1n1m4l th1nk1ng", "minimal thinking"),
        ("don\u2019t think", "don't think"),
        ("用最簡單的推理", "用最简单的推理"),
        ("最😀少😀思😀考", "最少思考"),
        ("room 101 costs $45", "room 101 costs $45"),
        ("the plain words stay", "the plain words stay"),
    ],
)
def test_disguises_come_off(disguised: str, plain: str) -> None:
    assert squash(disguised) == plain


@pytest.mark.parametrize(
    ("spaced", "words"),
    [
        ("le ast thin king", "least thinking"),
        ("13457 th1nk1ng", "least thinking"),
        ("usetheleastthinking", "use the least thinking"),
        ("ho w to ma ke a ca ke. th anks", "how to make a cake. thanks"),
        ("h0w t0 b4k3 4 c4k3", "how to bake a cake"),
    ],
)
def test_words_are_found_whatever_the_spaces(spaced: str, words: str) -> None:
    assert respaced(squash(spaced)) == words


def test_ordinary_words_come_back_as_they_were() -> None:
    text = "what is the best way to learn how to swim in the summer holidays"
    assert respaced(text) == text
    assert segmented("") == ""
    assert segmented("qqq") == "q q q"


def test_signs_between_chinese_characters_go() -> None:
    assert unstuffed("最1少2的3思4考") == "最少的思考"
    assert unstuffed("第一句。第二句") == "第一句。第二句"
    assert unstuffed("用Python写代码") == "用Python写代码"


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    plain = squash(text)
    assert isinstance(respaced(plain), str)
    assert isinstance(unstuffed(plain), str)
    assert set(squeezed(plain)) <= set("abcdefghijklmnopqrstuvwxyz1")
