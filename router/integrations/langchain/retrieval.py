"""A `KnowledgeBase` as LangChain's retriever, its scoring as a document compressor, the bundled embedder as embeddings.

Scores are kept: `metadata["score"]` is relevance in 0..1, `metadata["depth_score"]` how easily the model reads it (A3).
"""

import asyncio
from collections.abc import Sequence

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from ....rag import Hit, KnowledgeBase
from ....rag.embed import Embedder, default_embedder
from ....rag.knowledge_base import MIN_SCORE
from ...errors import InvalidRequest
from ..ranking import Ranker


class KnowledgeBaseRetriever(BaseRetriever):
    """`KnowledgeBaseRetriever(kb=KnowledgeBase.open("./kb"), k=4)`; `k` may also be given per call."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    kb: KnowledgeBase = Field(exclude=True, repr=False)
    k: int = Field(default=4, ge=1)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return [_document(hit) for hit in self.kb.search(query, k=self.k if k is None else k)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return await asyncio.to_thread(self._get_relevant_documents, query, run_manager=run_manager.get_sync(), k=k)


def _document(hit: Hit) -> Document:
    start, end = hit.span
    metadata = {"doc_id": hit.doc_id, "start": start, "end": end, "score": hit.score, "depth_score": hit.depth_score}
    return Document(page_content=hit.text, id=hit.chunk_id, metadata=metadata)


class ShoalEmbeddings(Embeddings):
    """`ShoalEmbeddings()`: the bundled bilingual encoder (512 dimensions), or any other Shoal embedder."""

    def __init__(self, embed: Embedder | None = None) -> None:
        self.embed = default_embedder() if embed is None else embed
        if not isinstance(self.embed, Embedder):
            raise InvalidRequest(f"embed must be an Embedder, not {type(embed).__name__}", "embed")

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self.embed(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class DepthCompressor(BaseDocumentCompressor):
    """`DepthCompressor(top_n=4)`: the documents that help most, best first, with `score` and `depth_score` kept.

    The best document always stays, whatever its score. The documents given are not changed; a `score` of their own is
    replaced in what comes back. Raises `InvalidRequest` for a blank query.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    ranker: Ranker = Field(default_factory=Ranker, exclude=True, repr=False)
    top_n: int = Field(default=4, ge=1)
    min_score: float = Field(default=MIN_SCORE, ge=0, le=1)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        texts = [document.page_content for document in documents]
        kept = self.ranker(query, texts, top_n=self.top_n, min_score=self.min_score)
        return [_scored(documents[i], hit) for i, hit in kept]


def _scored(document: Document, hit: Hit) -> Document:
    scores = {"score": hit.score, "depth_score": hit.depth_score}
    return document.model_copy(update={"metadata": {**document.metadata, **scores}})
