"""Right hits, wrong hits and misses on GPTCache's 999 paraphrase pairs: insert the origins, ask with the similars.

The set is for measuring only: no threshold or weight was chosen with it. Prints the curve over thresholds for the plain
embedder, for cosine with guards, and for the default matcher, with repeated origins apart and merged.

    SHOAL_DATA=../shared/data python benchmarks/cache_gptcache.py
"""

import json
import platform
import time
from pathlib import Path

from shoal.cache.entry import Entry
from shoal.cache.guards import Guards
from shoal.cache.match import Matcher, by_cosine
from shoal.cache.scorer import default_matcher
from shoal.cache.semantic import SemanticIndex
from shoal.cache.train.corpora import data_folder
from shoal.rag.embed import default_embedder

THRESHOLDS = [round(0.5 + 0.05 * i, 2) for i in range(10)] + [0.97, 0.99]


def entry(i: int, text: str) -> Entry:
    values = {"key": str(i), "scope": "s", "tenant": "t", "kb": "", "bucket": "27+", "created": 0.0}
    return Entry(id=str(i), prompt=text, text=text.strip(), budget=30, depth=30, rank=2, expires=1e12, **values)


def main() -> None:
    pairs = json.loads((data_folder() / "gptcache_mock" / "mock_data.json").read_text("utf-8"))
    embed, guards = default_embedder(), Guards()
    origins, similars = [p["origin"] for p in pairs], [p["similar"] for p in pairs]
    vectors, questions = embed(origins), embed(similars)
    index = SemanticIndex()
    for i, text in enumerate(origins):
        index.add(entry(i, text), vectors[i])
    matchers = {
        "cosine": Matcher(by_cosine, lambda a, b: None, 0.0),
        "cosine + guards": Matcher(by_cosine, guards.conflict, 0.0),
        "default": default_matcher(embed, guards, None),
    }
    default_at = matchers["default"].threshold
    matchers["default"].threshold = 0.0
    rows = []
    for name, matcher in matchers.items():
        picked = []
        for i, text in enumerate(similars):
            chosen = matcher.choose(text, index.search("s", 2, 3, questions[i], 5))
            picked.append((chosen[1], int(chosen[0].entry.id)) if chosen else (-1.0, -1))
        marks = sorted({*THRESHOLDS, default_at} if name == "default" else THRESHOLDS)
        for threshold in marks:
            hits = [(i, j) for i, (score, j) in enumerate(picked) if score >= threshold]
            right = sum(i == j for i, j in hits)
            merged = sum(origins[i].strip() == origins[j].strip() for i, j in hits)
            rows.append({
                "matcher": name, "threshold": threshold, "default": name == "default" and threshold == default_at,
                "right": right, "wrong": len(hits) - right, "miss": len(pairs) - len(hits),
                "merged_right": merged, "merged_wrong": len(hits) - merged,
            })  # fmt: skip
    print(f"{'matcher':16} {'at':>7} {'right':>6} {'wrong':>6} {'miss':>5} | merged: {'right':>5} {'wrong':>5}")
    for r in rows:
        mark = " <- default" if r["default"] else ""
        print(
            f"{r['matcher']:16} {r['threshold']:7.4f} {r['right']:6} {r['wrong']:6} {r['miss']:5} | "
            f"{r['merged_right']:13} {r['merged_wrong']:5}{mark}"
        )
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    machine = {"machine": platform.processor() or platform.machine(), "date": time.strftime("%Y-%m-%d")}
    (out / "cache_gptcache.json").write_text(json.dumps({**machine, "seed": None, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
