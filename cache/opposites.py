"""Which words are opposites (C4): listed pairs, and words made from one another by a prefix or ending. Pure."""

from .lexicon import OPPOSITES, PREFIX_OPPOSITES, SUFFIX_OPPOSITES

_NEGATING = ("un", "in", "im", "ir", "il", "dis", "non", "non-", "de", "mis", "anti", "anti-")


def opposite(a: str, b: str) -> bool:
    """Whether two words are opposites: listed ones, or one made from the other, as unsafe from safe."""
    short, long = sorted((a, b), key=len)
    if frozenset((a, b)) in OPPOSITES or (len(short) > 3 and any(long == prefix + short for prefix in _NEGATING)):
        return True
    return any(_swapped(a, b, x, y) or _swapped(b, a, x, y) for x, y in PREFIX_OPPOSITES) or any(
        _swapped(a[::-1], b[::-1], x[::-1], y[::-1]) or _swapped(b[::-1], a[::-1], x[::-1], y[::-1])
        for x, y in SUFFIX_OPPOSITES
    )


def _swapped(a: str, b: str, x: str, y: str) -> bool:
    rest = a.removeprefix(x)
    return len(rest) > 2 and rest != a and rest == b.removeprefix(y) and b.startswith(y)
