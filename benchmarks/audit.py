"""Audit of a knowledge base of 2,000 documents in two languages, with noise in it: time, size and recall.

    python -m benchmarks.audit [--home FOLDER] [--minutes M] [--chars N] [--every K] [--read] [--limit L ...]

XQuAD (both languages), CMRC 2018 dev, WikiText-2 and StackFAQ, and noise: random characters, shuffled words, encoded
bytes, logs. Recall is asked with XQuAD's and CMRC's own questions, which nothing was fitted on. Each limit is an audit
of a fresh copy of the same knowledge base; scores are shared. Stopped after M minutes, the next run goes on. With N,
documents end with the sentence that holds their Nth character, with K only every Kth document is taken, and only
questions that these answer are asked. Scores are predicted; with --read the default model reads every text.
"""

import argparse
import base64
import json
import os
import platform
import random
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from shoal import GatedLLM, KnowledgeBase
from shoal.rag.audit_recall import Asked
from shoal.rag.chunk import sentences
from shoal.router.audit_page import audit_page
from shoal.router.reading_ease import predicted, read

from .retrieval import DATA, OUT, squad

LIMITS = (0.05, 0.1, 0.25, 0.65)
NOTE = (
    "Hard: depth score below the limit, on the scale of rag.depth; noise is a third of the documents and answers "
    "nothing. Recall: an answer among the first 5 passages, on XQuAD's and CMRC dev's own questions. Each row is an "
    "audit of a fresh copy of the same knowledge base."
)
ASKED = 60  # questions of each set
Texts = dict[str, str]


class OutOfTime(Exception):
    """The minutes given are over; what was scored is kept."""


def wikitext(count: int) -> Texts:
    """Paragraphs of WikiText-2's validation text."""
    path = next((DATA / "wikitext2").glob("*valid*"))
    lines = [line.strip() for line in path.read_text("utf-8").splitlines() if 200 < len(line) < 800]
    return {f"wikitext#{i}": line for i, line in enumerate(random.Random(0).sample(lines, count))}


def faqs() -> Texts:
    """Questions with their answers."""
    pairs = json.loads((DATA / "stackfaq/stackExchange-FAQ.json").read_text("utf-8"))["root"]["qapair"]
    return {f"stackfaq#{i}": "\n\n".join([pair["question"], pair["answer"][0]]) for i, pair in enumerate(pairs)}


def noise(words: Sequence[str], han: str, count: int) -> Texts:
    """What crawls and exports leave behind: no question is answered by any of it."""
    draw = random.Random(0)

    def one(kind: int) -> str:
        if kind == 0:
            return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz0123456789 -_/.") for _ in range(250))
        if kind == 1:
            return " ".join(draw.choice(words) for _ in range(50)) + "."
        if kind == 2:
            return base64.b64encode(draw.randbytes(180)).decode()
        if kind == 3:
            return "".join(draw.choice(han) for _ in range(120)) + "。"
        return "\n".join(
            f"2026-0{draw.randint(1, 9)}-1{draw.randint(0, 9)} 0{draw.randint(0, 9)}:{draw.randint(10, 59)} "
            f"[{draw.choice(('INFO', 'WARN', 'DEBUG'))}] {draw.randrange(16**12):012x} GET /{draw.randrange(16**8):08x}"
            for _ in range(4)
        )

    return {f"noise#{i}": one(i % 5) for i in range(count)}


def cut(text: str, chars: int) -> str:
    """The text up to the end of the sentence with that character; all of it for 0."""
    if not chars or len(text) <= chars:
        return text
    return text[: next((span.end for span in sentences(text) if span.end >= chars), len(text))]


