"""A knowledge base of 2,000 documents made and audited here and on Ray Data (S7): the same results? what time, memory?

    python -m benchmarks.ray_data [--every K] [--chars N]

`shoal kb add` and `shoal kb audit`, each with and without `--ray`, over the documents of `benchmarks.audit`; scores are
predicted. Memory is the proportional set size of the command and every process it started, sampled; time and memory
include starting Ray, whose workers run at its default niceness. About six minutes on two quiet cores; with `--every 10`
one.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks._router import table, write
from benchmarks.audit import corpus

SHOAL = str(Path(sys.executable).with_name("shoal"))
TABLES = {"kb.sqlite": ("documents", "chunks", "aside", "scenarios"), "audit/scores.sqlite": ("scores",)}
SAMPLE_S = 0.5


def family(root: int) -> Iterator[int]:
    """The process and all that it started."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children[int(fields[1])].append(int(path.name))
    waiting = [root]
    while waiting:
        yield (one := waiting.pop())
        waiting += children[one]


def memory_mib(root: int) -> float:
    """Proportional set size: what processes share counts once."""
    total = 0
    for process in family(root):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def timed(*words: str, home: Path) -> tuple[float, float]:
    """Seconds and most MiB of a `shoal kb` command."""
    environment = {**os.environ, "SHOAL_HOME": str(home), "SHOAL_ROUTER_ONLY": "true", "RAY_USAGE_STATS_ENABLED": "0"}
    began, most = time.monotonic(), 0.0
    with (home / "log.txt").open("a") as log:
        process = subprocess.Popen([SHOAL, "kb", *words], env=environment, stdout=log, stderr=log, cwd=home)
        while process.poll() is None:
            most = max(most, memory_mib(process.pid))
            time.sleep(SAMPLE_S)
    if process.returncode:
        raise SystemExit((home / "log.txt").read_text()[-2000:])
    return time.monotonic() - began, most


def rows_of(kb: Path) -> list[Any]:
    """All that a knowledge base holds, in an order of its own."""
    found = []
    for file, tables in TABLES.items():
        with closing(sqlite3.connect(kb / file)) as base:
            found += [sorted(base.execute(f"SELECT * FROM {table}"), key=repr) for table in tables]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take one document of so many")
    parser.add_argument("--chars", type=int, default=0, help="documents are cut after so many characters; 0: whole")
    given = parser.parse_args()
    texts, _ = corpus(given.chars, given.every)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        files = home / "files"
        files.mkdir()
        for source in dict.fromkeys(name.partition("#")[0] for name in texts):
            lines = [json.dumps({"id": name.partition("#")[2], "text": text}) for name, text in texts.items()
                     if name.startswith(f"{source}#")]  # fmt: skip
            (files / f"{source}.jsonl").write_text("\n".join(lines), "utf-8")
        rows = []
        for where, more in (("here", []), ("Ray Data", ["--ray"])):
            kb = str(home / where)
            for what, words in (("add", [str(files)]), ("audit", ["--allow-loss", "1"])):
                seconds, most = timed(what, *words, "--kb", kb, *more, home=home)
                rows.append({"command": f"kb {what}", "": where, "seconds": round(seconds, 1), "MiB": round(most)})
                print(rows[-1], flush=True)
        same = rows_of(home / "here") == rows_of(home / "Ray Data")
    print(table(rows))
    print("the same to the last byte:", same)
    note = (
        f"{len(texts):,} documents. Peak memory of all processes, shared pages counted once; Ray's start is part of "
        f"time and memory. Documents, passages, vectors, readings, labels and scores of both: "
        f"{'the same to the last byte' if same else 'DIFFERENT'}."
    )
    write("ray_data", "Audit on Ray Data", {"note": note, "rows": rows})
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
