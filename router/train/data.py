"""Labelled requests to arrays: capped per source, embedded once, near-duplicates of held-out questions dropped.

Knows no network. Splits are by question (`sources.split_of`); a training question whose embedding is within
`NEAR` of a calibration or test question is dropped, whatever set it came from.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..decision import Message, Route
from ..errors import RouterError
from ..features import Embed, FloatArray, language_of, read
from .sources import SOURCES, Example, clinc_oos

ROUTES: tuple[Route, ...] = (Route.DIRECT, Route.FAQ, Route.EXTRACT, Route.RAG, Route.DEEP)  # least work first
SPLITS = ("train", "calibration", "test")
NEAR = 0.95  # cosine above which two questions count as the same one
CAP = {"train": 1600, "calibration": 400, "test": 800}  # examples of one source and route
LARGE = {"routellm_mmlu": {"train": 9000, "calibration": 1600, "test": 900}}  # all of them carry a depth label
SHOWN = 0.35  # share of training texts shown in another case and punctuation than written


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Examples as arrays, row by row. Missing labels are -1."""

    examples: tuple[Example, ...]
    x: FloatArray  # [n, dim + cheap]
    route: NDArray[np.int64]
    depth: NDArray[np.int64]
    cacheable: NDArray[np.int64]
    weak: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.examples)

    def where(self, keep: Callable[[Example], bool]) -> "Table":
        rows = np.array([i for i, example in enumerate(self.examples) if keep(example)], dtype=np.int64)
        return Table(
            examples=tuple(self.examples[i] for i in rows),
            x=self.x[rows],
            route=self.route[rows],
            depth=self.depth[rows],
            cacheable=self.cacheable[rows],
            weak=self.weak[rows],
        )


