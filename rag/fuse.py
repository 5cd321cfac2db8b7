"""Passages to a context: verbatim sentences, near-duplicates once, cited, within a token budget (A4).

Never invents text: every piece of a context is a substring of the span it cites. Knows nothing of where hits come from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .chunk import Span, Unit, units
from .embed import Embedder
from .retrieve import Hit

SAME = 0.95  # cosine from which two sentences say the same, if their numbers agree too


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Verbatim text of a document: characters `span` of `doc_id`."""

    text: str
    doc_id: str
    span: Span

    def __str__(self) -> str:
        return f"[{self.doc_id}, {self.span.start}-{self.span.end}] {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A hit left out of the context and why: "score", "duplicate", "budget", "depth"."""

    hit: Hit
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a model gets to read: `text` is the pieces, one a line, each with its citation; `tokens` is its length."""

    text: str
    pieces: tuple[Piece, ...]
    kept: tuple[Hit, ...]
    dropped: tuple[Dropped, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class _Sentence:
    hit: int
    start: int  # in the hit's text
    end: int
    closeness: float


def fuse(
    question: str,
    hits: Sequence[Hit],
    *,
    embed: Embedder,
    token_budget: int,
    count_tokens: Callable[[str], int],
    dropped: Sequence[Dropped] = (),
) -> Context:
    """The sentences of the hits (best first) that say most about the question in `token_budget` tokens."""
    picked, repeated = _pick(question, hits, embed, token_budget, count_tokens)
    while True:
        pieces = _merge(hits, picked)
        text = "\n".join(map(str, pieces))
        tokens = count_tokens(text) if pieces else 0
        if tokens <= token_budget or len(picked) <= 1:
            break
        picked = sorted(picked, key=lambda one: (one.hit, -one.closeness))[:-1]
    used = {one.hit for one in picked}
    left = [
        Dropped(hit=hit, reason="duplicate" if place in repeated else "budget")
        for place, hit in enumerate(hits)
        if place not in used
    ]
    kept = tuple(hit for place, hit in enumerate(hits) if place in used)
    return Context(text=text, pieces=tuple(pieces), kept=kept, dropped=(*dropped, *left), tokens=tokens)


def _pick(
    question: str, hits: Sequence[Hit], embed: Embedder, budget: int, count_tokens: Callable[[str], int]
) -> tuple[list[_Sentence], set[int]]:
    """(sentences in the order in which they earn their place, while they fit; hits that say again what is in)."""
    spans = [(place, unit) for place, hit in enumerate(hits) for unit in units(hit.text)]
    if not spans:
        return [], set()
    vectors = embed([question, *(hits[place].text[unit.start : unit.end] for place, unit in spans)])
    close = vectors[1:] @ vectors[0]
    order = sorted(range(len(spans)), key=lambda i: (-(hits[spans[i][0]].score + 0.5 * close[i]), i))
    picked: list[_Sentence] = []
    rows: list[int] = []
    spent, cited, repeated = 0, set[int](), set[int]()
    for i in order:
        place, unit = spans[i]
        text = hits[place].text[unit.start : unit.end]
        if rows and _repeats(text, vectors[1 + i], [(_text(hits, spans[j]), vectors[1 + j]) for j in rows]):
            repeated.add(place)
            continue
        cost = count_tokens(text) + (0 if place in cited else count_tokens(f"[{hits[place].doc_id}, 00000-00000] \n"))
        if spent + cost > budget and picked:
            continue
        spent += cost
        cited.add(place)
        rows.append(i)
        picked.append(_Sentence(place, unit.start, unit.end, float(close[i])))
    return picked, repeated


def _text(hits: Sequence[Hit], one: tuple[int, Unit]) -> str:
    return hits[one[0]].text[one[1].start : one[1].end]


def _repeats(text: str, vector: NDArray[np.float32], earlier: Sequence[tuple[str, NDArray[np.float32]]]) -> bool:
    digits = [char for char in text if char.isdigit()]
    return any(
        other == text or (float(row @ vector) >= SAME and digits == [char for char in other if char.isdigit()])
        for other, row in earlier
    )


def _merge(hits: Sequence[Hit], picked: Sequence[_Sentence]) -> list[Piece]:
    """Pieces by hit, then by place; sentences that follow each other become one piece with one citation."""
    pieces = []
    for place in sorted({one.hit for one in picked}):
        hit = hits[place]
        spans = sorted((one.start, one.end) for one in picked if one.hit == place)
        joined: list[list[int]] = []
        for start, end in spans:
            if joined and not hit.text[joined[-1][1] : start].strip():
                joined[-1][1] = end
            else:
                joined.append([start, end])
        pieces += [
            Piece(
                text=hit.text[start:end],
                doc_id=hit.doc_id,
                span=Span(hit.span.start + start, hit.span.start + end),
            )
            for start, end in joined
        ]
    return pieces
