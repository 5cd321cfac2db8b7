"""Writes `cache/assets/synonyms.txt` from WordNet 3.0 (C4): pairs of English words whose common senses are the same.

    python -m shoal.cache.train.wordnet /usr/share/wordnet

The folder is that of Debian's `wordnet-base`. A pair is kept where both words stand in one synset that is among their
first senses (ranks adding up to at most 2) and both are met in the tagged corpus at least twice.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.resources import files
from itertools import combinations
from pathlib import Path

PARTS = ("noun", "verb", "adj", "adv")
_RANKS, _SEEN = 2, 2
NOTICE = """# Made from WordNet 3.0 by cache/train/wordnet.py.
#
# WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved. This software and database is being provided
# to you, the LICENSEE, by Princeton University under the following license. By obtaining, using and/or copying this
# software and database, you agree that you have read, understood, and will comply with these terms and conditions.
# Permission to use, copy, modify and distribute this software and database and its documentation for any purpose and
# without fee or royalty is hereby granted, provided that you agree to comply with the following copyright notice and
# statements, including the disclaimer, and that the same appear on ALL copies of the software, database and
# documentation, including modifications that you make for internal use or for distribution. THIS SOFTWARE AND DATABASE
# IS PROVIDED "AS IS" AND PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES, EXPRESS OR IMPLIED. BY WAY OF
# EXAMPLE, BUT NOT LIMITATION, PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES OF MERCHANTABILITY OR FITNESS
# FOR ANY PARTICULAR PURPOSE OR THAT THE USE OF THE LICENSED SOFTWARE, DATABASE OR DOCUMENTATION WILL NOT INFRINGE ANY
# THIRD PARTY PATENTS, COPYRIGHTS, TRADEMARKS OR OTHER RIGHTS. The name of Princeton University or Princeton may not be
# used in advertising or publicity pertaining to distribution of the software and/or database. Title to copyright in
# this software, database and any associated documentation shall at all times remain with Princeton University and
# LICENSEE agrees to preserve same.
"""


def _lines(path: Path) -> Iterator[list[str]]:
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("  "):
            yield line.split(" | ")[0].split()


def pairs(folder: Path) -> set[tuple[str, str]]:
    """Pairs of single words in alphabetical order."""
    seen = Counter[str]()
    for key, _, count in _lines(folder / "cntlist.rev"):
        seen[key.split("%")[0]] += int(count)
    found: set[tuple[str, str]] = set()
    for part in PARTS:
        rank = {
            (fields[0], offset): place
            for fields in _lines(folder / f"index.{part}")
            for place, offset in enumerate(fields[6 + int(fields[3]) :])
        }
        for fields in _lines(folder / f"data.{part}"):
            words = [re.sub(r"\(.*\)", "", w) for w in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
            kept = sorted({w for w in words if re.fullmatch(r"[a-z]{2,}", w) and seen[w] >= _SEEN})
            for a, b in combinations(kept, 2):
                if rank[a, fields[0]] + rank[b, fields[0]] <= _RANKS:
                    found.add((a, b))
    return found


def main() -> None:
    of = defaultdict[str, list[str]](list)
    for a, b in sorted(pairs(Path(sys.argv[1]))):
        of[a].append(b)
    text = NOTICE + "".join(f"{word} {' '.join(others)}\n" for word, others in sorted(of.items()))
    Path(str(files("shoal.cache").joinpath("assets", "synonyms.txt"))).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
