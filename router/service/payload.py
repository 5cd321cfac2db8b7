"""Answers as OpenAI's JSON and as response headers. Pure: plain data in, plain data out."""

import time
from collections.abc import Sequence
from typing import Any

from ..decision import Answer, Piece
from ..deep import layers_of
from ..probe import probed

FINISH = {"cancelled": "stop"}


def headers(answer: Answer) -> dict[str, str]:
    """`X-Compute-Depth: 24/30`, `X-Route`, `X-Cache`, the layer statistics in short (G6), and probed layers (G12)."""
    tier = answer.trace.tier
    return {
        "X-Compute-Depth": layers_of(answer.trace.depth),
        "X-Route": answer.route.value,
        "X-Cache": f"hit-{tier}" if tier else "miss",
        "X-Layer-Stats": layer_stats(answer),
        **{f"X-Layer-{layer}-Status": status for layer, status in probed(answer.trace).items()},
    }


def layer_stats(answer: Answer) -> str:
    """Compact, of bounded length: `mean=21.5;prefill=30;budget=24;tokens=812.0;pruned=3,9-12`."""
    depth = answer.trace.depth
    pruned = [int(n.removeprefix("layer_")) for n, state in depth.get("layers", {}).items() if state == "pruned"]
    stats = {
        "mean": f"{depth.get('mean', 0.0):.1f}",
        "prefill": f"{depth.get('prefill', 0.0):g}",
        "budget": f"{answer.trace.decision.budget:g}",
        "tokens": f"{answer.trace.layer_tokens:.1f}",
        "pruned": ranges(pruned) or "none",
    }
    return ";".join(f"{name}={value}" for name, value in stats.items())[:500]


def ranges(numbers: list[int]) -> str:
    """`[3, 9, 10, 11]` as `3,9-11`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Tokens of all answers to one request, whose prompt counts once, as with OpenAI."""
    prompt, made = answers[0].prompt_tokens, sum(answer.completion_tokens for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


class Shape:
    """The JSON of one request's answer: chat or plain completion, whole or in chunks."""

    def __init__(self, *, chat: bool, request_id: str, model: str, total: int) -> None:
        self._chat, self._model, self._total = chat, model, total
        self._id = ("chatcmpl-" if chat else "cmpl-") + request_id.removeprefix("req-")
        self._created = int(time.time())
        self._kind = "chat.completion" if chat else "text_completion"

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The answers as choices; `shoal` is the first one's trace."""
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        frame = self._frame(self._kind, choices)
        return {**frame, "usage": usage(answers), "shoal": answers[0].trace.to_dict()}

    def chunk(self, piece: Piece, *, first: bool, index: int = 0) -> dict[str, Any]:
        choice = self._choice(index, piece.text, role=first)
        return {**self._part([choice]), "shoal": {"depth": {"max": piece.depth, "total": self._total}}}

    def last(self, answer: Answer, index: int = 0) -> dict[str, Any]:
        choice = self._choice(index, "", finish=FINISH.get(answer.finish_reason, answer.finish_reason))
        return {**self._part([choice]), "shoal": answer.trace.to_dict()}

    def usage_chunk(self, answers: Sequence[Answer]) -> dict[str, Any]:
        return {**self._part([]), "usage": usage(answers), "shoal": answers[0].trace.to_dict()}

    def _whole_choice(self, index: int, answer: Answer) -> dict[str, Any]:
        reason = FINISH.get(answer.finish_reason, answer.finish_reason)
        content: dict[str, Any] = {"text": answer.text}
        if self._chat:
            content = {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
        return {"index": index, **content, "finish_reason": reason, "logprobs": None}

    def _choice(self, index: int, text: str, *, role: bool = False, finish: str | None = None) -> dict[str, Any]:
        if not self._chat:
            return {"index": index, "text": text, "finish_reason": finish, "logprobs": None}
        delta: dict[str, Any] = {"role": "assistant"} if role else {}
        if finish is None:
            delta["content"] = text
        return {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}

    def _part(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._frame("chat.completion.chunk" if self._chat else "text_completion", choices)

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "system_fingerprint": None,
        }
