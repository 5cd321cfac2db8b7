"""From data to a saved classifier and a report on its held-out part.

`train_shipped` builds the classifier that ships from the public sets; `train_from_jsonl` trains on a user's own
requests, alone or on top of those sets. The report says how good it is, split by language, and what it was tested on.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from ..classifier import ASSET, FORMAT, Classifier
from ..errors import RouterError
from ..features import CHEAP, Embed
from .data import ROUTES, Embeddings, Table, collect, from_jsonl, tabulate
from .fit import HEADS, Fitted, fit
from .report import can_draw, draw, measure
from .sources import Example

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
    line is wrong, or a route has too few examples; MissingExtra where a picture is wanted without matplotlib. `say`
    also hears of requests that are labelled with more than one route. Depth or cacheability that not every line tells
    is the shipped classifier's.
    """
    began, source = time.monotonic(), Path(path)
    if seed < 0:
        raise RouterError(f"seed must be 0 or more, not {seed}")
    if picture is not None:
        can_draw(picture)
    if not source.is_file():
        raise RouterError(f"no file {source}: give a JSONL file with text and route on each line")
    own = from_jsonl(source)
    routes: dict[str, set[str | None]] = defaultdict(set)
    for example in own:
        routes[example.text.lower()].add(example.route)
    if torn := [text for text, named in routes.items() if len(named) > 1]:
        say(f"{len(torn)} of {len(routes)} requests have several routes, {torn[0][:60]!r} first: keep the right one")
    examples = own + (collect(with_public, seed=seed) if with_public else [])
    tables = tabulate(examples, Embeddings(embed), seed=seed)
    _check(examples, tables)
    untold = {"depth": any(e.depth is None for e in own), "cacheable": any(e.cacheable is None for e in own)}
    lent = [head for head, some in untold.items() if some and with_public is None]
    report, fitted, _ = _train(tables, embed, Path(out), seed, began, say, lent=lent)
    if picture is not None:
        draw(fitted, tables["test"], picture)
    return report


def _check(examples: Sequence[Example], tables: Mapping[str, Table]) -> None:
    """Raises RouterError saying what there is too little of to train, calibrate and test."""
    used = [route for route in ROUTES if any(example.route == route for example in examples)]
    if len(used) < 2:
        raise RouterError(
            f"{f'every route is {used[0]}' if used else 'no request'}: give requests of two routes or more"
        )
    trained = {route: int((tables["train"].route == ROUTES.index(route)).sum()) for route in used}
    if few := [f"{route} ({count})" for route, count in trained.items() if count < MIN_PER_ROUTE]:
        raise RouterError(
            f"too few requests to train on: {', '.join(few)}; each route needs at least {MIN_PER_ROUTE} that are not "
            "held out and not much like one that is"
        )
    for name in ("calibration", "test"):
        if not len(tables[name]):
            raise RouterError(
                f"no request is left for the part {name}: give more requests, and leave `split` out, so that parts are "
                f'drawn, or mark some with "split": "{name}"'
            )


def _lent(fitted: Fitted, embed: Embed, heads: Collection[str]) -> Fitted:
    """The same with `heads` as the shipped classifier has them: its hidden layer stands beside the fitted one.

    For another embedder than that classifier's nothing is lent; a head without labels then says nothing.
    """
    try:
        meta = Classifier.load(embed).meta
    except RouterError:
        return fitted
    lent = {name: part.astype(np.float32) for name, part in load_file(ASSET).items()}
    w2, b2, end = np.vstack([fitted.w2, np.zeros_like(lent["w2"])]), fitted.b2.copy(), 0
    for head, size in HEADS.items():
        columns, end = slice(end, end + size), end + size
        if head in heads:
            w2[:, columns] = np.vstack([np.zeros_like(fitted.w2), lent["w2"]])[:, columns]
            b2[columns] = lent["b2"][columns]
    return replace(
        fitted,
        w1=np.hstack([fitted.w1, lent["w1"]]),
        b1=np.append(fitted.b1, lent["b1"]),
        w2=w2,
        b2=b2,
        weak=lent["weak"],
        temperature={**fitted.temperature, **{head: meta["temperature"][head] for head in heads}},
    )


def _train(
    tables: dict[str, Table],
    embed: Embed,
    out: Path,
    seed: int,
    began: float,
    say: Callable[[str], None],
    *,
    lent: Collection[str] = (),
) -> tuple[Report, Fitted, dict[str, Table]]:
    say(", ".join(f"{name} {len(table)}" for name, table in tables.items()) + "; fitting")
    fitted = fit(tables["train"], tables["calibration"], seed=seed)
    fitted = _lent(fitted, embed, lent) if lent else fitted
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
