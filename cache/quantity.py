"""Quantities in a text (C4): numbers as digits or words, units, currencies, dates, clock times, versions; English and
Chinese.

A quantity is `(value, unit)` with the unit's canonical name or "". Knows nothing of pairs: `guards` compares.
"""

import re
from collections.abc import Iterator

from .lexicon import CLASSES, CURRENCY_SIGNS, NUMBER_WORDS, ORDINAL_WORDS, SCALE_WORDS, UNITS

Quantity = tuple[str, str]
FEW = "few"  # unit of a bare "two" or "zero" in words and of numbers glued to a name: another text may do without

_MONTHS = {name: i + 1 for i, names in enumerate(CLASSES["month"]) for name in names if name.isascii()}
_MONTHS["may"] = 5
_MONTH = "(" + "|".join(sorted(_MONTHS, key=len, reverse=True)) + r")\.?"
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_DATES = (
    (re.compile(r"(?<!\d)(\d{4})\s*[-/.年]\s*(\d{1,2})\s*[-/.月]\s*(\d{1,2})(?!\d)\s*[日号]?"), "ymd"),
    (re.compile(r"(?<!\d)(\d{4})\s*年\s*(\d{1,2})\s*月"), "ym"),
    (re.compile(r"(?<!\d)(\d{1,2})\s*月\s*(\d{1,2})\s*[日号]"), "md"),
    (re.compile(rf"\b{_MONTH}\s+{_DAY}(?:,?\s+(\d{{4}}))?(?!\w)"), "mdy"),
    (re.compile(rf"\b{_DAY}(?:\s+of)?\s+{_MONTH}(?:,?\s+(\d{{4}}))?(?!\w)"), "dmy"),
    (re.compile(rf"\b{_MONTH},?\s+(\d{{4}})(?!\w)"), "my"),
)
_CLOCK = re.compile(
    r"(下午|晚上|上午|早上|凌晨|中午)?\s*(?<![\d.])(\d{1,2})(?:[:：](\d{2})|\s*点(?:(\d{1,2})分|半)?(?!\d))\s*(am|pm|a\.m\.|p\.m\.)?"
    r"|(?<![\d.])(\d{1,2})\s*(am|pm|a\.m\.|p\.m\.)(?!\w)"
)
_VERSION = re.compile(
    r"(?<![\w.])(?:v(?:ersion)?\.?\s*)?(\d+(?:\.\d+){2,8})(?![\w.]{0,40}\d)|\bv(?:ersion\s*)?(\d+(?:\.\d+)?)\b"
)
_ZH_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2, "壹": 1}
_ZH_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8}
_ZH_UNIT = (
    "个天年月日号次人件张本只条块元角分秒周岁位名层楼倍米斤度点折成种步行列项台辆部章节期届级万"
    "亿千百公厘毫小星英平吨克升杯片晚颗粒瓶盒袋份页场局轮课顿趟遍回双套头匹座栋架艘门扇把支枚根口"
)
_ZH_NUMBER = re.compile(rf"(第)?([零〇一二三四五六七八九两十百千万亿]+)(?=([{_ZH_UNIT}])|(?<=..))")
_SIGN = "[" + "".join(CURRENCY_SIGNS) + "]"
_WORD_UNIT = "|".join(sorted((re.escape(u) for u in UNITS), key=len, reverse=True))
_NUMBER = re.compile(
    rf"({_SIGN})?\s*(?<![a-z0-9_.])(-?\d[\d,]*(?:\.\d+)?|\.\d+)(st|nd|rd|th)?\s*(k|m|bn|万|亿|千|百|million|billion|thousand|trillion|hundred)?(?![a-z])"
    rf"(?:[\s-]*({_WORD_UNIT})(?![a-z]))?"
    rf"|({_SIGN})?(?<![\d.,])(\d+(?:\.\d+)?)({_WORD_UNIT})(?![a-z])"
    rf"|(?<=[a-z])-?(\d+(?:\.\d+)?)(?![a-z0-9_])"
)
_SUFFIX = {"k": 1e3, "m": 1e6, "bn": 1e9, "万": 1e4, "亿": 1e8, "千": 1e3, "百": 100} | SCALE_WORDS
_WORDS = re.compile(
    r"\b(?:"
    + "|".join([*NUMBER_WORDS, *SCALE_WORDS])
    + r")(?:(?:\s+and)?[\s-]+(?:"
    + "|".join([*NUMBER_WORDS, *SCALE_WORDS])
    + r"))*s?\b"
)
_MARK = re.compile(r"(?:^|(?<=\s))(\d{1,2})[.)](?=\s)")
_SQUARE = re.compile(r"\b(square|cubic)[\s-]+(?=[a-z])|\b(sq|cu)\.?\s+(?=[a-z])")
_SUM = re.compile(
    r"(?<![\w.])\d+(?:\.\d+)?(?:(?:\s*[\^/÷]\s*|\s+[-−]\s+)-?\d+(?:\.\d+)?)+(?![\w.]*\d)"
)  # the order of the two counts
_NEXT_UNIT = re.compile(rf"[\s-]*({_WORD_UNIT})(?![a-z])")
_ORDINAL = re.compile(r"\b(" + "|".join(w for w in ORDINAL_WORDS if w not in ("first", "second")) + r")\b")


def _plain(value: float) -> str:
    return f"{value:.10g}"


