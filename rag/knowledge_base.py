"""A folder that holds documents cut into passages, found by meaning and by words, reranked, extracted and fused.

Puts the parts of this package together. Knows nothing of models that write, of routes or of caches.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from . import words
from .audit import ALLOWED, LIMIT, Audit
from .audit_recall import Asked, K
from .audit_scores import DepthScore
from .chunk import Span, Splitter
from .depth import Depth, filter_hits
from .document import Document, Kind, find_files, label_tuple
from .embed import Embedder, default_embedder
from .encoder import one_thread
from .errors import DocumentError, IndexMismatchError, MissingExtraError, RagError
from .extract import THRESHOLD, Extracted, Extractor, Passage, factual
from .fuse import Context, Dropped, fuse
from .index import DenseIndex
from .ingest import AddReport, EncodeAll, EncodeHere, Ingest, Readings, Skipped, encode, settings_of
from .reading import default_reader
from .rerank import LightReranker, Reranker
from .retrieve import Candidate, Hit, candidates
from .store import EVERYTHING, Aside, Only, Store, Where

CANDIDATES = 30
MIN_SCORE = 0.05  # of a passage in a context; the best one is kept whatever its score


class DepthProbe(Protocol):
    """Depth scores [n] of passages for a question, raw and calibrated or one number for both, None if not known (A3).

    High, up to 1, where a gated model would skim the passage. `rag.depth.Depths` is the one that ships.
    """

    def __call__(self, question: str, passages: Sequence[Hit], /) -> Sequence[float | Depth | None]: ...


def passage_of(score: float, one: Candidate) -> Passage:
    """A reranked candidate as the extractor takes it."""
    row = one.row
    return Passage(
        text=row.text, doc_id=row.doc_id, chunk_id=row.chunk_id, start=row.start, score=score, reading=one.reading
    )


def _text(question: str) -> str:
    if not isinstance(question, str):
        raise TypeError(f"a question is a text, not {type(question).__name__}")
    return question


def _deep(hit: Hit, depth: float | Depth) -> Hit:
    score, raw = (depth.score, depth.raw) if isinstance(depth, Depth) else (depth, depth)
    return replace(hit, depth_score=float(score), depth_raw=float(raw))


class KnowledgeBase:
    """Passages with citations. Reads are safe from many threads, also while documents are added."""

    def __init__(self, path: Path, embed: Embedder, splitter: Splitter, reranker: Reranker | None) -> None:
        self.path, self.embed, self._splitter = path, embed, splitter
        self.depth_probe: DepthProbe | None = None
        self._store = Store(path / "kb.sqlite")
        try:
            self._check()
            self._dense = DenseIndex(path, self._store, embed.dim)
        except BaseException:
            self._store.close()
            raise
        self._reader = default_reader()
        self._encode: EncodeAll = EncodeHere(embed=embed, reader=self._reader)
        self._readings = Readings(self._reader, current=self._store.meta().get("reader") == self._reader.fingerprint)
        self._reranker: Reranker = reranker or LightReranker(self._reader)
        self._extractor = Extractor(self._reader)
        self._fingerprint = (-1, "")
        self._ranking = lru_cache(maxsize=8)(self._rank)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        embed: Embedder | None = None,
        splitter: Splitter | None = None,
        reranker: Reranker | None = None,
    ) -> Self:
        """Open the knowledge base in a folder, or start one there.

        Raises IndexMismatchError when it was made with another embedder, MissingExtraError without the extra `search`.
        """
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RagError(
                f"{folder}: no knowledge base can be kept there ({error.strerror}); choose a folder"
            ) from error
        return cls(folder, embed or default_embedder(), splitter or Splitter(), reranker)

    def _check(self) -> None:
        known = self._store.meta()
        mine = {"format": "1", "embedder": self.embed.fingerprint, "dim": str(self.embed.dim)}
        if "embedder" not in known:
            self._store.set_meta(self._settings())
            return
        differing = [f"{key} {known.get(key)} (now {value})" for key, value in mine.items() if known.get(key) != value]
        if differing:
            raise IndexMismatchError(
                f"{self.path} was built with another {', '.join(differing)}. Open it with the embedder it was built "
                f"with, or rebuild it from the texts it holds: shoal kb rebuild --kb {self.path} "
                "(KnowledgeBase.rebuild(path, embed=...))"
            )

    def _settings(self) -> dict[str, str]:
        return settings_of(self.embed, self._splitter, default_reader())

    @classmethod
    def rebuild(cls, path: str | Path, *, embed: Embedder | None = None, splitter: Splitter | None = None) -> Self:
        """Split and embed again everything the knowledge base holds, then open it. The old one stays until the end."""
        folder = Path(path)
        if not (folder / "kb.sqlite").exists():
            raise RagError(f"{folder}: no knowledge base there to rebuild")
        encoder, cutter = embed or default_embedder(), splitter or Splitter()
        store = Store(folder / "kb.sqlite")
        try:
            documents = (store.document(doc_id) for doc_id, _ in store.digests())
            store.replace(
                [
                    (one, encode(one.title, cutter.split(one.text, one.doc_id), encoder, default_reader()))
                    for one in documents
                    if one is not None
                ],
                settings=settings_of(encoder, cutter, default_reader()),
            )
        finally:
            store.close()
        found = cls.open(folder, embed=encoder, splitter=cutter)
        found._save()
        return found

    # content

    def add(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        labels: Sequence[str] = (),
        progress: Callable[[int, int, str], None] | None = None,
        encode_all: EncodeAll | None = None,
    ) -> AddReport:
        """Put files, folders or patterns in. What is in already and unchanged costs nothing; bad files are reported.

        `progress(done, total, name)` is called after each file. `encode_all`: who embeds, else this process.
        """
        named = [paths] if isinstance(paths, str | Path) else paths
        if isinstance(named, bytes) or not all(named := list(named)):
            raise RagError(f"{paths!r}: name files or folders; an empty name would be the current folder")
        wanted = [Path(one) for one in named]
        files, skipped = list[tuple[Path, Path]](), list[Skipped]()
        for path in wanted:
            found = list(find_files([path]))
            if not found:
                why = "no file of a kind that is read in it" if path.is_dir() else "no file matches"
                skipped.append(Skipped(path=str(path), reason=why))
            files += found
        work, given = Ingest(self._store, self._splitter, encode_all or self._encode), label_tuple(labels)
        for done, (file, root) in enumerate(files, 1):
            try:
                skipped += [Skipped(path=str(file), reason=one) for one in work.file(file, root, given)]
            except (DocumentError, MissingExtraError) as error:
                skipped.append(Skipped(path=str(file), reason=str(error)))
            if progress:
                progress(done, len(files), str(file))
        work.flush()
        self._save()
        return work.report(skipped)

    def add_text(
        self, text: str, doc_id: str, *, title: str = "", labels: Sequence[str] = (), meta: dict[str, Any] | None = None
    ) -> AddReport:
        """Put one text in under a name, in place of what had that name. Raises DocumentError for an empty text."""
        return self.add_documents(
            [Document(doc_id=doc_id, text=text, title=title, labels=label_tuple(labels), meta=meta or {})]
        )

    def add_documents(self, documents: Sequence[Document]) -> AddReport:
        """Put documents in, each in place of what had its name; of one name the last counts."""
        work = Ingest(self._store, self._splitter, self._encode)
        work.put(list({document.doc_id: document for document in documents}.values()))
        work.flush()
        return work.report()

    def add_data(
        self,
        data: bytes,
        name: str,
        *,
        kind: Kind = "text",
        labels: Sequence[str] = (),
        encode_all: EncodeAll | None = None,
    ) -> AddReport:
        """Put in what a file of that kind would hold, as from standard input, under a name. Raises DocumentError."""
        work = Ingest(self._store, self._splitter, encode_all or self._encode)
        wrong = work.data(data, name, kind, label_tuple(labels))
        work.flush()
        self._save()
        return work.report([Skipped(path=name, reason=reason) for reason in wrong])

    def delete(self, doc_id: str) -> bool:
        """Take a document out; False when there was none of that name."""
        return self._store.delete(doc_id)

    def document(self, doc_id: str) -> Document | None:
        """The document that spans point into, or None."""
        return self._store.document(doc_id)

    def doc_ids(self) -> list[str]:
        """Names of all documents, sorted."""
        return [doc_id for doc_id, _ in self._store.digests()]

    def texts(self) -> list[str]:
        """The texts of all passages that are searched."""
        rows = self._store.row_numbers().tolist()
        return [
            row.text
            for start in range(0, len(rows), 500)
            for row in self._store.rows(rows[start : start + 500]).values()
        ]

    # audit

    def audit(
        self,
        score: DepthScore,
        questions: Sequence[Asked] | None = None,
        *,
        limit: float = LIMIT,
        allowed: float = ALLOWED,
        dry_run: bool = False,
        progress: Callable[[str, float, float], None] | None = None,
        encode_all: EncodeAll | None = None,
    ) -> dict[str, Any]:
        """Split what is hard to read, set aside what stays hard, and report, JSON-ready (A5). See `rag.audit`.

        Undone where more than `allowed` of the questions lose their answer.
        `score`: depth scores of texts, 0 to 1, high = easy; a `ScoreMany` is asked for several batches together.
        `encode_all`: who embeds, else this process. Raises RagError for an empty knowledge base.
        """
        audit = Audit(
            store=self._store,
            splitter=self._splitter,
            encode_all=encode_all or self._encode,
            search=lambda question: [hit.text for hit in self.search(question, K)],
            folder=self.path / "audit",
            score=score,
            limit=limit,
            allowed=allowed,
            progress=progress or (lambda what, done, total: None),
        )
        report = audit.run(questions, dry_run=dry_run)
        self._save()
        return report

    def quarantined(self) -> list[Aside]:
        """Passages that an audit set aside: kept, but in no search."""
        return self._store.quarantined()

    def restore(self, ids: Sequence[str] | None = None) -> list[str]:
        """Bring quarantined passages back, by their ids or their documents'; None: all. Gives the ids brought back."""
        if isinstance(ids, str):
            raise TypeError("restore takes a list of ids; wrap a single one in a list")
        return self._store.restore(ids)

    def __len__(self) -> int:
        """Number of chunks."""
        return self._store.counts()[1]

    @property
    def fingerprint(self) -> str:
        """Changes when, and only when, the documents (names, texts, titles, labels, metadata) or audits change."""
        generation = self._store.generation()
        if self._fingerprint[0] != generation:
            digest = hashlib.sha256(json.dumps(self._store.contents()).encode()).hexdigest()[:24]
            self._fingerprint = (generation, digest)
        return self._fingerprint[1]

    def close(self) -> None:
        """Save the index file and let go of the folder; more than once does no harm."""
        if not self._store.closed:
            self._save()
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _save(self) -> None:
        documents, chunks = self._store.counts()
        self._dense.save(
            {
                "embedder": self.embed.fingerprint,
                "dim": self.embed.dim,
                "splitter": self._splitter.fingerprint,
                "documents": documents,
                "chunks": chunks,
            }
        )

    # questions

    def candidates(self, question: str, k: int = CANDIDATES, *, only: Only = EVERYTHING) -> list[Candidate]:
        """The first stage alone: k passages by vector and words, fused, best first."""
        vector = self.embed([question])[0]
        return candidates(self._store, self._dense, self._readings, question, vector, k, only)

    def _ranked(
        self, question: str, k: int, only: Only = EVERYTHING, rerank: bool = True
    ) -> list[tuple[float, Candidate]]:
        if not isinstance(k, int) or k < 1:
            raise RagError(f"k is {k!r}; ask for a whole number of passages, at least one")
        if not _text(question).strip():
            return []
        depth = max(k, CANDIDATES)
        if only or not rerank:
            return self._rank(question, depth, only, rerank)[:k]
        return self._ranking(question, depth, generation=self._store.generation())[:k]

    @one_thread
    def _rank(
        self, question: str, depth: int, only: Only = EVERYTHING, rerank: bool = True, *, generation: int = -1
    ) -> list[tuple[float, Candidate]]:
        """All candidates with their scores, best first; of what the store held at `generation`, which is a key only:
        one question is first asked for a sentence that answers it, then for passages.
        """
        found = self.candidates(question, depth, only=only)
        scores = self._reranker(question, found) if rerank else np.array([one.fused for one in found])
        order = sorted(range(len(found)), key=lambda i: (-float(scores[i]), i))
        return [(min(1.0, max(0.0, float(scores[i]))), found[i]) for i in order]

    def search(
        self,
        question: str,
        k: int = 5,
        *,
        labels: Sequence[str] = (),
        where: Where | None = None,
        rerank: bool = True,
    ) -> list[Hit]:
        """The k best passages, best first. Scores are 0 to 1.

        `labels`: only passages with one of them; `where`: only of documents whose metadata has all of these values.
        """
        only = Only(labels=labels or (), where=where or {})
        hits = [
            Hit(
                text=one.row.text,
                doc_id=one.row.doc_id,
                span=Span(one.row.start, one.row.end),
                score=score,
                chunk_id=one.row.chunk_id,
                title=one.row.title,
                heading=one.row.heading,
                labels=one.row.labels,
                reading=one.reading,
            )
            for score, one in self._ranked(question, k, only, rerank)
        ]
        if self.depth_probe is None or not hits:
            return hits
        found = zip(hits, self.depth_probe(question, hits), strict=True)
        return [hit if depth is None else _deep(hit, depth) for hit, depth in found]

    def around(self, hit: Hit, *, before: int = 1, after: int = 1) -> list[Hit]:
        """A passage found with its neighbours in the document, in order; what was set aside is left out."""
        return [
            replace(
                hit, text=row.text, span=Span(row.start, row.end), chunk_id=row.chunk_id, heading=row.heading,
                labels=row.labels, depth_score=None, depth_raw=None, reading=None,
            )
            for row in self._store.around(hit.chunk_id, before, after)
        ]  # fmt: skip

    def extract(self, question: str, *, threshold: float = THRESHOLD) -> Extracted | None:
        """The sentence that answers a factual question, verbatim and cited; None when less sure than the threshold."""
        if not factual(_text(question)):
            return None
        found = self._extractor.best(question, [passage_of(*one) for one in self._ranked(question, CANDIDATES)])
        return found if found is not None and found.confidence >= threshold else None

    def context(
        self,
        question: str,
        *,
        k: int = 4,
        token_budget: int = 512,
        count_tokens: Callable[[str], int] = words.length,
        min_score: float = MIN_SCORE,
        depth_limit: float | None = None,
        labels: Sequence[str] = (),
        where: Where | None = None,
    ) -> Context:
        """What a model should read to answer: the best passages' sentences, cited, in at most `token_budget` tokens.

        The best passage is always in, cut at a sentence if need be. `depth_limit`: leave out passages with a lower
        depth score, but for the two best and those that clearly answer (A3); needs a depth probe. `labels` and `where`
        as `search` takes them.
        """
        hits = self.search(question, k, labels=labels, where=where)
        kept = [hit for place, hit in enumerate(hits) if place == 0 or hit.score >= min_score]
        left = [Dropped(hit=hit, reason="score") for place, hit in enumerate(hits) if place and hit.score < min_score]
        if depth_limit is not None:
            kept, hard = filter_hits(kept, depth_limit)
            left += [Dropped(hit=hit, reason="depth") for hit in hard]
        return fuse(
            question, kept, embed=self.embed, token_budget=token_budget, count_tokens=count_tokens,
            reader=self._reader, dropped=left,
        )  # fmt: skip
