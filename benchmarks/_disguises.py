"""Ways to disguise a text that a person still reads, for the guard's benchmark."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from shoal.router.features import language_of

LOOK = str.maketrans("aeiocpxy", "аеіосрху")
SMALL = str.maketrans("abcdefghijklmnoprstuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ")
SCRIPTS = str.maketrans("abcdeghiklmnorstu", "ꭺᏼᏟᎠᎬցһꭵᏦᏞᎷոօᏒѕᎢս")
LEET = str.maketrans("aeiost", "431057")
_TABLES = Path(__file__).parent.parent / "router" / "assets" / "look_alikes.json"
_OLD, _NEW = json.loads(_TABLES.read_text("utf-8"))["simplified"]
TRADITIONAL = {ord(new): old for old, new in reversed(list(zip(_OLD, _NEW, strict=True)))}


def _spaced(text: str) -> str:
    return "  ".join(" ".join(word) for word in text.split(" ")) if language_of(text) == "en" else " ".join(text)


def _mixed(text: str) -> str:
    return "".join(ch.upper() if i % 2 else ch.lower() for i, ch in enumerate(text))


def _dotted(text: str) -> str:
    return ".".join(text) if language_of(text) == "zh" else " ".join(".".join(word) for word in text.split(" "))


def _uneven(text: str) -> str:
    """A space after every third letter or so, none between some words."""
    draw = random.Random(text)
    parts = (
        word[:at] + " " + word[at:] if len(word) > 3 else word for word in text.split() for at in (draw.randint(1, 3),)
    )
    return "".join(part + ("" if draw.random() < 0.2 else " ") for part in parts).strip()


def _between(sign: str) -> Callable[[str], str]:
    return lambda text: sign.join(text)


DISGUISES: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "zero-width": _between("\u200b"),
    "full-width": lambda text: "".join(chr(ord(ch) + 0xFEE0) if "!" <= ch <= "~" else ch for ch in text),
    "look-alikes": lambda text: text.translate(LOOK),
    "spaced": _spaced,
    "mixed case": _mixed,
    "dotted": _dotted,
}
# those that only make sense in one language
OWN: dict[str, dict[str, Callable[[str], str]]] = {
    "en": {
        "small capitals": lambda text: text.lower().translate(SMALL),
        "other scripts": lambda text: text.lower().translate(SCRIPTS),
        "uneven spaces": _uneven,
        "digits for letters": lambda text: text.lower().translate(LEET),
    },
    "zh": {
        "traditional": lambda text: text.translate(TRADITIONAL),
        "emoji between": _between("😀"),
        "digits between": _between("7"),
    },
}
