"""A folder that holds documents cut into passages, found by meaning and by words, reranked, extracted and fused.

Puts the parts of this package together. Knows nothing of models that write, of routes or of caches.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from . import words
from .chunk import Chunk, Span, Splitter
from .document import Document, find_files, read_file
from .embed import Embedder, default_embedder
from .errors import DocumentError, IndexMismatchError, RagError
from .extract import THRESHOLD, Extracted, Extractor, factual
from .fuse import Context, Dropped, fuse
from .index import DenseIndex
from .rerank import LightReranker, Reranker
from .retrieve import Hit, candidates
from .store import Store

CANDIDATES = 20
MIN_SCORE = 0.05  # of a passage in a context; the best one is kept whatever its score
_BATCH = 256  # chunks embedded and committed together


class DepthProbe(Protocol):
    """Depth scores [n], 0 to 1, of passages for a question: high where a gated model would skim them (A3)."""

    def __call__(self, question: str, passages: Sequence[Hit], /) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file that did not go in, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddReport:
    """What `add` did: documents new, changed, the same as before, gone from their file; chunks written; files skipped."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    chunks: int = 0
    skipped: tuple[Skipped, ...] = ()


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
        self._reranker: Reranker = reranker or LightReranker()
        self._extractor = Extractor(embed)
        self._fingerprint = (-1, "")

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
            self._store.set_meta({**mine, "splitter": self._splitter.fingerprint})
            return
        differing = [f"{key} {known.get(key)} (now {value})" for key, value in mine.items() if known.get(key) != value]
        if differing:
            raise IndexMismatchError(
                f"{self.path} was built with another {', '.join(differing)}. Open it with the embedder it was built "
                f"with, or rebuild it from the texts it holds: shoal kb rebuild {self.path} "
                "(KnowledgeBase.rebuild(path, embed=...))"
            )

    @classmethod
    def rebuild(cls, path: str | Path, *, embed: Embedder | None = None, splitter: Splitter | None = None) -> Self:
        """Split and embed again everything the knowledge base holds, then open it. The old one stays until the end."""
        folder = Path(path)
        if not (folder / "kb.sqlite").exists():
            raise RagError(f"{folder}: no knowledge base there to rebuild")
        encoder, cutter = embed or default_embedder(), splitter or Splitter()
        store = Store(folder / "kb.sqlite")
        try:
            documents = [document for doc_id, _ in store.digests() if (document := store.document(doc_id))]
            cut = [(document, cutter.split(document.text, document.doc_id)) for document in documents]
            store.replace(
                ((document, chunks, encoder([_embedded(document, chunk) for chunk in chunks])) for document, chunks in cut),
                settings={
                    "embedder": encoder.fingerprint, "dim": str(encoder.dim), "splitter": cutter.fingerprint
                },
            )  # fmt: skip
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
    ) -> AddReport:
        """Put files, folders or patterns in. What is in already and unchanged costs nothing; bad files are reported.

        `progress(done, total, name)` is called after each file.
        """
        wanted = [Path(paths)] if isinstance(paths, str | Path) else [Path(one) for one in paths]
        files = list(find_files(wanted))
        skipped = [Skipped(path=str(path), reason="no such file") for path in wanted if not path.exists() and not files]
        work = _Ingest(self._store, self._splitter, self.embed)
        for done, (file, root) in enumerate(files, 1):
            try:
                work.file(file, root, tuple(labels))
            except DocumentError as error:
                skipped.append(Skipped(path=str(file), reason=str(error)))
            if progress:
                progress(done, len(files), str(file))
        work.flush()
        self._save()
        return AddReport(**work.counts, skipped=tuple(skipped))

    def add_text(
        self, text: str, doc_id: str, *, title: str = "", labels: Sequence[str] = (), meta: dict[str, Any] | None = None
    ) -> AddReport:
        """Put one text in under a name, in place of what had that name. Raises DocumentError for an empty text."""
        document = Document(doc_id=doc_id, text=text, title=title, labels=tuple(labels), meta=meta or {})
        work = _Ingest(self._store, self._splitter, self.embed)
        work.put([document])
        work.flush()
        return AddReport(**work.counts)

    def delete(self, doc_id: str) -> bool:
        """Take a document out; False when there was none of that name."""
        return self._store.delete(doc_id)

    def document(self, doc_id: str) -> Document | None:
        """The document that spans point into, or None."""
        return self._store.document(doc_id)

    def doc_ids(self) -> list[str]:
        """Names of all documents, sorted."""
        return [doc_id for doc_id, _ in self._store.digests()]

    def __len__(self) -> int:
        """Number of chunks."""
        return self._store.counts()[1]

    @property
    def fingerprint(self) -> str:
        """Changes when, and only when, the documents change: names, texts, titles, labels, metadata."""
        generation = self._store.generation()
        if self._fingerprint[0] != generation:
            digest = hashlib.sha256(json.dumps(self._store.digests()).encode()).hexdigest()[:24]
            self._fingerprint = (generation, digest)
        return self._fingerprint[1]

    def close(self) -> None:
        """Save the index file and let go of the folder."""
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

    def search(self, question: str, k: int = 5, *, labels: Sequence[str] = (), rerank: bool = True) -> list[Hit]:
        """The k best passages, best first, of documents with one of the labels when given. Scores are 0 to 1."""
        if k < 1:
            raise RagError(f"k is {k}; ask for at least one passage")
        if not question.strip():
            return []
        vector = self.embed([question])[0]
        found = candidates(self._store, self._dense, question, vector, max(k, CANDIDATES), labels)
        scores = self._reranker(question, found) if rerank else [one.fused for one in found]
        order = sorted(range(len(found)), key=lambda i: (-float(scores[i]), i))[:k]
        hits = [
            Hit(
                text=found[i].row.text,
                doc_id=found[i].row.doc_id,
                span=Span(found[i].row.start, found[i].row.end),
                score=min(1.0, max(0.0, float(scores[i]))),
                chunk_id=found[i].row.chunk_id,
                title=found[i].row.title,
                heading=found[i].row.heading,
                labels=found[i].row.labels,
            )
            for i in order
        ]
        if self.depth_probe is None or not hits:
            return hits
        depths = self.depth_probe(question, hits)
        return [replace(hit, depth_score=float(depth)) for hit, depth in zip(hits, depths, strict=True)]

    def extract(self, question: str, *, threshold: float = THRESHOLD) -> Extracted | None:
        """The sentence that answers a factual question, verbatim and cited; None when not sure enough."""
        if not factual(question):
            return None
        return self._extractor(question, self.search(question, 5), threshold=threshold)

    def context(
        self,
        question: str,
        *,
        k: int = 4,
        token_budget: int = 512,
        count_tokens: Callable[[str], int] = words.length,
        min_score: float = MIN_SCORE,
    ) -> Context:
        """What a model should read to answer: the best passages' sentences, cited, in at most `token_budget` tokens.

        The best passage is always in, cut at a sentence if need be.
        """
        hits = self.search(question, k)
        kept = [hit for place, hit in enumerate(hits) if place == 0 or hit.score >= min_score]
        low = [Dropped(hit=hit, reason="score") for place, hit in enumerate(hits) if place and hit.score < min_score]
        return fuse(question, kept, embed=self.embed, token_budget=token_budget, count_tokens=count_tokens, dropped=low)


