"""Passages that came from anywhere, scored the way a `KnowledgeBase` scores its own (A2, A3).

The scores are `rag`'s; here they only meet texts that no index holds. Knows neither LangChain nor LlamaIndex.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...rag import Hit
from ...rag.chunk import Span
from ...rag.embed import Embedder, default_embedder
from ...rag.knowledge_base import MIN_SCORE, DepthProbe
from ...rag.rerank import LightReranker, Reranker
from ...rag.retrieve import Candidate
from ...rag.store import Row


class Ranker:
    """`ranker(question, texts, top_n=4)`: the best, first, with `score` and `depth_score` (None without a probe)."""

    def __init__(
        self,
        *,
        embed: Embedder | None = None,
        reranker: Reranker | None = None,
        depth_probe: DepthProbe | None = None,
    ) -> None:
        self._embed, self._reranker = embed or default_embedder(), reranker or LightReranker()
        self._probe = depth_probe

    @property
    def name(self) -> str:
        return self._reranker.fingerprint

    def __call__(
        self, question: str, texts: Sequence[str], *, top_n: int, min_score: float = MIN_SCORE
    ) -> list[tuple[int, Hit]]:
        """At most `top_n` pairs of place in `texts` and hit. Below `min_score` only the very best one stays."""
        if not texts:
            return []
        question_vector, *vectors = self._embed([question, *texts])
        found = []
        for i, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
            row = Row(
                row=i, chunk_id=str(i), doc_id="", ordinal=i, start=0, end=len(text), heading="", text=text, title="",
                labels=(), vector=vector,
            )  # fmt: skip
            cosine = float(vector @ question_vector)
            found.append(Candidate(row=row, cosine=cosine, bm25=0.0, fused=max(0.0, cosine)))
        scores = [min(1.0, max(0.0, float(score))) for score in self._reranker(question, found)]
        order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[:top_n]
        kept = [i for rank, i in enumerate(order) if rank == 0 or scores[i] >= min_score]
        hits = [
            Hit(text=texts[i], doc_id="", span=Span(0, len(texts[i])), score=scores[i], chunk_id=str(i)) for i in kept
        ]
        if self._probe is not None:
            depths = self._probe(question, hits)
            hits = [replace(hit, depth_score=float(depth)) for hit, depth in zip(hits, depths, strict=True)]
        return list(zip(kept, hits, strict=True))
