"""Text as it is compared (C3): NFKC where it keeps the meaning. Pure; knows nothing of keys or guards.

NFKC would make 102 of 10², 31⁄2 of 3½ and 12 of ①②; raised, lowered and circled signs and fractions therefore stay as
they are. Signs without width or meaning (zero-width space, soft hyphen, byte order mark) go.
"""

import re
import unicodedata

CODE = re.compile(r"(?:```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]+`)", re.DOTALL)
# Superscripts, subscripts, fractions, and numbers in circles and brackets.
_KEPT = re.compile(
    r"([\u00aa\u00b2\u00b3\u00b9\u00ba\u00bc-\u00be\u02b0-\u02b8\u02e0-\u02e4\u1d2c-\u1d6a\u1d78\u1d9b-\u1dbf\u2070-\u209c"
    r"\u2150-\u215f\u2189\u2460-\u24ff\u3251-\u325f\u32b1-\u32bf]+)"
)
_INVISIBLE = re.compile(r"[\u00ad\u200b\u2060\ufeff]")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_POWER = re.compile(r"(?<=[\d)])[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")


def fold(text: str) -> str:
    """NFKC, but for signs that it would give another meaning. Idempotent."""
    parts = _KEPT.split(_INVISIBLE.sub("", text))
    parts[::2] = [unicodedata.normalize("NFKC", part) for part in parts[::2]]
    return _INVISIBLE.sub("", "".join(parts))


def spelled(text: str) -> str:
    """The folded text with those signs written out, for reading numbers: 10^2, 3 1/2, " 1 " for a 1 in a circle."""
    text = _POWER.sub(lambda m: "^" + m.group(0).translate(_RAISED), fold(text))
    return _KEPT.sub(lambda m: "".join(map(_written, m.group(0))), text)


def _written(sign: str) -> str:
    plain = unicodedata.normalize("NFKC", sign).replace("⁄", "/")
    return f" {plain} " if unicodedata.decomposition(sign).startswith(("<fraction>", "<circle>", "<compat>")) else plain
