"""Text that is shown, without what would drive a terminal or turn the reading direction. Knows no terminal, no HTML."""

from unicodedata import category

_JOINERS = "\u200c\u200d"  # join or part letters and emoji


def visible(text: str, *, also: str = "") -> str:
    """The text without control characters and invisible marks, but for those in `also`; every kind of space stays."""
    kept = _JOINERS + also
    return "".join(char for char in text if char.isprintable() or char in kept or category(char) == "Zs")
