"""Extractive answers on XQuAD and CMRC 2018 dev: precision at coverage; measured only, nothing is fitted here.

    python -m benchmarks.extract [--queries N]

Every question is asked twice: of a knowledge base of all passages of its set, and of one without the passages of a
third of the articles (there the right answer is to abstain). An answer is right when it contains one of the gold
answers. "at default" is what `KnowledgeBase.extract` says with its own threshold.
"""

import argparse
import json
import os
import platform
import random
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.retrieval import DATA, OUT, Questions, base_of, squad
from shoal import KnowledgeBase
from shoal.rag.extract import THRESHOLD
from shoal.rag.reading import default_reader

NOTE = (
    "An answer is right when it contains a gold answer. With a third of the passages removed, the right thing "
    "is to abstain on their questions. Nothing was fitted on these sets; XQuAD shares articles, not passages, "
    "with the SQuAD 2.0 part that the extractor saw."
)
THRESHOLDS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


def ask(base: KnowledgeBase, questions: Questions) -> tuple[np.ndarray, np.ndarray, float]:
    """(confidence [n], right [n], median milliseconds); confidence 0 where no sentence was offered."""
    confidence, right, times = [], [], []
    for question, _, answers in questions:
        start = time.perf_counter()
        found = base.extract(question, threshold=0.0)
        times.append(time.perf_counter() - start)
        confidence.append(found.confidence if found else 0.0)
        right.append(found is not None and any(answer in found.text for answer in answers))
    return np.array(confidence), np.array(right), 1000 * float(np.median(times))


def rows(confidence: np.ndarray, right: np.ndarray, answerable: int) -> list[dict[str, float]]:
    """Per threshold: share of questions answered, precision of the answers, share of answerable ones answered right."""
    out = []
    for threshold in sorted({*THRESHOLDS, THRESHOLD}):
        said = confidence >= threshold
        out.append(
            {
                "threshold": threshold,
                "answered": round(float(said.mean()), 3),
                "precision": round(float(right[said].mean()), 3) if said.any() else float("nan"),
                "answered_right": round(float(right[said].sum() / answerable), 3),
            }
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=0, help="this many questions of each set, drawn with seed 0")
    limit = parser.parse_args().queries
    sets = {
        "xquad en": squad(DATA / "xquad/xquad.en.json"),
        "xquad zh": squad(DATA / "xquad/xquad.zh.json"),
        "cmrc dev": squad(DATA / "cmrc2018/cmrc2018_dev.json"),
    }
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (texts, questions) in sets.items():
            chosen = random.Random(0).sample(questions, limit) if 0 < limit < len(questions) else questions
            base = base_of(texts, Path(folder) / name.replace(" ", "-"))
            gone = set(random.Random(0).sample(sorted(texts), len(texts) // 3))
            for form in ("all passages", "a third removed"):
                if form != "all passages":
                    for passage in gone:
                        base.delete(passage)
                held = [one for one in chosen if form == "all passages" or one[1] not in gone]
                confidence, right, milliseconds = ask(base, chosen)
                table = rows(confidence, right, len(held))
                results[f"{name}, {form}"] = {"questions": len(chosen), "ms_p50": round(milliseconds, 1), "rows": table}
                print(f"{name}, {form}: {len(chosen)} questions, {milliseconds:.0f} ms each")
                for row in table:
                    mark = "  <- default" if row["threshold"] == THRESHOLD else ""
                    print("   " + "  ".join(f"{key} {value:.3f}" for key, value in row.items()) + mark, flush=True)
            base.close()
    OUT.mkdir(exist_ok=True)
    record = {
        "title": "Extractive answers: precision at coverage", "note": NOTE,
        "command": "python -m benchmarks.extract", "machine": f"{platform.processor() or platform.machine()}, "
        f"{os.cpu_count()} cores", "threads": os.environ.get("OMP_NUM_THREADS", "default"), "seed": 0,
        "date": date.today().isoformat(), "reader": default_reader().version, "results": results,
    }  # fmt: skip
    (OUT / "extract.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