def _words_value(text: str) -> float:
    total = current = 0.0
    for found in re.findall(r"[a-z]+", text):
        word = found if found in NUMBER_WORDS else found.removesuffix("s")
        if word in NUMBER_WORDS:
            current += NUMBER_WORDS[word] if word != "dozen" or not current else current * 11
        elif word == "hundred":
            current = (current or 1) * 100
        elif word in SCALE_WORDS:
            total, current = total + (current or 1) * SCALE_WORDS[word], 0.0
    return total + current


def chinese_value(text: str) -> float:
    """Value of a Chinese numeral: 三百二十 is 320, 二〇二四 is 2024."""
    if not any(c in _ZH_SCALES for c in text):
        return float("".join(str(_ZH_DIGITS[c]) for c in text))
    total = section = digit = 0
    for c in text:
        if c in _ZH_DIGITS:
            digit = _ZH_DIGITS[c]
        elif _ZH_SCALES[c] >= 10**4:
            total, section, digit = (total + section + digit) * _ZH_SCALES[c], 0, 0
        else:
            section, digit = section + (digit or 1) * _ZH_SCALES[c], 0
    return float(total + section + digit)


def _dates(text: str) -> Iterator[tuple[re.Match[str], list[Quantity]]]:
    for pattern, fields in _DATES:
        for match in pattern.finditer(text):
            parts = []
            for field, group in zip(fields, match.groups(), strict=False):
                if group:
                    number = _MONTHS[group] if group in _MONTHS else int(group)
                    parts.append((str(number), {"y": "year", "m": "month", "d": "day"}[field]))
            yield match, parts


def _clock(match: re.Match[str]) -> list[Quantity]:
    when, hour, minute, zh_minute, half, hour2, half2 = match.groups()
    h = int(hour or hour2)
    late = (when in ("下午", "晚上")) or (half or half2 or "").startswith("p")
    h = h + 12 if late and h < 12 else h
    m = int(minute or zh_minute or (30 if match.group(0).endswith("半") else 0))
    return [(f"{h}:{m:02d}", "clock")]


def _number(match: re.Match[str]) -> list[Quantity]:
    sign, digits, _, suffix, unit, sign2, digits2, unit2, tail = match.groups()
    value = float((digits or digits2 or tail).replace(",", "")) * _SUFFIX.get(suffix or "", 1)
    name = CURRENCY_SIGNS.get(sign or sign2 or "") or UNITS.get(unit or unit2 or "", "")
    if tail:  # glued to a name, which is often left out: office365
        return [(tail, FEW)]
    shown = _plain(value) if name or suffix or "." not in (digits or digits2 or tail) else (digits or digits2 or tail)
    return [(shown, name)]


def _unmarked(text: str) -> str:
    """The text without the marks of a numbered list: "1. ... 2. ..."."""
    marks = list(_MARK.finditer(text))
    if [int(m.group(1)) for m in marks] != list(range(1, len(marks) + 1)) or len(marks) < 2:
        return text
    return _MARK.sub(lambda m: " " * len(m.group(0)), text)


def quantities(text: str) -> tuple[Quantity, ...]:
    """All quantities of a lower-cased, NFKC-normalised text, sorted. Dates come apart into year, month and day."""
    found: list[Quantity] = []
    text = _SQUARE.sub(lambda m: {"sq": "square", "cu": "cubic"}.get(m.group(2), m.group(1)), _unmarked(text))

    def take(pattern: re.Pattern[str], convert: "object") -> None:
        nonlocal text
        for match in list(pattern.finditer(text)):
            found.extend(convert(match))  # type: ignore[operator]
        text = pattern.sub(lambda m: " " * len(m.group(0)), text)

    for match, parts in _dates(text):
        if text[match.start() : match.end()].strip():
            found.extend(parts)
            text = text[: match.start()] + " " * len(match.group(0)) + text[match.end() :]
    found += [("".join(m.group(0).split()), "as written") for m in _SUM.finditer(text)]
    take(_VERSION, lambda m: [(m.group(1) or m.group(2), "" if m.group(2) else "version")])
    take(_CLOCK, _clock)
    take(_NUMBER, _number)
    for match in _WORDS.finditer(text):
        unit = _NEXT_UNIT.match(text, match.end())
        if match.group(0) != "one" or unit:
            bare = FEW if match.group(0) in ("two", "zero") else ""
            found.append((_plain(_words_value(match.group(0))), UNITS.get(unit.group(1), "") if unit else bare))
    found += [(str(ORDINAL_WORDS[m.group(1)]), "") for m in _ORDINAL.finditer(text)]
    found += _chinese(text)
    return tuple(sorted(found))


def _chinese(text: str) -> Iterator[Quantity]:
    for match in _ZH_NUMBER.finditer(text.replace("十分", "  ")):
        ordinal, digits, unit = match.groups()
        if digits == "一" and not ordinal and unit not in ("年", "月", "周", "岁", "小", "公", "块", "元"):
            continue  # 一个, 一下, 一种: an article
        if len(digits) == 1 and not unit and not ordinal:
            continue
        if (all(c in "十百千万亿" for c in digits) and len(digits) > 1) or digits in ("万", "千", "百", "亿"):
            continue  # 千万, 百万: words, unless a digit says otherwise
        rest = text[match.end() : match.end() + 2]
        name = next((UNITS[rest[:n]] for n in (2, 1) if rest[:n] in UNITS), FEW if digits == "两" else "")
        if digits == "一" and ordinal:
            continue  # 第一, which 首 also says: left to the axis of first and last
        yield _plain(chinese_value(digits)), name
