"""What the router's benchmarks share: the data folder, the embedder's memory, and how a result is written."""

import json
import os
import platform
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SHOAL_DATA", HERE.parents[1] / "shared" / "data"))
OUT = HERE / "out"
SEED = 0


def embeddings() -> Any:
    """The default embedder behind a file that keeps its vectors between runs."""
    from shoal.rag.embed import default_embedder
    from shoal.router.train.data import Embeddings

    return Embeddings(default_embedder(), OUT / "router_embeddings.npz")


def write(name: str, title: str, values: dict[str, Any]) -> None:
    """Writes benchmarks/out/NAME.json with where and when it was made."""
    OUT.mkdir(exist_ok=True)
    model = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    result = {
        "title": title,
        **values,
        "command": f"python -m benchmarks.{name}",
        "machine": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "seed": SEED,
        "date": date.today().isoformat(),
    }
    (OUT / f"{name}.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys as aligned text."""
    heads = list(rows[0])
    cells = [
        heads,
        *[
            [f"{row[h]:.4f}".rstrip("0").rstrip(".") if isinstance(row[h], float) else str(row[h]) for h in heads]
            for row in rows
        ],
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
