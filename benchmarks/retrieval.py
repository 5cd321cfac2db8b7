"""Retrieval on XQuAD and CMRC 2018 dev: dense, BM25, fused, reranked; measured only, nothing is fitted here.

    python -m benchmarks.retrieval [--queries N]

A document is one passage of the set; it is found when one of its chunks is. Measures by ir-measures. Time is per
question, from text to ranked hits, and for reranking 20 passages of 256 tokens read at ingest, and not yet read.
"""

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from ir_measures import RR, R, nDCG

from shoal import KnowledgeBase
from shoal.rag.embed import default_embedder
from shoal.rag.reading import default_reader
from shoal.rag.rerank import LightReranker

DATA = Path(os.environ.get("SHOAL_DATA", "../shared/data"))
OUT = Path(__file__).parent / "out"
NOTE = (
    "A document is one passage of the set; bm25 is SQLite's over the same passages; reranked is the shipped "
    "reader over the fused first stage. Nothing was fitted on these sets."
)
MEASURES = [R @ 1, R @ 5, R @ 10, RR @ 10, nDCG @ 10]
Questions = list[tuple[str, str, tuple[str, ...]]]  # question, passage name, answers


def squad(path: Path) -> tuple[dict[str, str], Questions]:
    """({passage name: text}, questions) of a SQuAD-format file."""
    texts: dict[str, str] = {}
    questions: Questions = []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            name = f"p{len(texts)}"
            texts[name] = paragraph["context"]
            for one in paragraph["qas"]:
                questions.append((one["question"], name, tuple({answer["text"] for answer in one["answers"]})))
    return texts, questions


def base_of(texts: dict[str, str], folder: Path) -> KnowledgeBase:
    """A knowledge base with one document per passage."""
    base = KnowledgeBase.open(folder)
    for name, text in texts.items():
        base.add_text(text, name)
    return base


def by_document(doc_ids: Sequence[str]) -> dict[str, float]:
    """Documents in the order in which their first chunk came, scored so."""
    return {doc_id: -float(rank) for rank, doc_id in enumerate(dict.fromkeys(doc_ids))}


def systems(base: KnowledgeBase, texts: dict[str, str]) -> dict[str, Callable[[str], dict[str, float]]]:
    """Name to a function from a question to {document: score}."""
    embed = default_embedder()
    names, vectors = list(texts), embed(list(texts.values()))

    def dense(question: str) -> dict[str, float]:
        return dict(zip(names, map(float, vectors @ embed([question])[0]), strict=True))

    def bm25(question: str) -> dict[str, float]:
        rows = base._store.bm25(question, 50)
        known = base._store.rows([row for row, _ in rows])
        return by_document([known[row].doc_id for row, _ in rows])

    return {
        "dense": dense,
        "bm25": bm25,
        "fused": lambda question: by_document([hit.doc_id for hit in base.search(question, 20, rerank=False)]),
        "reranked": lambda question: by_document([hit.doc_id for hit in base.search(question, 20)]),
    }


def measure(base: KnowledgeBase, texts: dict[str, str], questions: Questions) -> dict[str, dict[str, float]]:
    """Measures and p50 milliseconds of every system."""
    qrels = [ir_measures.Qrel(str(i), gold, 1) for i, (_, gold, _) in enumerate(questions)]
    results: dict[str, dict[str, float]] = {}
    for system, find in systems(base, texts).items():
        run, times = [], []
        for i, (question, _, _) in enumerate(questions):
            start = time.perf_counter()
            found = find(question)
            times.append(time.perf_counter() - start)
            run += [ir_measures.ScoredDoc(str(i), doc_id, score) for doc_id, score in found.items()]
        figures = ir_measures.calc_aggregate(MEASURES, qrels, run)
        results[system] = {str(name): round(float(value), 4) for name, value in figures.items()}
        results[system]["ms_p50"] = round(1000 * float(np.median(times)), 1)
    return results


def rerank_time(base: KnowledgeBase) -> dict[str, float]:
    """Milliseconds (median of 20) to score 20 passages of about 256 tokens, read at ingest and not yet read."""
    reader = default_reader()
    reranker = LightReranker(reader)
    found = (base.candidates("Which city hosts the largest university?", 20) * 20)[:20]
    passages = [("", (one.row.text + " ") * 8) for one in found]
    passages = [
        ("", text[: int(len(text) * 256 / max(256, len(reader.read([("", text)])[0].tokens)))]) for _, text in passages
    ]
    start = time.perf_counter()
    readings = reader.read(passages)
    reading = time.perf_counter() - start
    prepared = [_with(one, read) for one, read in zip(found, readings, strict=True)]
    times = []
    for _ in range(20):
        start = time.perf_counter()
        reranker("Which city hosts the largest university?", prepared)
        times.append(time.perf_counter() - start)
    tokens = float(np.mean([len(one.tokens) for one in readings]))
    return {
        "tokens_each": round(tokens), "read_at_ingest_ms": round(1000 * float(np.median(times)), 1),
        "unread_ms": round(1000 * (reading + float(np.median(times))), 1),
    }  # fmt: skip


def _with(one: Any, reading: Any) -> Any:
    from dataclasses import replace

    return replace(one, reading=reading)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=0, help="this many questions of each set, drawn with seed 0")
    limit = parser.parse_args().queries
    english, asked_english = squad(DATA / "xquad/xquad.en.json")
    chinese, asked_chinese = squad(DATA / "xquad/xquad.zh.json")
    cmrc, asked_cmrc = squad(DATA / "cmrc2018/cmrc2018_dev.json")
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        bases = {
            name: (base_of(texts, Path(folder) / name), texts)
            for name, texts in (("en", english), ("zh", chinese), ("cmrc", cmrc))
        }
        for name, where, questions in (
            ("xquad en", "en", asked_english),
            ("xquad zh", "zh", asked_chinese),
            ("xquad zh to en", "en", asked_chinese),
            ("xquad en to zh", "zh", asked_english),
            ("cmrc dev", "cmrc", asked_cmrc),
        ):
            chosen = random.Random(0).sample(questions, limit) if 0 < limit < len(questions) else questions
            base, texts = bases[where]
            table[name] = {"questions": len(chosen), "passages": len(texts), **measure(base, texts, chosen)}
            for system in ("dense", "bm25", "fused", "reranked"):
                figures = "  ".join(
                    f"{key} {value:.3f}" for key, value in table[name][system].items() if key != "ms_p50"
                )
                print(f"{name:16} {system:9} {figures}  {table[name][system]['ms_p50']:.1f} ms", flush=True)
        table["time"] = rerank_time(bases["en"][0])
        print("reranking 20 passages:", table["time"])
        for base, _ in bases.values():
            base.close()
    OUT.mkdir(exist_ok=True)
    record = {
        "title": "Retrieval", "note": NOTE,
        "command": "python -m benchmarks.retrieval", "machine": f"{platform.processor() or platform.machine()}, "
        f"{os.cpu_count()} cores", "threads": os.environ.get("OMP_NUM_THREADS", "default"), "seed": 0,
        "date": date.today().isoformat(), "reader": default_reader().version, "results": table,
    }  # fmt: skip
    (OUT / "retrieval.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