class Embeddings:
    """Remembers vectors by text, in memory and (with a path) in one .npz file, so that a second training is quick."""

    def __init__(self, embed: Embed, path: Path | None = None) -> None:
        self._embed, self._path = embed, path
        self._known: dict[str, NDArray[np.float16]] = {}
        if path is not None and path.exists():
            with np.load(path, allow_pickle=False) as stored:
                if str(stored["fingerprint"]) == embed.fingerprint:
                    self._known = dict(zip(stored["keys"].tolist(), stored["vectors"], strict=True))

    def __call__(self, texts: Sequence[str]) -> FloatArray:
        keys = [sha256(text.encode("utf-8", "replace")).hexdigest()[:24] for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        if new:
            ordered = sorted(new.items(), key=lambda item: len(item[1]))  # equal lengths together embed fastest
            vectors = self._embed([text for _, text in ordered]).astype(np.float16)
            self._known.update(zip((key for key, _ in ordered), vectors, strict=True))
            self._save()
        return np.array([self._known[key] for key in keys], dtype=np.float32)

    def _save(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(
                self._path,
                fingerprint=np.array(self._embed.fingerprint),
                keys=np.array(list(self._known)),
                vectors=np.array(list(self._known.values())),
            )


def collect(root: Path, *, seed: int = 0, sources: Iterable[str] = SOURCES, cap: bool = True) -> list[Example]:
    """Examples of the named sets, at most CAP per split, source and route, in an order fixed by `seed`."""
    draw = random.Random(seed)
    groups: dict[tuple[str, str, str | None], list[Example]] = defaultdict(list)
    for name in sources:
        for example in SOURCES[name](root):
            groups[example.split, example.source, example.route].append(example)
        if name == "clinc":
            for part, split in (("train", "train"), ("val", "calibration")):
                for text in clinc_oos(root, part):
                    oos = Example(text=text, language="en", source="clinc_oos", route="rag", depth=1, split=split)
                    groups[split, "clinc_oos", "rag"].append(oos)
    chosen: list[Example] = []
    for (split, source, _), group in groups.items():
        draw.shuffle(group)
        chosen += group[: LARGE.get(source, CAP)[split]] if cap else group
    return chosen


def from_jsonl(path: Path) -> list[Example]:
    """A user's own examples: one JSON object a line with `text` and `route`; `depth`, `cacheable`, `split` if known.

    Raises RouterError naming the line that is wrong, or the file that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RouterError(f"{path}: {error.strerror or type(error).__name__}; give a JSONL file") from error
    except UnicodeDecodeError as error:
        raise RouterError(f"{path}: this is not UTF-8 text; save it as UTF-8 and try again") from error
    lines = enumerate(text.split("\n"), 1)
    return [_own(line, f"{path.name}, line {number}") for number, line in lines if line.strip()]


def _own(line: str, where: str) -> Example:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise RouterError(f'{where}: expected {{"text": ..., "route": ...}}, a JSON object')
    text, route, depth, cacheable, split = map(row.get, ("text", "route", "depth", "cacheable", "split"))
    if not isinstance(text, str) or not text.strip() or any("\ud800" <= char <= "\udfff" for char in text):
        raise RouterError(f"{where}: text must be text that is not empty, without half characters such as \\ud800")
    if route not in ROUTES:
        raise RouterError(f"{where}: route must be one of {', '.join(ROUTES)}")
    if depth is not None and (type(depth) is not int or depth not in (0, 1, 2)):
        raise RouterError(f"{where}: depth must be 0, 1 or 2, or left out")
    if cacheable is not None and not isinstance(cacheable, bool):
        raise RouterError(f"{where}: cacheable must be true or false, or left out")
    if split is not None and split not in SPLITS:
        raise RouterError(f"{where}: split must be one of {', '.join(SPLITS)}, or left out")
    text = text.strip()
    digit = int(sha256(text.lower().encode()).hexdigest()[:8], 16) % 100
    return Example(
        text=text,
        language=language_of(text),
        source="own",
        route=route,
        depth=depth,
        cacheable=cacheable,
        split=split or ("test" if digit < 20 else "calibration" if digit < 35 else "train"),
    )


def reshown(text: str, language: str, seed: int) -> str:
    """The text as other people type it, so that case and end marks, which differ by source, do not give labels away.

    How depends on the text and the seed alone.
    """
    draw = random.Random(f"{seed}:{text}")
    if draw.random() >= SHOWN or len(text) > 400:
        return text
    bare = text.rstrip("?.!？。！ ")
    if draw.random() < 0.5:
        return bare.lower()
    return (
        bare[:1].upper() + bare[1:] + ("？" if language == "zh" else "?") * (text[-1:] in "?？" or draw.random() < 0.3)
    )


def tabulate(
    examples: Sequence[Example], embed: Callable[[Sequence[str]], FloatArray], *, seed: int = 0
) -> dict[str, Table]:
    """Arrays per split, without training questions that are near-duplicates of held-out ones."""
    examples = [replace(e, text=reshown(e.text, e.language, seed)) if e.split == "train" else e for e in examples]
    read_all = [read((Message(role="user", content=e.text),)) for e in examples]
    vectors = embed([f.focus for f in read_all])
    table = Table(
        examples=tuple(examples),
        x=np.hstack([vectors, np.array([f.cheap for f in read_all])]).astype(np.float32),
        route=np.array([ROUTES.index(Route(e.route)) if e.route else -1 for e in examples]),
        depth=np.array([-1 if e.depth is None else e.depth for e in examples]),
        cacheable=np.array([-1 if e.cacheable is None else int(e.cacheable) for e in examples]),
        weak=np.array([-1 if e.weak is None else int(e.weak) for e in examples]),
    )
    split = np.array([e.split for e in examples])
    drop = np.zeros(len(examples), dtype=bool)
    for low, high in (("train", "calibration"), ("train", "test"), ("calibration", "test")):
        drop |= _near(vectors, split == low, split == high)
    keep = {id(e) for e, gone in zip(examples, drop, strict=True) if not gone}
    return {name: table.where(lambda e, name=name: e.split == name and id(e) in keep) for name in SPLITS}  # type: ignore[misc]


def _near(vectors: FloatArray, rows: NDArray[np.bool_], others: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Marks rows closer than NEAR to any of the others."""
    marked = np.zeros(len(vectors), dtype=bool)
    held = vectors[others]
    if len(held):
        for block in np.array_split(np.flatnonzero(rows), max(1, int(rows.sum()) // 2000)):
            marked[block] = (vectors[block] @ held.T).max(axis=1, initial=-1.0) > NEAR
    return marked
