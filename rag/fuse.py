"""Passages to a context: verbatim sentences, near-duplicates once, conflicts side by side, cited, in a budget (A4).

Sentences that say the same are one cluster, of which the one closest to the question stays. Sentences that contradict
each other in a number, a date or a negation all stay, next to each other, each marked with the place of the other.
Never invents text: every piece of a context is a substring of the span it cites. Knows nothing of where hits come from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .chunk import Span, units
from .claims import claim
from .embed import Embedder
from .reading import DENSE_SHARE, Question, Reader, Reading, match
from .retrieve import Hit

SAME = 0.9  # cosine from which two sentences say the same, if their values, their denial and most words agree
RIVAL = 0.7  # cosine from which two sentences contradict each other, if their words agree and a value does not
COSINE_WEIGHT = 0.5  # of a sentence's closeness to the question, by vectors, beside its passage's score
LATE_WEIGHT = 2.0  # of the same by the reader; chosen on training questions (docs/log.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Verbatim text of a document: characters `span` of `doc_id`; `against`: citations of what contradicts it."""

    text: str
    doc_id: str
    span: Span
    against: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = " ≠ ".join((_place(self.doc_id, self.span), *self.against))
        return f"[{place}] {self.text}"


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
    close: float  # to the question
    worth: float  # closeness and the passage's score


def fuse(
    question: str,
    hits: Sequence[Hit],
    *,
    embed: Embedder,
    token_budget: int,
    count_tokens: Callable[[str], int],
    reader: Reader | None = None,
    dropped: Sequence[Dropped] = (),
) -> Context:
    """The sentences of the hits (best first) that say most about the question in `token_budget` tokens.

    A sentence's closeness to the question comes from the `reader`, where it is given and all hits carry their readings,
    else from the vectors. At least one sentence is in, even when it is longer than the budget.
    """
    found, vectors = _sentences(question, hits, embed, reader)
    leaders, rivals = _clusters(hits, found, vectors)
    picked = _pick(hits, found, leaders, rivals, token_budget, count_tokens)
    while True:
        pieces = _pieces(hits, found, picked, rivals)
        text = "\n".join(map(str, pieces))
        tokens = count_tokens(text) if pieces else 0
        if tokens <= token_budget or len(picked) <= 1:
            break
        picked.pop()
    used = {found[i].hit for i in picked}
    repeated = {found[i].hit for i, leader in enumerate(leaders) if leader != i}
    left = [
        Dropped(hit=hit, reason="duplicate" if place in repeated else "budget")
        for place, hit in enumerate(hits)
        if place not in used
    ]
    kept = tuple(hit for place, hit in enumerate(hits) if place in used)
    return Context(text=text, pieces=tuple(pieces), kept=kept, dropped=(*dropped, *left), tokens=tokens)


def _sentences(
    question: str, hits: Sequence[Hit], embed: Embedder, reader: Reader | None
) -> tuple[list[_Sentence], NDArray[np.float32]]:
    """Every unit of the hits in order, and their unit vectors [n, dim]."""
    spans = [(place, unit.start, unit.end) for place, hit in enumerate(hits) for unit in units(hit.text)]
    vectors = embed([question, *(hits[place].text[start:end] for place, start, end in spans)])
    readings = [hit.reading for hit in hits if hit.reading is not None]
    if reader is not None and len(readings) == len(hits):
        asked = reader.ask(question)
        near = [_segments(asked, reading) for reading in readings]
        close = [LATE_WEIGHT * _within(near[place], start, end) for place, start, end in spans]
    else:
        close = [COSINE_WEIGHT * float(cosine) for cosine in vectors[1:] @ vectors[0]]
    return [
        _Sentence(place, start, end, value, hits[place].score + value)
        for (place, start, end), value in zip(spans, close, strict=True)
    ], vectors[1:]


def _segments(asked: Question, reading: Reading) -> list[tuple[int, int, float]]:
    """(start, end, closeness) of the segments of a passage."""
    met = match(asked, reading)
    values = met.late + DENSE_SHARE * met.dense
    return [(int(start), int(end), float(value)) for (start, end), value in zip(reading.spans, values, strict=True)]


def _within(segments: Sequence[tuple[int, int, float]], start: int, end: int) -> float:
    """The closest of the segments inside a span, as of a table's rows; 0 where there is none."""
    return max((value for first, last, value in segments if start <= first < last <= end), default=0.0)