def corpus(chars: int = 0, every: int = 1) -> tuple[Texts, list[Asked]]:
    """({document name: text}, questions)."""
    texts: Texts = {}
    asked: list[Asked] = []
    draw = random.Random(0)
    for name, path, most in (
        ("xquad-en", "xquad/xquad.en.json", 240),
        ("xquad-zh", "xquad/xquad.zh.json", 240),
        ("cmrc", "cmrc2018/cmrc2018_dev.json", 300),
    ):
        passages, questions = squad(DATA / path)
        kept = {key: cut(text, chars) for key, text in list(passages.items())[:most:every]}
        texts |= {f"{name}#{key}": text for key, text in kept.items()}
        mine = [
            Asked(question=question, answers=answers)
            for question, key, answers in questions
            if any(answer in kept.get(key, "") for answer in answers)
        ]
        asked += draw.sample(mine, min(len(mine), ASKED))
    texts |= {name: cut(text, chars) for name, text in list((wikitext(500) | faqs()).items())[::every]}
    words = sorted({word for key, text in texts.items() if key.startswith("xquad-en") for word in text.split()})
    han = "".join(sorted({char for key, text in texts.items() if "zh" in key for char in text if "一" <= char <= "龥"}))
    texts |= {name: text[:chars] if chars else text for name, text in noise(words, han, 700 // every).items()}
    return texts, asked


def build(base: Path, texts: Texts, ends: float) -> None:
    """The knowledge base of the texts, a row each, by source."""
    with KnowledgeBase.open(base) as kb:
        names = list(texts)
        for start in range(0, len(names), 100):
            part = names[start : start + 100]
            for source in dict.fromkeys(name.partition("#")[0] for name in part):
                mine = [name for name in part if name.startswith(f"{source}#")]
                rows = (json.dumps({"id": name.partition("#")[2], "text": texts[name]}) for name in mine)
                kb.add_data("\n".join(rows).encode(), source, kind="jsonl")
            print(f"added {start + len(part)} of {len(names)}", flush=True)
            if time.monotonic() > ends:
                raise OutOfTime


def one_audit(base: Path, home: Path, limit: float, score: Any, asked: list[Asked], ends: float) -> dict[str, Any]:
    """The audit of a copy of the knowledge base at a limit; a copy half done is gone on with."""
    folder = home / f"{base.name}-{limit:g}-{score.fingerprint[:4]}"
    if not folder.exists():
        shutil.copytree(base, home / "copying", dirs_exist_ok=True)
        (home / "copying").rename(folder)
    shared, own = home / "scores.sqlite", folder / "audit" / "scores.sqlite"
    own.parent.mkdir(exist_ok=True)
    if shared.exists() and not own.exists():
        shutil.copy(shared, own)

    def progress(what: str, done: float, total: float) -> None:
        print(f"\r{limit:g} {what} {done:g}/{total:g}    ", end="", flush=True)
        if time.monotonic() > ends:
            raise OutOfTime

    with KnowledgeBase.open(folder) as kb:
        report = kb.audit(score, asked, limit=limit, allowed=1.0, progress=progress)
    shutil.copy(own, shared)
    (home / f"report-{limit:g}.html").write_text(audit_page(report, "./kb"), "utf-8")
    (home / f"report-{limit:g}.json").write_text(json.dumps(report), "utf-8")
    return report


def row_of(report: dict[str, Any]) -> dict[str, Any]:
    """The figures of a report that the table shows."""
    size, recall = report["size"], report["recall"]
    noisy = next(row for row in report["depth"]["by_source"] if row["name"] == "noise")
    quiet = [row for row in report["depth"]["by_source"] if row["name"] != "noise"]
    return {
        "limit": report["limit"],
        "documents": report["documents"]["all"],
        "hard": report["documents"]["split"],
        "passages before": size["before"]["passages"],
        "passages after": size["after"]["passages"],
        "characters": round(size["after"]["characters"] / size["before"]["characters"] - 1, 4),
        "recall@5 before": recall["before"],
        "recall@5 after": recall["after"],
        "noise hard": round(noisy["hard"] / noisy["documents"], 4),
        "not scored": report["documents"]["not_scored"],
        "rest hard": round(sum(r["hard"] for r in quiet) / sum(r["documents"] for r in quiet), 4),
        "seconds": report["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=OUT / "audit", help="where knowledge bases and scores are kept")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--chars", type=int, default=0, help="documents are cut after so many characters; 0: whole")
    parser.add_argument("--every", type=int, default=1, help="take one document of so many")
    parser.add_argument("--read", action="store_true", help="the default model reads every text")
    parser.add_argument("--limit", type=float, nargs="*", default=list(LIMITS))
    given = parser.parse_args()
    ends = time.monotonic() + 60 * given.minutes
    home: Path = given.home
    home.mkdir(parents=True, exist_ok=True)
    texts, asked = corpus(given.chars, given.every)
    base = home / f"base-{given.chars}-{given.every}"
    if not (base / "done").exists():
        build(base, texts, ends)
        (base / "done").touch()
    print(f"\n{len(texts)} documents, {len(asked)} questions")
    if not given.limit:
        return
    score = read(GatedLLM.load()) if given.read else predicted()
    rows = [row_of(one_audit(base, home, limit, score, asked, ends)) for limit in given.limit]
    print()
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    record = {
        "title": f"Audit of a knowledge base, scores {'read by the model' if given.read else 'predicted'}",
        "command": "python -m benchmarks.audit",
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "seed": 0,
        "date": date.today().isoformat(),
        "scorer": score.fingerprint,
        "cut after characters": given.chars or "not cut",
        "note": NOTE,
        "questions": len(asked),
        "rows": rows,
    }
    (OUT / f"audit{'_read' if given.read else ''}.json").write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    try:
        main()
    except OutOfTime:
        print("\nout of time: run again to go on")
        sys.exit(75)
