"""Which eviction rule for memory: hit rates of S3-FIFO and LRU on Zipf traces, with and without scans.

python benchmarks/cache_policy.py
"""

import json
import platform
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np

from shoal.cache.entry import Entry
from shoal.cache.memory import MemoryTier

SEED, KEYS, ASKED = 0, 20_000, 60_000


class Lru:
    """What `MemoryTier` would be with the plain rule."""

    def __init__(self, size: int) -> None:
        self.size, self.kept = size, OrderedDict[str, None]()

    def hit(self, key: str) -> bool:
        found = key in self.kept
        self.kept[key] = None
        self.kept.move_to_end(key)
        if len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return found


class Ours:
    def __init__(self, size: int) -> None:
        self.tier = MemoryTier(max_entries=size, max_bytes=2**40)

    def hit(self, key: str) -> bool:
        if self.tier.get("t", key, rank=0) is not None:
            return True
        values = {
            "id": key,
            "scope": "s",
            "tenant": "t",
            "kb": "",
            "text": "",
            "prompt": "",
            "bucket": "27+",
            "created": 0.0,
        }
        self.tier.put(Entry(key=key, budget=30, depth=30, rank=2, expires=1e12, **values))
        return False


def trace(rng: np.random.Generator, skew: float, scans: bool) -> list[str]:
    weights = 1 / np.arange(1, KEYS + 1) ** skew
    asked = rng.choice(KEYS, ASKED, p=weights / weights.sum()).astype(str).tolist()
    if scans:  # every tenth request asks something that nobody asks again
        asked[::10] = [f"once{i}" for i in range(len(asked[::10]))]
    return asked


def main() -> None:
    rng, rows = np.random.default_rng(SEED), []
    print(f"{'skew':>5} {'scans':>6} {'size':>6} {'LRU':>7} {'S3-FIFO':>8}")
    for skew in (0.7, 0.9, 1.1):
        for scans in (False, True):
            keys = trace(rng, skew, scans)
            for share in (0.01, 0.05, 0.1):
                size = int(KEYS * share)
                rates = [sum(cache.hit(k) for k in keys) / len(keys) for cache in (Lru(size), Ours(size))]
                rows.append({"skew": skew, "scans": scans, "size": size, "lru": rates[0], "s3fifo": rates[1]})
                print(f"{skew:5} {scans!s:>6} {size:6} {rates[0]:7.3f} {rates[1]:8.3f}")
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    head = {"seed": SEED, "machine": platform.machine(), "date": time.strftime("%Y-%m-%d")}
    (out / "cache_policy.json").write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
