"""OpenTelemetry spans in its GenAI conventions (S3): the one place that knows their names, and the only importer.

Without the library or a configured provider nothing happens. Text of a request or an answer is recorded only when the
service is told to.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .decision import Answer, Request


@contextmanager
def span(model: str, request: Request, *, text: bool = False) -> Iterator[Callable[[Answer], None]]:
    """A span around one answer; yields what takes the answer when it is there. `text`: with both sides' words."""
    if (tracer := _tracer()) is None:
        yield lambda answer: None
        return
    with tracer.start_as_current_span(
        f"chat {model}", attributes=_asked(request, model, text), record_exception=False, set_status_on_exception=False
    ) as kept:
        try:
            yield lambda answer: kept.set_attributes(_answered(answer, model, text))
        except Exception as error:
            kept.set_attributes({"error.type": type(error).__name__})  # its message may quote the request
            raise


def _asked(request: Request, model: str, text: bool) -> dict[str, Any]:
    found = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "shoal",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.seed": request.seed,
        "gen_ai.output.type": "json" if request.schema is not None else "text",
    }
    if text:
        found["gen_ai.input.messages"] = _messages([(each.role, each.content) for each in request.messages])
    return {name: value for name, value in found.items() if value is not None}


def _answered(answer: Answer, model: str, text: bool) -> dict[str, Any]:
    found = {
        "gen_ai.response.id": answer.trace.id,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": (answer.finish_reason,),
        "gen_ai.usage.input_tokens": answer.prompt_tokens,
        "gen_ai.usage.output_tokens": answer.completion_tokens,
        "shoal.route": answer.route.value,
        "shoal.cache.tier": answer.trace.tier or "miss",
        "shoal.depth.max": float(answer.trace.depth["max"]),
        "shoal.layer_tokens": float(answer.trace.layer_tokens),
    }
    if text:
        found["gen_ai.output.messages"] = _messages([("assistant", answer.text)], finish=answer.finish_reason)
    return found


def _messages(turns: list[tuple[str, str]], **more: str) -> str:
    parts = [{"role": role, "parts": [{"type": "text", "content": words}]} for role, words in turns]
    if more:
        parts[-1]["finish_reason"] = more["finish"]
    return json.dumps(parts, ensure_ascii=False)


def _tracer() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("shoal")
