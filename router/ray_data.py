"""Embeddings and depth scores of a knowledge base on Ray Data (S7): the same pipeline, its work done by actors.

What is handed over is what one process does at a time too, a document's chunks or a batch of texts, so results are the
same to the last bit; whoever asked commits them as they come, so a run that was killed goes on. Ray places the work.
Knows no store and no file.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..gated_llm.errors import GatedError
from ..rag.audit_scores import DepthScore
from ..rag.chunk import Chunk
from ..rag.errors import RagError
from ..rag.store import Encoded
from .errors import MissingExtra, RouterError
from .reading_ease import scorer
from .settings import Settings

try:
    import ray
    import ray.data
except ImportError as error:
    raise MissingExtra("Ray Data", "ray") from error

_EACH = 8  # rows that an actor is started for


@contextmanager
def connected() -> Iterator[None]:
    """The cluster that RAY_ADDRESS names, else one on this machine, for as long; one that is there stays."""
    if ray.is_initialized():
        yield
        return
    ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class RayEncode:
    """`rag.ingest.EncodeAll` on Ray. `fingerprint`: of the embedder that the workers must have."""

    fingerprint: str
    batch: int = 4096

    def __call__(self, work: Sequence[tuple[str, Sequence[Chunk]]], /) -> list[list[Encoded]]:
        """Raises RagError when a worker has another embedder."""
        rows = [
            {"place": place, "title": title, "chunks": [asdict(chunk) for chunk in chunks]}
            for place, (title, chunks) in enumerate(work)
            if chunks
        ]
        made: list[list[Encoded]] = [[] for _ in work]
        for row in _mapped(rows, _Encoding, self.fingerprint):
            chunks = work[row["place"]][1]
            vectors = np.frombuffer(row["vectors"], np.float32).reshape(len(chunks), -1)
            made[row["place"]] = [
                Encoded(chunk=chunk, vector=vector, reading=reading)
                for chunk, vector, reading in zip(chunks, vectors, row["readings"], strict=True)
            ]
        return made


class _Worker(ABC):
    """Does `work` on rows. An error of ours is told as a row, since Ray would make one of its own of it."""

    nothing: Mapping[str, Any]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"place": row["place"], "wrong": "", **self.work(row)}
        except (RagError, GatedError, RouterError) as error:
            return {"place": row["place"], "wrong": str(error), **self.nothing}

    @abstractmethod
    def work(self, row: dict[str, Any]) -> dict[str, Any]:
        """What the row is answered with; `nothing` stands in where it raises."""


class _Encoding(_Worker):
    nothing: Mapping[str, Any] = {"vectors": b"", "readings": []}

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint

    def work(self, row: dict[str, Any]) -> dict[str, Any]:
        from ..rag.embed import default_embedder
        from ..rag.ingest import encode
        from ..rag.reading import default_reader

        embed = default_embedder()
        if embed.fingerprint != self._fingerprint:
            raise RagError(
                f"it embeds with {embed.fingerprint}, this knowledge base with {self._fingerprint}: install the same "
                "version of Shoal on every machine, or leave out --ray"
            )
        made = encode(row["title"], [Chunk(**chunk) for chunk in row["chunks"]], embed, default_reader())
        vectors = np.stack([one.vector for one in made]).astype(np.float32).tobytes()
        return {"vectors": vectors, "readings": [one.reading for one in made]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayScore:
    """`rag.audit_scores.ScoreMany` on Ray: the score of that `kind` (`reading_ease.scorer`), made by every worker."""

    fingerprint: str
    kind: str
    settings: Settings
    wave: int = 64

    def __call__(self, texts: Sequence[str], /) -> Sequence[float]:
        return next(self.many([texts]))[1]

    def many(self, batches: Sequence[Sequence[str]], /) -> Iterator[tuple[int, Sequence[float]]]:
        """(place of a batch, its scores), as they come."""
        rows = [{"place": place, "texts": list(texts)} for place, texts in enumerate(batches)]
        for row in _mapped(rows, _Scoring, self.kind, self.settings.model_dump(mode="json")):
            yield row["place"], row["scores"]


class _Scoring(_Worker):
    nothing: Mapping[str, Any] = {"scores": []}

    def __init__(self, kind: str, settings: dict[str, Any]) -> None:
        self._kind, self._settings = kind, settings
        self._models = ExitStack()  # stays open as long as the worker's process

    @cached_property
    def _score(self) -> DepthScore:
        return self._models.enter_context(scorer(self._kind, Settings(**self._settings)))

    def work(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"scores": [float(score) for score in self._score(row["texts"])]}


def _mapped(rows: list[dict[str, Any]], worker: type, *given: Any) -> Iterator[dict[str, Any]]:
    """What `worker` makes of the rows, as it comes; an actor to a core, where each has some to do.

    Raises RagError with what a worker said.
    """
    if not rows:
        return
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    cluster: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    actors = max(1, min(int(cluster.get("CPU", 1)), len(rows) // _EACH))
    data = ray.data.from_items(rows, override_num_blocks=min(len(rows), 4 * actors)).map(
        worker, fn_constructor_args=given, compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors)
    )
    for row in data.iter_rows():
        if row["wrong"]:
            raise RagError(f"a Ray worker could not go on: {row['wrong']}")
        yield row
