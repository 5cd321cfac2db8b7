import pytest

from shoal.cache.quantity import chinese_value, quantities


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("no numbers here", []),
        ("1,250.50 dollars", [("1250.5", "usd")]),
        ("$5k", [("5000", "usd")]),
        ("two hundred and five km", [("205", "km")]),
        ("three million people", [("3000000", "person")]),
        ("5kg and 20%", [("5", "kg"), ("20", "%")]),
        ("the 3rd and the fourth", [("3", ""), ("4", "")]),
        ("v2.1", [("2.1", "")]),
        ("release 10.4.1", [("10.4.1", "version")]),
        ("3:30 pm", [("15:30", "clock")]),
        ("下午3点半", [("15:30", "clock")]),
        ("三天", [("3", "d")]),
        ("第十二章", [("12", "")]),
        ("3万元", [("30000", "cny")]),
        ("一个问题", []),
        ("may 5, 2021", [("2021", "year"), ("5", "day"), ("5", "month")]),
    ],
)
def test_quantities(text: str, found: list[tuple[str, str]]) -> None:
    assert list(quantities(text)) == sorted(found)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("三", 3),
        ("十", 10),
        ("十二", 12),
        ("三百二十", 320),
        ("一千零五", 1005),
        ("二〇二四", 2024),
        ("三万五千", 35000),
        ("两亿", 2e8),
    ],
)
def test_chinese_numerals(text: str, value: float) -> None:
    assert chinese_value(text) == value
