"""Documents longer than the model's context, by segments: each answers for itself, then the answers are combined (G11).

Map and reduce over one model; segments run side by side in its batch. A segment's depth report stays its own. Knows no
retrieval: it reads everything, which is what to do when nothing may be missed.
"""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import PromptError
from .report import Generation, Usage

_PIECE = re.compile(r"(?:[^\n.!?。！？]+(?:[.!?。！？]+|\n+|$))|[\n.!?。！？]+")
_HAN = re.compile(r"[\u4e00-\u9fff]")
_PART = {
    "en": "This is part {n} of {of} of a text:\n\n{text}\n\n{question} Answer from this part only, in a few sentences.",
    "zh": "以下是一篇文章的第{n}部分，共{of}部分：\n\n{text}\n\n{question} 只根据这一部分，用几句话回答。",
}
_JOIN = {
    "en": "These are answers from the parts of one text, in order:\n\n{text}\n\n{question} Give one answer from them.",
    "zh": "以下是一篇文章各部分的回答，按顺序排列：\n\n{text}\n\n{question} 根据它们给出一个回答。",
}
_AT_ONCE = 8  # segments in the model's batch
_LEAST = 32  # tokens of a segment worth a pass

Progress = Callable[[str, float, float], None]


class Model(Protocol):
    """What of `GatedLLM` this needs."""

    @property
    def context(self) -> int: ...

    def count_tokens(self, prompt: str, *, raw: bool = False) -> int: ...

    def generate(self, prompt: str, **settings: Any) -> Generation: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LongAnswer:
    """`text` is the combined answer; `segments` what each part of the document gave, with its own depth report, and
    `rounds` the combining passes, the last of which gave the text. `usage` is the sum of all."""

    text: str
    segments: tuple[Generation, ...]
    rounds: tuple[Generation, ...]

    @property
    def usage(self) -> Usage:
        every = [one.usage for one in (*self.segments, *self.rounds)]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in every),
            completion_tokens=sum(usage.completion_tokens for usage in every),
            layer_tokens=sum(usage.layer_tokens for usage in every),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "text": self.text,
            "segments": [{"text": one.text, "depth": one.depth.to_dict()} for one in self.segments],
            "rounds": [{"text": one.text, "depth": one.depth.to_dict()} for one in self.rounds],
            "layer_tokens": self.usage.layer_tokens,
        }


def read_long(
    llm: Model,
    document: str,
    question: str,
    *,
    max_tokens: int = 96,
    segment_tokens: int | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> LongAnswer:
    """Answers `question` over the whole of `document`, of any length; the other settings are those of `generate`.

    `segment_tokens`: most document tokens in one prompt; default: what the context leaves. Raises PromptError for an
    empty document or question, or a question that leaves no room, and whatever `generate` raises.
    """
    if not document.strip() or not question.strip():
        raise PromptError("The document or the question is empty: give some text for both.")
    language = "zh" if _HAN.search(question) else "en"
    forms = _PART[language], _JOIN[language]
    around = max(llm.count_tokens(form.format(n=999, of=999, text="", question=question)) for form in forms)
    most = llm.context - max_tokens - around - 1
    most = min(most, segment_tokens or most)
    if most < _LEAST:
        raise PromptError(f"The question and max_tokens leave {max(most, 0)} tokens for a segment: shorten them.")

    def ask(form: str, parts: Sequence[str]) -> list[Generation]:
        prompts = [form.format(n=n, of=len(parts), text=part, question=question) for n, part in enumerate(parts, 1)]
        made: list[Generation] = []
        with ThreadPoolExecutor(min(_AT_ONCE, len(prompts))) as pool:
            for one in pool.map(lambda prompt: llm.generate(prompt, max_tokens=max_tokens, **settings), prompts):
                made.append(one)
                if progress is not None:
                    progress("segments read", len(made), len(prompts))
        return made

    segments = ask(forms[0], split(llm, document, most))
    rounds: list[Generation] = []
    answers = segments
    while len(answers) > 1:
        joined = split(llm, "\n\n".join(one.text.strip() for one in answers), most)
        if len(joined) >= len(answers):  # answers that fill a prompt each: two at a time, cut to fit
            half = most // 2
            texts = [split(llm, one.text, half)[0] if one.text.strip() else "" for one in answers]
            joined = ["\n\n".join(texts[i : i + 2]) for i in range(0, len(texts), 2)]
        answers = ask(forms[1], joined)
        rounds += answers
    return LongAnswer(text=answers[0].text, segments=tuple(segments), rounds=tuple(rounds))


def split(llm: Model, text: str, most: int) -> list[str]:
    """`text` in order, in as few parts as sentences allow, none of more than `most` tokens; a sentence longer than that
    is cut. The parts joined are the text."""
    parts, current, size = list[str](), "", 0
    for piece in _pieces(llm, text, most):
        tokens = llm.count_tokens(piece, raw=True) if piece.strip() else len(piece.encode())
        if current and size + tokens > most:
            parts.append(current)
            current, size = "", 0
        current, size = current + piece, size + tokens
    return [*parts, current] if current.strip() or not parts else [*parts[:-1], parts[-1] + current]


def _pieces(llm: Model, text: str, most: int) -> list[str]:
    """Sentences, those of more than `most` tokens halved until they fit."""
    left, pieces = [match.group() for match in _PIECE.finditer(text)][::-1], list[str]()
    while left:
        piece = left.pop()
        if len(piece) > 1 and piece.strip() and len(piece) * 4 > most and llm.count_tokens(piece, raw=True) > most:
            middle = len(piece) // 2
            left += [piece[middle:], piece[:middle]]
        else:
            pieces.append(piece)
    return pieces