def _embedded(document: Document, chunk: Chunk) -> str:
    """The text that stands for a chunk in vector space: title and headings above it, then itself."""
    above = [part for part in (document.title, chunk.heading) if part and part not in chunk.text]
    return "\n".join([*dict.fromkeys(above), chunk.text])


class _Ingest:
    """Documents gathered until enough chunks are there to be embedded and committed together."""

    def __init__(self, store: Store, splitter: Splitter, embed: Embedder) -> None:
        self._store, self._splitter, self._embed = store, splitter, embed
        self._waiting: list[tuple[Document, list[Chunk]]] = []
        self._gone: list[str] = []
        self._size = 0
        self.counts = dict.fromkeys(("added", "updated", "unchanged", "removed", "chunks"), 0)

    def file(self, file: Path, root: Path, labels: tuple[str, ...]) -> None:
        """Read a file and put its documents in; those it no longer holds go. Raises DocumentError."""
        earlier = self._store.sources(str(file.resolve()))
        relative = file.relative_to(root) if root != file.parent or not file.exists() else Path(file.name)
        name = self._name(file, root, relative.as_posix(), earlier)
        found = [
            replace(one, labels=tuple(dict.fromkeys((*labels, *one.labels)))) if labels else one
            for one in read_file(file, name)
        ]
        unique = {document.doc_id: document for document in found}
        self._gone += sorted(set(earlier) - set(unique))
        self.put(list(unique.values()))

    def _name(self, file: Path, root: Path, relative: str, earlier: list[str]) -> str:
        """The file's name below the folder given; a hash of its place is added when another file has that name."""
        if earlier:
            return earlier[0].partition("#")[0]
        source = str(file.resolve())
        taken = self._store.source_of(relative)
        waiting = {document.doc_id.partition("#")[0]: document.source for document, _ in self._waiting}
        if taken in (None, source) and waiting.get(relative, source) == source:
            return relative
        return f"{relative}~{hashlib.sha256(source.encode()).hexdigest()[:8]}"

    def put(self, documents: Sequence[Document]) -> None:
        """Take documents in, committing when enough are waiting."""
        for document in documents:
            before = self._store.digest(document.doc_id)
            if before == document.digest:
                self.counts["unchanged"] += 1
                continue
            self.counts["added" if before is None else "updated"] += 1
            chunks = self._splitter.split(document.text, document.doc_id)
            self._waiting.append((document, chunks))
            self._size += len(chunks)
            if self._size >= _BATCH:
                self.flush()

    def flush(self) -> None:
        """Embed and commit what is waiting."""
        if not self._waiting and not self._gone:
            return
        wanted: list[str] = []
        ready: dict[str, Any] = {}
        for document, chunks in self._waiting:
            ready.update(self._store.vectors_of(document.doc_id))
            wanted += [chunk.chunk_id for chunk in chunks if chunk.chunk_id not in ready]
        texts = {c.chunk_id: _embedded(document, c) for document, chunks in self._waiting for c in chunks}
        ready.update(zip(wanted, self._embed([texts[one] for one in wanted]), strict=True))
        self._store.replace(
            ((document, chunks, [ready[c.chunk_id] for c in chunks]) for document, chunks in self._waiting), self._gone
        )
        self.counts["chunks"] += self._size
        self.counts["removed"] += len(self._gone)
        self._waiting, self._gone, self._size = [], [], 0
