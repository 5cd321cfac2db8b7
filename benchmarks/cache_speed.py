"""Speed and size: memory hit, Redis hit, look-up by meaning at 1k, 10k and 100k entries; GPTCache beside it where it
imports.

Stored texts are those of the training pools and rule-made rewordings; questions are other rewordings. Times in ms on
one thread; "remembered" leaves the embedding of the question out (its vector was used before).

    SHOAL_DATA=../shared/data OMP_NUM_THREADS=1 python benchmarks/cache_speed.py [sizes ...]
"""

import json
import platform
import random
import resource
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from shoal.cache import DepthCache
from shoal.cache.train import corpora
from shoal.cache.train.paraphrase import paraphrase
from shoal.rag.embed import default_embedder
from tests.conftest import RedisServer

SEED, ASKED = 3, 500
OUT = Path(__file__).parent / "out"


def texts(n: int, rng: random.Random) -> list[str]:
    pools = [
        corpora.banking(),
        corpora.clinc(),
        corpora.squad(),
        corpora.cmrc(),
        corpora.sentences("en"),
        corpora.sentences("zh"),
    ]
    pools += [corpora.chitchat("english"), corpora.chitchat("chinese_simplified")]
    known = list(dict.fromkeys(t for pool in pools for t in pool.texts))
    rng.shuffle(known)
    made = list(dict.fromkeys(known[:n]))
    while len(made) < n:
        made = list(
            dict.fromkeys([*made, *(paraphrase(t, rng) for t in rng.sample(known, min(len(known), n - len(made))))])
        )
    return made


def embedded(stored: list[str]) -> Any:
    """Vectors of the texts; kept in `out/` by tens of thousands, so that a run that was cut short can go on."""
    parts = []
    for start in range(0, len(stored), 10_000):
        part = stored[start : start + 10_000]
        path = OUT / f"vectors-{zlib.crc32(repr(part).encode()):08x}.npy"
        if not path.exists():
            np.save(path, default_embedder()(part))
        parts.append(np.load(path))
    return np.concatenate(parts)


def timed(work: Callable[[Any], Any], items: list[Any]) -> dict[str, float]:
    times, hits = [], 0
    for item in items:
        began = time.perf_counter()
        found = work(item)
        times.append((time.perf_counter() - began) * 1000)
        hits += found is not None
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)], "hits": hits / len(items)}


def tiers(stored: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
    server = RedisServer()
    with DepthCache(server.url, total=30) as one, DepthCache(server.url, total=30) as other:
        for text in stored[:2000]:
            one.put(text, "answer " * 20, budget=30, depth=30)
        yield "memory hit", timed(lambda t: one.get(t, budget=20, semantic=False), stored[:2000])
        yield "Redis hit", timed(lambda t: other.get(t, budget=20, semantic=False), stored[:2000])
        yield (
            "miss, Redis asked",
            timed(lambda t: one.get(t, budget=20, semantic=False), [f"{t} never" for t in stored[:2000]]),
        )
        yield (
            "store, Redis too",
            timed(lambda t: one.put(t, "a", budget=30, depth=30), [f"{t} new" for t in stored[:1000]]),
        )
    server.close()


def memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def by_meaning(
    stored: list[str], questions: list[str], vectors: dict[str, Any]
) -> Iterator[tuple[str, dict[str, float]]]:
    embed = default_embedder()

    class Known:
        fingerprint = embed.fingerprint

        def __call__(self, asked: Any) -> Any:
            known = len(asked) == 1 and asked[0] in vectors
            return vectors[asked[0]][None] if known else embed(asked)

    before, began = memory_mb(), time.perf_counter()
    cache = DepthCache(embed=Known(), max_entries=2 * len(stored), max_bytes=2**34)
    for text in stored:
        cache.put(text, "answer to " + text, budget=30, depth=30)
    took, grown = time.perf_counter() - began, memory_mb() - before
    name = f"by meaning, {len(stored)}"
    first = timed(lambda q: cache.get(q, budget=20), questions)
    yield f"{name}", {**first, "bytes_per_entry": grown * 2**20 / len(stored), "store_ms": took * 1000 / len(stored)}
    yield f"{name}, remembered", timed(lambda q: cache.get(q, budget=20), questions)
    cache.close()


def gptcache(stored: list[str], questions: list[str], vectors: dict[str, Any]) -> dict[str, float] | None:
    """GPTCache 0.1.44 with the same vectors: SQLite and FAISS, its default distance evaluation."""
    try:
        from gptcache import Cache, Config
        from gptcache.adapter.api import get, put
        from gptcache.manager import CacheBase, VectorBase, get_data_manager
        from gptcache.processor.pre import get_prompt
        from gptcache.similarity_evaluation import SearchDistanceEvaluation
    except Exception as error:
        print(f"GPTCache left out: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    embed = default_embedder()
    with tempfile.TemporaryDirectory() as folder:
        data = get_data_manager(
            CacheBase("sqlite", sql_url=f"sqlite:///{folder}/s.db"),
            VectorBase("faiss", dimension=512, index_path=f"{folder}/f"),
        )
        cache = Cache()
        cache.init(
            pre_embedding_func=get_prompt,
            embedding_func=lambda t, **_: vectors[t] if t in vectors else embed([t])[0],
            data_manager=data,
            similarity_evaluation=SearchDistanceEvaluation(),
            config=Config(similarity_threshold=0.8),
        )
        began = time.perf_counter()
        for text in stored:
            put(text, "answer to " + text, cache_obj=cache)
        took = time.perf_counter() - began
        result = timed(lambda q: get(q, cache_obj=cache), questions)
        return {**result, "store_ms": took * 1000 / len(stored)}


def main() -> None:
    sizes = [int(a) for a in sys.argv[1:]] or [1_000, 10_000, 100_000]
    OUT.mkdir(exist_ok=True)
    rng, rows = random.Random(SEED), []
    stored = texts(max(*sizes, 3000), rng)
    questions = [paraphrase(t, rng) for t in rng.sample(stored[: min(sizes)], min(ASKED, min(sizes)))]
    embed = default_embedder()
    vectors = dict(zip(stored, embedded(stored), strict=True))
    print(f"{'what':32} {'p50 ms':>9} {'p99 ms':>9} {'hits':>6}")

    def show(name: str, row: dict[str, float]) -> None:
        rows.append({"what": name, **{k: round(v, 4) for k, v in row.items()}})
        more = "".join(f"  {k} {v:.2f}" for k, v in row.items() if k not in ("p50", "p99", "hits"))
        print(f"{name:32} {row['p50']:9.4f} {row['p99']:9.4f} {row['hits']:6.1%}{more}", flush=True)

    show("embedding alone", timed(lambda q: embed([q]), questions))
    for name, row in tiers(stored):
        show(name, row)
    for size in sizes:
        for name, row in by_meaning(stored[:size], questions, vectors):
            show(name, row)
        if size <= 10_000 and (row_ := gptcache(stored[:size], questions, vectors)):
            show(f"GPTCache, {size}", row_)
    head = {"seed": SEED, "machine": platform.machine(), "date": time.strftime("%Y-%m-%d")}
    (OUT / "cache_speed.json").write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
