"""Passages with questions as token sequences in which many questions share one reading of their passage.

A pack is a tree: the passage is the trunk, each question with its answer a branch that sees the trunk and itself, at
the positions it would have alone. The gradients are those of one sequence per question at a fraction of the tokens.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..tokenizer import ChatTokenizer
from .grounded_sources import Asked, Passage
from .student import Packed

_TOP_WEIGHT = 0.5  # power of an answer's length that divides each of its tokens' weight
_GROUNDED = {
    "en": "Answer the question from the passages only, as briefly as possible. "
    "If the passages do not hold the answer, say that you do not know.",
    "zh": "只根据下面的段落回答问题，尽量简短。如果段落里没有答案，就说不知道。",
}
_LABELS = {"en": ("Passages", "Question"), "zh": ("段落", "问题")}
_NAMES = ("handbook", "guide", "notes", "page", "faq", "report", "article", "manual", "wiki", "doc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One question: `ids` are what is read and the answer, the last `answer` of them; loss weight; depth hint."""

    ids: tuple[int, ...]
    answer: int
    weight: float
    hint: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A trunk that is read once and the branches that go on from it."""

    trunk: tuple[int, ...]
    branches: tuple[Branch, ...]

    @property
    def size(self) -> int:
        return len(self.trunk) + sum(len(branch.ids) for branch in self.branches)


def grounded_prompt(passages: str, question: str, language: str = "en") -> str:
    """The user turn in which the router asks over passages."""
    above, ask = _LABELS[language]
    return f"{_GROUNDED[language]}\n\n{above}:\n{passages}\n\n{ask}: {question}"


def plain_prompt(context: str, question: str) -> str:
    """A user turn with one passage and no instruction."""
    return f"Context: {context}\n\nQuestion: {question}"


def cited(text: str, article: str, draw: random.Random) -> str:
    """`text` with a citation of the form that fused contexts have, under a made-up document name."""
    slug = re.sub(r"\W+", "-", article.lower()).strip("-")[:24] or draw.choice(_NAMES)
    name = draw.choice(
        (slug, f"{slug}.md", f"{draw.choice(_NAMES)}{draw.randrange(1, 99)}", f"{slug}.txt#{draw.randrange(9)}")
    )
    start = draw.choice((0, draw.randrange(0, 4000)))
    return f"[{name}, {start}-{start + len(text)}] {text}"


def pack_passages(
    group: Sequence[Passage],
    tokenizer: ChatTokenizer,
    *,
    plain: bool,
    longest: int,
    end: int,
    total: int,
    draw: random.Random,
) -> Iterator[Pack]:
    """Packs of at most `longest` tokens over a group of passages that are read together. Questions that do not fit the
    first pack begin another, those longer than a pack are left out. `end`: the token after an answer; `total`: layers
    of the model, by which a depth hint weighs its question.
    """
    asked = [(one, passage) for passage in group for one in passage.asked]
    draw.shuffle(asked)
    language = group[0].language
    if not group[0].text:
        prompts = [one.question for one, _ in asked]
    elif plain:
        context = "\n\n".join(passage.text for passage in group)
        prompts = [plain_prompt(context, one.question) for one, _ in asked]
    else:
        context = "\n".join(cited(passage.text, passage.article, draw) for passage in group)
        prompts = [grounded_prompt(context, one.question, language) for one, _ in asked]
    read = [tokenizer.encode_prompt(prompt) for prompt in prompts]
    shared = min(_shared(read), *(len(ids) - 1 for ids in read))
    trunk, branches, size = tuple(read[0][:shared]), list[Branch](), shared
    for ids, (one, passage) in zip(read, asked, strict=True):
        branch = _branch(ids[shared:], one, passage.source, [*tokenizer.encode_text(one.answer), end], total)
        if shared + len(branch.ids) > longest:
            continue
        if branches and size + len(branch.ids) > longest:
            yield Pack(trunk=trunk, branches=tuple(branches))
            branches, size = [], shared
        branches.append(branch)
        size += len(branch.ids)
    if branches:
        yield Pack(trunk=trunk, branches=tuple(branches))


def plain_pack(read: Sequence[int], judged: Sequence[int], source: str) -> Pack:
    """Tokens that are read and those after them, which are learned; no token weighs more than another."""
    branch = Branch(ids=tuple(judged), answer=len(judged), weight=len(judged) ** _TOP_WEIGHT, hint=None, source=source)
    return Pack(trunk=tuple(read), branches=(branch,))


def _shared(read: Sequence[Sequence[int]]) -> int:
    if len(read) == 1:
        return len(read[0])
    return next((at for at, ids in enumerate(zip(*read, strict=False)) if len(set(ids)) > 1), min(map(len, read)))


def _branch(read: Sequence[int], one: Asked, source: str, answer: list[int], total: int) -> Branch:
    weight = 1.0 if one.hint is None else min(one.hint, total) / total
    return Branch(ids=(*read, *answer), answer=len(answer), weight=weight, hint=one.hint, source=source)


def batches(packs: Sequence[Pack], *, tokens: int, sizes: Sequence[int], draw: random.Random) -> list[list[Pack]]:
    """All packs once, in random order: each batch holds packs of about one length, at most `tokens` with padding.

    `sizes`: the lengths that batches are padded to.
    """
    by_size: dict[int, list[Pack]] = {}
    for pack in packs:
        by_size.setdefault(next((size for size in sizes if size >= pack.size), pack.size), []).append(pack)
    found = []
    for size, members in by_size.items():
        draw.shuffle(members)
        step = max(1, tokens // size)
        found += [members[at : at + step] for at in range(0, len(members), step)]
    draw.shuffle(found)
    return found


def packed(packs: Sequence[Pack], *, size: int, dtype: torch.dtype) -> Packed:
    """The packs as tensors, padded to `size`. A token's weight falls with the root of its answer's length."""
    ids, positions = torch.zeros(len(packs), size, dtype=torch.long), torch.zeros(len(packs), size, dtype=torch.long)
    seen = torch.eye(size, dtype=torch.bool).repeat(len(packs), 1, 1)
    judged, targets, weights = list[int](), list[int](), list[float]()
    triangle = torch.ones(size, size, dtype=torch.bool).tril()
    for row, pack in enumerate(packs):
        trunk = len(pack.trunk)
        ids[row, :trunk] = torch.tensor(pack.trunk)
        positions[row, :trunk] = torch.arange(trunk)
        seen[row, :trunk, :trunk] = triangle[:trunk, :trunk]
        at = trunk
        for branch in pack.branches:
            n = len(branch.ids)
            ids[row, at : at + n] = torch.tensor(branch.ids)
            positions[row, at : at + n] = torch.arange(trunk, trunk + n)
            seen[row, at : at + n, :trunk] = True
            seen[row, at : at + n, at : at + n] = triangle[:n, :n]
            first = row * size + at + n - branch.answer - 1
            judged += range(first, first + branch.answer)
            targets += branch.ids[n - branch.answer :]
            weights += [branch.weight * branch.answer**-_TOP_WEIGHT] * branch.answer
            at += n
    late = torch.ones(len(packs) * size, 1, dtype=dtype)
    late[judged] = 0
    mask: Tensor = torch.zeros(len(packs), 1, size, size, dtype=dtype)
    mask.masked_fill_(~seen.unsqueeze(1), float("-inf"))
    return Packed(
        ids=ids,
        positions=positions,
        mask=mask,
        late=late,
        judged=torch.tensor(judged),
        targets=torch.tensor(targets),
        weights=torch.tensor(weights),
    )