def _clusters(
    hits: Sequence[Hit], found: list[_Sentence], vectors: NDArray[np.float32]
) -> tuple[list[int], dict[int, list[int]]]:
    """For each sentence the one that stands for its cluster, and for each of those the ones that contradict it.

    A cluster grows from its worthiest sentence, so no chain of small steps joins sentences that are far apart; the one
    closest to the question stands for it, with that worth.
    """
    texts = [hits[one.hit].text[one.start : one.end] for one in found]
    order = sorted(range(len(found)), key=lambda i: (-found[i].worth, i))
    near = vectors @ vectors.T
    leaders = list(range(len(found)))
    heads: list[int] = []
    rivals: dict[int, list[int]] = {}
    for i in order:
        close = [j for j in heads if near[i, j] >= RIVAL or texts[i] == texts[j]]
        same = next((j for j in close if texts[i] == texts[j] or _same(near[i, j], texts[i], texts[j])), None)
        if same is not None:
            leaders[i] = same
            continue
        for j in close:
            if claim(texts[i]).contradicts(claim(texts[j])):
                rivals.setdefault(i, []).append(j)
                rivals.setdefault(j, []).append(i)
        heads.append(i)
    members: dict[int, list[int]] = {}
    for i, head in enumerate(leaders):
        members.setdefault(head, []).append(i)
    stands = {head: max(same, key=lambda i: (found[i].close, found[i].worth, -i)) for head, same in members.items()}
    for head, one in stands.items():
        found[one] = replace(found[one], worth=found[head].worth)
    return [stands[head] for head in leaders], {
        stands[head]: [stands[other] for other in others] for head, others in rivals.items()
    }


def _same(cosine: float, one: str, other: str) -> bool:
    return cosine >= SAME and claim(one).repeats(claim(other))


def _pick(
    hits: Sequence[Hit],
    found: Sequence[_Sentence],
    leaders: Sequence[int],
    rivals: dict[int, list[int]],
    budget: int,
    count_tokens: Callable[[str], int],
) -> list[int]:
    """Sentences in the order in which they earn their place, while they fit; what contradicts one comes right after."""
    picked: list[int] = []
    spent, cited = 0, set[int]()
    best = sorted((i for i, leader in enumerate(leaders) if leader == i), key=lambda i: (-found[i].worth, i))
    for i in dict.fromkeys(j for head in best for j in (head, *rivals.get(head, ()))):
        one = found[i]
        cost = count_tokens(hits[one.hit].text[one.start : one.end])
        if one.hit not in cited or i in rivals:
            cost += count_tokens(f"[{hits[one.hit].doc_id}, 00000-00000] \n") * (1 + len(rivals.get(i, ())))
        if spent + cost > budget and picked:
            continue
        spent += cost
        cited.add(one.hit)
        picked.append(i)
    return picked


def _pieces(
    hits: Sequence[Hit], found: Sequence[_Sentence], picked: Sequence[int], rivals: dict[int, list[int]]
) -> list[Piece]:
    """Pieces by hit, then by place; sentences that follow each other become one piece, those with rivals stay alone."""
    chosen, done = set(picked), set[int]()
    pieces: list[Piece] = []
    last = -1  # the sentence that the last piece ends with, where more may be joined to it
    for i in sorted(picked):
        if i in done:
            continue
        against = sorted(j for j in rivals.get(i, ()) if j in chosen)
        for j in (i, *(j for j in against if j not in done)):
            others = [k for k in rivals.get(j, ()) if k in chosen]
            cited = tuple(_place(hits[found[k].hit].doc_id, _span(hits, found[k])) for k in sorted(others))
            joins = not others and last >= 0 and found[last].hit == found[j].hit
            if joins and not hits[found[j].hit].text[found[last].end : found[j].start].strip():
                start = pieces.pop().span.start
            else:
                start = _span(hits, found[j]).start
            pieces.append(_piece(hits[found[j].hit], Span(start, _span(hits, found[j]).end), cited))
            last = -1 if others else j
            done.add(j)
    return pieces


def _span(hits: Sequence[Hit], one: _Sentence) -> Span:
    start = hits[one.hit].span.start
    return Span(start + one.start, start + one.end)


def _piece(hit: Hit, span: Span, against: tuple[str, ...]) -> Piece:
    text = hit.text[span.start - hit.span.start : span.end - hit.span.start]
    return Piece(text=text, doc_id=hit.doc_id, span=span, against=against)


def _place(doc_id: str, span: Span) -> str:
    return f"{doc_id}, {span.start}-{span.end}"
