"""Passages that came from anywhere, scored exactly as a `KnowledgeBase` scores its own (A2, A3).

They are put into a knowledge base that lives for one question. Knows neither LangChain nor LlamaIndex.
"""

from collections.abc import Sequence
from tempfile import TemporaryDirectory

from ...rag import Hit, KnowledgeBase
from ...rag.embed import Embedder
from ...rag.knowledge_base import MIN_SCORE, DepthProbe
from ...rag.rerank import Reranker
from ..errors import InvalidRequest


class Ranker:
    """`ranker(question, texts, top_n=4)`: the best, first, with `score` and `depth_score` (None without a probe)."""

    def __init__(
        self,
        *,
        embed: Embedder | None = None,
        reranker: Reranker | None = None,
        depth_probe: DepthProbe | None = None,
    ) -> None:
        self._embed, self._reranker, self._probe = embed, reranker, depth_probe

    @property
    def name(self) -> str:
        return self._reranker.fingerprint if self._reranker is not None else "shoal-light"

    def __call__(
        self, question: str, texts: Sequence[str], *, top_n: int, min_score: float = MIN_SCORE
    ) -> list[tuple[int, Hit]]:
        """At most `top_n` pairs of place in `texts` and its best hit. Below `min_score` only the very best stays.

        Raises `InvalidRequest` where there are texts and no question to score them for.
        """
        if texts and not (isinstance(question, str) and question.strip()):
            raise InvalidRequest("passages are scored for a question: give one that is not blank", "query")
        if not any(text.strip() for text in texts):
            return []
        with (
            TemporaryDirectory(prefix="shoal-rank-") as folder,
            KnowledgeBase.open(folder, embed=self._embed, reranker=self._reranker) as kb,
        ):
            kb.depth_probe = self._probe
            for i, text in enumerate(texts):
                if text.strip():
                    kb.add_text(text, str(i))
            best: dict[int, Hit] = {}
            for hit in kb.search(question, k=len(kb)):
                best.setdefault(int(hit.doc_id), hit)
        ranked = list(best.items())[:top_n]
        return [pair for rank, pair in enumerate(ranked) if rank == 0 or pair[1].score >= min_score]
