"""Answer a factual question with the sentence that holds the answer, verbatim and cited, or not at all (A7).

No model writes anything here. A small network tells from the match of question and sentence, the passage's score and
the kind of answer asked for, how likely the sentence holds the answer; below the threshold there is no answer.
Trained by `rag/train/heads.py`; card: docs/models/reader.md. Knows nothing of indexes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .chunk import Span
from .reading import DENSE_SHARE, ROW, SENTENCE, Match, Reader, Reading, match
from .rerank import network, sigmoid
from .words import content_terms, has_cjk, terms

THRESHOLD = 0.7  # nine answers of ten hold what was asked, on held-out training articles (rag/train/heads.py)
PASSAGES = 3

_TASKS_EN = (
    "write|compose|summari[sz]e|translate|imagine|compare|discuss|explain|prove|calculate|compute|create|generate|draft|"
    "rewrite|analy[sz]e|suggest|recommend|plan|design|implement|why|should"
)
_TASKS_ZH = "写|编|总结|概括|翻译|想象|比较|讨论|解释|证明|计算|创作|生成|起草|改写|分析|建议|推荐|规划|设计|实现"
_NOT_FACTUAL = re.compile(
    rf"^\s*(?:please\s+|can you\s+|could you\s+)*(?:{_TASKS_EN})\b"
    rf"|^\s*(?:请你?|帮我|帮忙|能不能|可以)*(?:{_TASKS_ZH})"
    "|为什么|为何|怎么办|如何看待",
    re.IGNORECASE,
)
_WHEN = (
    r"\bwhen\b|\b(?:what|which) (?:year|date|day|month|century|time)\b"
    "|何时|什么时候|哪一?年|哪一?天|时间|几[年月日号点]|日期"
)
_HOW_MUCH = (
    r"\bhow (?:many|much|long|old|far|often|large|big|tall|high)\b|\bwhat (?:percent|number|amount)"
    "|多少|几|多[久长大高远]"
)
_WHO = r"\bwho(?:m|se)?\b|谁|哪一?位|何人|人物|什么人"
_WHERE = (
    r"\bwhere\b|\b(?:what|which) (?:city|country|state|place|region|continent)\b"
    "|哪里|何处|哪儿|地方|哪个?(?:国|城|省|地|市)|位于"
)
_KINDS = tuple(re.compile(pattern, re.IGNORECASE) for pattern in (_WHEN, _HOW_MUCH, _WHO, _WHERE))
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DATE = re.compile(
    rf"\b1\d{{3}}\b|\b20\d\d\b|\d+\s*[年月日]|(?:{_MONTHS}|century|o'clock|[ap]\.?m\.?)\b|世纪|星期", re.IGNORECASE
)
_NUMBER = re.compile(
    r"\d[\d,.]*|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand|million|billion)\b"
    r"|[一二三四五六七八九十百千万两]+(?=[个名人次种位部年月岁天米元])",
    re.IGNORECASE,
)
_REFERS = re.compile(
    r"(?:It|He|She|They|This|These|That|Those|Its|His|Her|Their|There|Here)\b|[它他她该其这此]", re.IGNORECASE
)
_NAME = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z][a-z]+|[A-Z]{2,}|·|《")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """A verbatim answer: `text` is characters `span` of `doc_id`; `confidence` is the chance that it answers."""

    text: str
    doc_id: str
    span: Span
    confidence: float
    chunk_id: str = ""

    @property
    def citation(self) -> str:
        """`[doc_id, start-end]`."""
        return f"[{self.doc_id}, {self.span.start}-{self.span.end}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A passage to answer from: its place in its document, its reranked score, its reading."""

    text: str
    doc_id: str
    chunk_id: str
    start: int
    score: float
    reading: Reading


def factual(question: str) -> bool:
    """Whether a question may have its answer stated in a sentence: not a task, an opinion, or a why."""
    return bool(question.strip()) and len(question) <= 400 and _NOT_FACTUAL.search(question) is None


class Extractor:
    """Finds the answering sentence in the best passages."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def best(self, question: str, passages: Sequence[Passage]) -> Extracted | None:
        """The likeliest sentence of the passages (best first), however unsure; None when they hold no sentence."""
        asked = self._reader.ask(question)
        matches = [match(asked, passage.reading) for passage in passages[:PASSAGES]]
        places, rows = features(question, passages[:PASSAGES], matches)
        if not places:
            return None
        chances = sigmoid(network(rows, self._reader.weights, "extract"))
        best = int(np.argmax(chances))
        passage, segment = passages[places[best][0]], places[best][1]
        start, end = (int(place) for place in passage.reading.spans[segment])
        return Extracted(
            text=passage.text[start:end],
            doc_id=passage.doc_id,
            span=Span(passage.start + start, passage.start + end),
            confidence=float(chances[best]),
            chunk_id=passage.chunk_id,
        )


def features(
    question: str, passages: Sequence[Passage], matches: Sequence[Match]
) -> tuple[list[tuple[int, int]], NDArray[np.float64]]:
    """(passage, segment) of every sentence of n, and their features [n, 32]."""
    kinds = [float(bool(kind.search(question))) for kind in _KINDS]
    wanted = set(content_terms(question))
    scores = [passage.score for passage in passages] + [0.0]
    places: list[tuple[int, int]] = []
    rows: list[list[float]] = []
    for place, (passage, met) in enumerate(zip(passages, matches, strict=True)):
        together = met.late + DENSE_SHARE * met.dense
        same = float(has_cjk(question) == has_cjk(passage.text))
        rivals = max(score for other, score in enumerate(scores) if other != place)
        for segment in np.flatnonzero(np.isin(passage.reading.kinds, (SENTENCE, ROW))):
            start, end = passage.reading.spans[segment]
            text = passage.text[start:end]
            found = _answers(question, text)
            others = np.delete(together, segment)
            places.append((place, int(segment)))
            rows.append(
                [
                    float(met.late[segment]),
                    float(met.dense[segment]),
                    float(together[segment] - (others.max() if len(others) else 0.0)),
                    float(met.gain[segment]),
                    float(together[segment - 1]) if segment else 0.0,
                    float(together[segment + 1]) if segment + 1 < len(together) else 0.0,
                    float(bool(_REFERS.match(text))),
                    met.passage,
                    passage.score,
                    passage.score - rivals,
                    float(place == 0),
                    len(wanted & set(terms(text))) / max(1, len(wanted)),
                    same,
                    np.log1p(len(text) * (3.0 if has_cjk(text) else 1.0)) / 5.0,
                    np.log1p(len(wanted)) / 3.0,
                    *kinds,
                    float(not any(kinds)),
                    *found,
                    *(kind * has for kind, has in zip(kinds, (found[0], found[1], found[2], found[2]), strict=True)),
                    float(text.rstrip().endswith(("?", "？"))),
                    float(passage.reading.kinds[segment] == ROW),
                    float(segment) / len(together),
                    met.cosine,
                    float(has_cjk(question)),
                ]
            )
    return places, np.array(rows, np.float64)


def _answers(question: str, text: str) -> list[float]:
    """Whether the sentence brings a date, a number, a name that the question does not have."""
    asked = question.lower()
    return [
        float(any(match.group().lower() not in asked for match in pattern.finditer(text)))
        for pattern in (_DATE, _NUMBER, _NAME)
    ]
