"""LangChain messages to Shoal's, and Shoal's answers to LangChain's. Refuses what a text model cannot take."""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk

from ...decision import Answer, Piece
from ...errors import InvalidRequest

_ROLES = ((HumanMessage, "user"), (AIMessage, "assistant"), (SystemMessage, "system"))  # chunks of them among them
_REASON = ("finish_reason", "stop_reason", "stopReason", "done_reason")  # OpenAI, Google; Anthropic; Bedrock; Ollama
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
_WITHHELD = frozenset(
    {"content_filter", "content_filtered", "refusal", "safety", "recitation", "blocklist", "prohibited_content", "spii",
     "guardrail_intervened"}
)  # fmt: skip


def to_prompt(messages: Sequence[BaseMessage]) -> list[dict[str, str]]:
    """Messages as `{"role", "content"}`; raises `InvalidRequest` on tools, images and other parts that are not text."""
    return [{"role": _role(message), "content": _text(message)} for message in messages]


def _role(message: BaseMessage) -> str:
    if isinstance(message, ToolMessage) or (isinstance(message, AIMessage) and message.tool_calls):
        raise InvalidRequest("this model has no tools: messages with tool calls or results cannot be sent", "messages")
    if isinstance(message, ChatMessage):
        return message.role
    for kind, role in _ROLES:
        if isinstance(message, kind):
            return role
    raise InvalidRequest(f"messages of type {message.type!r} cannot be sent to this model", "messages")


def _text(message: BaseMessage) -> str:
    blocks = [message.content] if isinstance(message.content, str) else message.content
    for block in blocks:
        if isinstance(block, dict) and block.get("type") != "text":
            raise InvalidRequest(f"this model reads text only; remove the {block.get('type')!r} block", "messages")
        if isinstance(block, dict) and not isinstance(block.get("text"), str):
            raise InvalidRequest("a text block needs its text, under the key 'text'", "messages")
    return "".join(block if isinstance(block, str) else block["text"] for block in blocks)


def finish_reason(told: Mapping[str, Any]) -> str:
    """How an answer ended, from any vendor's `response_metadata`: "stop", "length", "content_filter", or "cancelled"
    and "error" where it says so."""
    reason = next((str(told[name]).lower() for name in _REASON if told.get(name)), "stop")
    if reason in ("cancelled", "error"):
        return reason
    return "length" if reason in _CUT else "content_filter" if reason in _WITHHELD else "stop"


def _usage(answer: Answer) -> UsageMetadata:
    read, written = answer.prompt_tokens, answer.completion_tokens
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)


def _metadata(answer: Answer, model: str) -> dict[str, object]:
    """`trace` is the one trace (R8); `depth` its depth report, at hand."""
    trace = answer.trace.to_dict()
    return {"model_name": model, "finish_reason": answer.finish_reason, "depth": trace["depth"], "trace": trace}


def to_generation(answer: Answer, model: str) -> ChatGeneration:
    message = AIMessage(content=answer.text, response_metadata=_metadata(answer, model), usage_metadata=_usage(answer))
    return ChatGeneration(message=message)


def to_chunk(piece: Piece, model: str) -> ChatGenerationChunk:
    """One streamed piece. `additional_kwargs["depth"]` lists the deepest token so far, one entry a chunk (G6)."""
    message = AIMessageChunk(content=piece.text, additional_kwargs={"depth": [piece.depth]})
    if piece.answer is not None:
        message.response_metadata = _metadata(piece.answer, model)
        message.usage_metadata = _usage(piece.answer)
        message.chunk_position = "last"
    return ChatGenerationChunk(message=message)


def cached_chunk(generation: ChatGeneration) -> ChatGenerationChunk:
    """A whole answer out of a cache as the one chunk of a stream."""
    kept = generation.message
    message = AIMessageChunk(
        content=kept.content,
        additional_kwargs=kept.additional_kwargs,
        response_metadata=kept.response_metadata,
        usage_metadata=kept.usage_metadata if isinstance(kept, AIMessage) else None,
        chunk_position="last",
    )
    return ChatGenerationChunk(message=message)
