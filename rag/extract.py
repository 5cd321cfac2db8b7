"""Answer a factual question with the sentence that holds the answer, verbatim and cited, or not at all (A7).

No model writes anything here. Abstains unless one passage is clearly best and its sentence likely holds the answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .chunk import Span, sentences
from .embed import Embedder
from .retrieve import Hit
from .words import content_terms, terms

THRESHOLD = 0.6

_NOT_FACTUAL = re.compile(
    r"^\s*(?:please\s+)?(?:write|compose|summari[sz]e|translate|imagine|compare|discuss|explain|prove|calculate|compute|"
    r"create|generate|draft|rewrite|analy[sz]e|suggest|recommend|plan|design|implement|why\b|should\b)"
    r"|^\s*(?:请|帮我|帮忙)?(?:写|编|总结|概括|翻译|想象|比较|讨论|解释|证明|计算|创作|生成|起草|改写|分析|建议|推荐|规划|设计|实现)"
    r"|为什么|为何|怎么办|如何看待",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """A verbatim answer: `text` is characters `span` of document `doc_id`. `confidence`: chance that it holds the answer."""

    text: str
    doc_id: str
    span: Span
    confidence: float
    chunk_id: str = ""

    @property
    def citation(self) -> str:
        """`[doc_id, start-end]`."""
        return f"[{self.doc_id}, {self.span.start}-{self.span.end}]"


def factual(question: str) -> bool:
    """Whether a question may have its answer stated in a sentence: not a task, an opinion, or a why."""
    return bool(question.strip()) and len(question) <= 400 and _NOT_FACTUAL.search(question) is None


class Extractor:
    """Scores the sentences of the best passages."""

    def __init__(self, embed: Embedder) -> None:
        self._embed = embed

    def __call__(self, question: str, hits: Sequence[Hit], *, threshold: float = THRESHOLD) -> Extracted | None:
        """The best sentence of the hits (best first), or None when its confidence is below the threshold."""
        if not hits or not factual(question):
            return None
        wanted = set(content_terms(question))
        best: tuple[float, Hit, Span] | None = None
        vector = self._embed([question])[0]
        for hit in hits[:3]:
            spans = sentences(hit.text)
            if not spans:
                continue
            vectors = self._embed([hit.text[start:end] for start, end in spans])
            for span, row in zip(spans, vectors, strict=True):
                words = set(terms(hit.text[span.start : span.end]))
                covered = len(wanted & words) / max(1, len(wanted))
                score = hit.score / (1.0 + float(np.exp(-(6 * float(row @ vector) + 3 * covered - 4))))
                if best is None or score > best[0]:
                    best = score, hit, span
        if best is None or best[0] < threshold:
            return None
        score, hit, (start, end) = best
        return Extracted(
            text=hit.text[start:end],
            doc_id=hit.doc_id,
            span=Span(hit.span.start + start, hit.span.start + end),
            confidence=score,
            chunk_id=hit.chunk_id,
        )
