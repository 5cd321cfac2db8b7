"""From data to a saved classifier and a report on its held-out part.

`train_shipped` builds the classifier that ships from the public sets; `train_from_jsonl` trains on a user's own
requests, alone or on top of those sets. The report says how good it is, split by language, and what it was tested on.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ..classifier import ASSET, FORMAT
from ..errors import RouterError
from ..features import CHEAP, Embed
from .data import ROUTES, Embeddings, Table, collect, from_jsonl, tabulate
from .fit import HEADS, Fitted, fit
from .report import draw, measure

MIN_PER_ROUTE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was trained: where it was saved, what it learned from, and its metrics on held-out requests."""

    path: Path
    parameters: int
    seconds: float
    rows: dict[str, int]
    metrics: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "parameters": self.parameters,
            "seconds": round(self.seconds, 1),
            "rows": self.rows,
            "metrics": self.metrics,
        }


def default_data() -> Path:
    """The folder of public sets, SHOAL_DATA or ../shared/data."""
    root = Path(os.environ.get("SHOAL_DATA", "../shared/data"))
    if not root.is_dir():
        raise RouterError(f"no data folder at {root}: set SHOAL_DATA to the folder that docs/data.md describes")
    return root


def train_shipped(
    embed: Embed,
    *,
    root: Path | None = None,
    out: Path = ASSET,
    store: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> tuple[Report, Fitted, dict[str, Table]]:
    """Trains on every public set of docs/data.md and writes `out`. About 5 minutes on 2 cores, most of it embedding."""
    began = time.monotonic()
    examples = collect(root or default_data(), seed=seed)
    say(f"{len(examples)} requests; embedding")
    tables = tabulate(examples, Embeddings(embed, store), seed=seed)
    return _train(tables, embed, out, seed, began, say)


def train_from_jsonl(
    path: str | Path,
    embed: Embed,
    out: str | Path,
    *,
    with_public: Path | None = None,
    picture: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Report:
    """Trains on a user's JSONL (see `data.from_jsonl`), with the public sets too when their folder is given.

    `picture`: where reliability, confusion and cost are drawn (PNG). Raises RouterError when the file is missing, a
    line is wrong, or a route has too few examples; MissingExtra where a picture is wanted without matplotlib.
    """
    began, source = time.monotonic(), Path(path)
    if not source.is_file():
        raise RouterError(f"no file {source}: give a JSONL file with text and route on each line")
    own = from_jsonl(source)
    tables = tabulate(own + (collect(with_public, seed=seed) if with_public else []), Embeddings(embed), seed=seed)
    seen = {route: int((tables["train"].route == i).sum()) for i, route in enumerate(ROUTES)}
    present = [route for route, count in seen.items() if count]
    few = [f"{route.value} ({seen[route]})" for route in present if seen[route] < MIN_PER_ROUTE]
    if few or len(present) < 2 or not len(tables["calibration"]) or not len(tables["test"]):
        raise RouterError(
            f"too few examples: at least {MIN_PER_ROUTE} of each route used, at least two routes, and some left to "
            f"calibrate and test on; short of {', '.join(few) or 'held-out requests'}"
        )
    report, fitted, _ = _train(tables, embed, Path(out), seed, began, say)
    if picture is not None:
        draw(fitted, tables["test"], picture)
    return report


def _train(
    tables: dict[str, Table], embed: Embed, out: Path, seed: int, began: float, say: Callable[[str], None]
) -> tuple[Report, Fitted, dict[str, Table]]:
    say(", ".join(f"{name} {len(table)}" for name, table in tables.items()) + "; fitting")
    fitted = fit(tables["train"], tables["calibration"], seed=seed)
    metrics = measure(fitted, tables["test"])
    save(fitted, embed, out, seed)
    rows = {name: len(table) for name, table in tables.items()}
    report = Report(
        path=out, parameters=fitted.parameters, seconds=time.monotonic() - began, rows=rows, metrics=metrics
    )
    say(f"saved {out} ({out.stat().st_size / 1e6:.2f} MB, {fitted.parameters} parameters) after {report.seconds:.0f} s")
    return report, fitted, tables


def save(fitted: Fitted, embed: Embed, out: Path, seed: int) -> None:
    """Writes the classifier as half-precision safetensors, whole or not at all."""
    meta = {
        "format": FORMAT,
        "embedder": embed.fingerprint,
        "routes": [route.value for route in ROUTES],
        "heads": HEADS,
        "cheap": list(CHEAP),
        "temperature": fitted.temperature,
        "conformal": fitted.conformal,
        "seed": seed,
    }
    tensors = {
        name: np.ascontiguousarray(getattr(fitted, name), dtype=np.float16) for name in ("w1", "b1", "w2", "b2", "weak")
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    half = out.with_suffix(f".{os.getpid()}.tmp")
    save_file(tensors, half, metadata={"shoal": json.dumps(meta)})
    half.chmod(0o644)
    os.replace(half, out)
