"""Makes the tables that take disguises off a text: look-alike letters, traditional characters, common English words.

`python -m shoal.router.train.disguises` writes `router/assets/look_alikes.json` and `words.txt.gz`. Sources: Unicode's
confusables as packaged by `confusable_homoglyphs` and Unicode's own letter names, OpenCC's traditional-to-simplified
characters as packaged by `opencc-python-reimplemented` (Apache-2.0), the ranked words of `wordninja` (MIT). Only this
script needs those packages.
"""

import gzip
import json
import re
import sys
import unicodedata
from pathlib import Path

ASSETS = Path(__file__).parent.parent / "assets"
WORDS = 40_000  # most common ones
_NAMED = re.compile(
    r"(?:MODIFIER LETTER |LATIN |NEGATIVE (?:SQUARED|CIRCLED) LATIN |REGIONAL INDICATOR SYMBOL |TAG LATIN )"
    r"(?:LETTER SMALL CAPITAL|SMALL LETTER|CAPITAL LETTER|SMALL CAPITAL|LETTER) (?:SCRIPT |OPEN |DOTLESS )?([A-Z])"
    r"(?: WITH .+)?$"
)
# what a reader takes these for, where neither table says so
_READ = {
    "η": "n",
    "п": "n",
    "г": "r",
    "и": "n",
    "я": "r",
    "ω": "w",
    "ш": "w",
    "ц": "u",
    "в": "b",
    "ɡ": "g",
    "ƨ": "s",
    "Ꮖ": "i",
}


def latin() -> dict[str, str]:
    """One character to the Latin letter that it looks like; what NFKD takes care of is left out."""
    from confusable_homoglyphs.confusables import confusables_data

    seen: dict[str, str] = {}
    for code in range(128, sys.maxunicode + 1):
        ch = chr(code)
        name = unicodedata.name(ch, "")
        if unicodedata.normalize("NFKD", ch) != ch or name.startswith(("CJK", "HANGUL", "HIRAGANA", "KATAKANA")):
            continue
        named = _NAMED.match(name)
        rows = confusables_data.get(ch, ()) if ch.isalpha() else ()
        alike = [row["c"].lower() for row in rows if re.fullmatch("[A-Za-z]", row["c"])]
        if named or alike:
            seen[ch] = named.group(1).lower() if named else alike[0]
    for ch, letter in list(seen.items()):
        if letter == "l" and seen.get(ch.lower()) == "i":  # looks like I
            seen[ch] = "i"
    for code in range(128, 0x20000):  # the other case of what is seen: Cyrillic к by К, small Cherokee by capital
        ch = chr(code)
        if ch not in seen and ch.upper() in seen and unicodedata.normalize("NFKD", ch) == ch:
            seen[ch] = seen[ch.upper()]
    return {**seen, **_READ}


def simplified() -> dict[str, str]:
    """One traditional character to the simplified one."""
    import opencc

    lines = (Path(opencc.__file__).parent / "dictionary" / "TSCharacters.txt").read_text("utf-8").splitlines()
    pairs = (line.split("\t") for line in lines if "\t" in line)
    return {old: new.split(" ")[0] for old, new in pairs if len(old) == 1 and new.split(" ")[0] != old}


def words() -> list[str]:
    """Common English words, the most common first."""
    import wordninja

    source = Path(wordninja.__file__).parent / "wordninja" / "wordninja_words.txt.gz"
    ranked = gzip.decompress(source.read_bytes()).decode("utf-8").split()[:WORDS]
    return [word for word in ranked if re.fullmatch("[a-z]+", word) and (len(word) > 1 or word in "ai")]


def main() -> None:
    made = {"latin": latin(), "simplified": simplified()}
    tables = {name: ["".join(table), "".join(table.values())] for name, table in made.items()}
    (ASSETS / "look_alikes.json").write_text(json.dumps(tables, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    (ASSETS / "words.txt.gz").write_bytes(gzip.compress("\n".join(words()).encode(), 9, mtime=0))
    print({name: len(table[0]) for name, table in tables.items()}, len(words()), "words")


if __name__ == "__main__":
    main()
