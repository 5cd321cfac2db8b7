"""A `KnowledgeBase` as LlamaIndex's retriever, its scoring as a postprocessor, the bundled embedder as embedding (I2).

Scores stand beside the node (`score`, `depth_score`), never in its `metadata`: hashes and embedded text stay the same
(llama_index #11619). The source is a relationship, for the same reason.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, model_validator
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import (
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index_instrumentation import get_dispatcher

from ....rag import Hit, KnowledgeBase
from ....rag.embed import Embedder, default_embedder
from ....rag.knowledge_base import MIN_SCORE
from ...errors import InvalidRequest
from ..ranking import Ranker

dispatcher = get_dispatcher(__name__)
_PASSAGE = ("chunk_id", "doc_id", "span", "text", "score", "depth_score")


class DepthNode(NodeWithScore):
    """A node, its relevance (`score`, 0..1) and how easily the model reads it (`depth_score`, A3; None if unknown)."""

    depth_score: float | None = None

    @classmethod
    def class_name(cls) -> str:
        return "DepthNode"


def node_of(passage: Mapping[str, Any]) -> DepthNode:
    """A node from a passage of the trace, which has the fields of a `Hit`."""
    start, end = passage["span"]
    place = f"{passage['doc_id']}:{start}-{end}"
    node = TextNode(id_=passage.get("chunk_id", place), text=passage["text"], start_char_idx=start, end_char_idx=end)
    node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=passage["doc_id"])
    return DepthNode(node=node, score=passage["score"], depth_score=passage.get("depth_score"))


class KnowledgeBaseRetriever(BaseRetriever):
    """`KnowledgeBaseRetriever(kb, k=4)`: at most k nodes, best first. Raises `InvalidRequest` for another kb or k."""

    def __init__(self, kb: KnowledgeBase, *, k: int = 4, callback_manager: CallbackManager | None = None) -> None:
        super().__init__(callback_manager)
        if not isinstance(kb, KnowledgeBase):
            raise InvalidRequest(f"kb must be a KnowledgeBase, not {type(kb).__name__}", "kb")
        if not isinstance(k, int) or k < 1:
            raise InvalidRequest(f"k must be a whole number of passages from 1, not {k!r}", "k")
        self.kb, self.k = kb, k

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [_node(hit) for hit in self.kb.search(query_bundle.query_str, k=self.k)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _node(hit: Hit) -> DepthNode:
    return node_of({name: getattr(hit, name) for name in _PASSAGE})


class DepthPostprocessor(BaseNodePostprocessor):
    """`DepthPostprocessor(top_n=4)`: the nodes that help most, best first, as `DepthNode`; emits rerank start and end.

    The best node always stays, whatever its score. The nodes given are not changed. Raises ValueError without a query,
    `InvalidRequest` for a blank one.
    """

    model_config = ConfigDict(extra="forbid")

    ranker: Ranker = Field(default_factory=Ranker, exclude=True, repr=False)
    top_n: int = Field(default=4, ge=1)
    min_score: float = Field(default=MIN_SCORE, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _drop_class_name(cls, values: Any) -> Any:
        """What `model_dump` adds."""
        return {k: v for k, v in values.items() if k != "class_name"} if isinstance(values, dict) else values

    @classmethod
    def class_name(cls) -> str:
        return "DepthPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("DepthPostprocessor scores nodes for a question: pass query_bundle or query_str")
        dispatcher.event(
            ReRankStartEvent(query=query_bundle, nodes=nodes, top_n=self.top_n, model_name=self.ranker.name)
        )
        texts = [node.node.get_content(MetadataMode.NONE) for node in nodes]
        kept = self.ranker(query_bundle.query_str, texts, top_n=self.top_n, min_score=self.min_score)
        scored: list[NodeWithScore] = [
            DepthNode(node=nodes[i].node, score=hit.score, depth_score=hit.depth_score) for i, hit in kept
        ]
        dispatcher.event(ReRankEndEvent(nodes=scored))
        return scored


class ShoalEmbedding(BaseEmbedding):
    """`ShoalEmbedding()`: the bundled bilingual encoder (512 dimensions), or any other Shoal embedder."""

    model_config = ConfigDict(extra="forbid")
    _embed: Embedder = PrivateAttr()

    def __init__(self, embed: Embedder | None = None, **kwargs: Any) -> None:
        embed = default_embedder() if embed is None else embed
        if not isinstance(embed, Embedder):
            raise InvalidRequest(f"embed must be an Embedder, not {type(embed).__name__}", "embed")
        kwargs.pop("class_name", None)  # what `model_dump` adds
        named = kwargs.pop("model_name", embed.fingerprint)
        if named != embed.fingerprint:
            raise InvalidRequest(f"this embedder is {embed.fingerprint}; leave out model_name={named!r}", "model_name")
        super().__init__(model_name=named, **kwargs)
        self._embed = embed

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: getattr(self, name) for name in ("embed_batch_size", "num_workers", "embeddings_cache")}
        return partial(type(self), self._embed, **kept), ()

    @classmethod
    def class_name(cls) -> str:
        return "ShoalEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._embed(texts).tolist()
        return vectors

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._aget_text_embedding(query)
