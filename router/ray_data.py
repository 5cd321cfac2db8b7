"""Embeddings and depth scores of a knowledge base on Ray Data (S7): the same pipeline, its work done by actors.

What is handed over is what one process does at a time too, a document's chunks or a batch of texts, so results are the
same to the last bit; whoever asked commits them as they come, so a run that was killed goes on. Ray places the work.
Knows no store and no file.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..rag.chunk import Chunk
from ..rag.errors import IndexMismatchError
from ..rag.store import Encoded
from .errors import MissingExtra
from .settings import Settings

try:
    import ray
    import ray.data
except ImportError as error:
    raise MissingExtra("Ray Data", "ray") from error


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
        """Raises IndexMismatchError when a worker has another embedder."""
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


class _Encoding:
    def __init__(self, fingerprint: str) -> None:
        from ..rag.embed import default_embedder
        from ..rag.reading import default_reader

        self._embed, self._reader = default_embedder(), default_reader()
        if self._embed.fingerprint != fingerprint:
            raise IndexMismatchError(
                f"a Ray worker embeds with {self._embed.fingerprint}, this knowledge base with {fingerprint}: install "
                "the same version of Shoal on every machine, or add without --ray"
            )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        from ..rag.ingest import encode

        made = encode(row["title"], [Chunk(**chunk) for chunk in row["chunks"]], self._embed, self._reader)
        vectors = np.stack([one.vector for one in made]).astype(np.float32).tobytes()
        return {"place": row["place"], "vectors": vectors, "readings": [one.reading for one in made]}


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


class _Scoring:
    def __init__(self, kind: str, settings: dict[str, Any]) -> None:
        from .reading_ease import scorer

        self._models = ExitStack()
        self._score = self._models.enter_context(scorer(kind, Settings(**settings)))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"place": row["place"], "scores": [float(score) for score in self._score(row["texts"])]}


def _mapped(rows: list[dict[str, Any]], worker: type, *given: Any) -> Iterator[dict[str, Any]]:
    """The rows through actors of `worker`, one to a core, as they come. Raises what a worker raised."""
    if not rows:
        return
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    cluster: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    actors = max(1, min(int(cluster.get("CPU", 1)), len(rows)))
    blocks = min(len(rows), 4 * actors)
    data = ray.data.from_items(rows, override_num_blocks=blocks).map(
        worker, fn_constructor_args=given, compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors)
    )
    try:
        yield from data.iter_rows()
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
