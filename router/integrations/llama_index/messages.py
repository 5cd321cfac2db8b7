"""LlamaIndex chat messages to Shoal's, and Shoal's answers to LlamaIndex's. Refuses what a text model cannot take."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, MessageRole, TextBlock

from ...decision import Answer
from ...errors import InvalidRequest

_ROLES = {
    MessageRole.USER: "user",
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
}


def to_prompt(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Messages as `{"role", "content"}`; raises `InvalidRequest` on tools, images and other parts that are not text."""
    return [{"role": _role(message), "content": _text(message)} for message in messages]


def _role(message: ChatMessage) -> str:
    if message.role not in _ROLES or message.additional_kwargs.get("tool_calls"):
        raise InvalidRequest("this model has no tools: messages with tool calls or results cannot be sent", "messages")
    return _ROLES[message.role]


def _text(message: ChatMessage) -> str:
    for block in message.blocks:
        if not isinstance(block, TextBlock):
            raise InvalidRequest(f"this model reads text only; remove the {block.block_type!r} block", "messages")
    return "".join(block.text for block in message.blocks if isinstance(block, TextBlock))


def metadata_of(answer: Answer) -> dict[str, Any]:
    """`trace` is the one trace (R8), `depth` its depth report, and the token counts under LlamaIndex's names."""
    trace = answer.trace.to_dict()
    return {"finish_reason": answer.finish_reason, "depth": trace["depth"], "trace": trace, **_tokens(answer)}


def _tokens(answer: Answer) -> dict[str, int]:
    read, written = answer.prompt_tokens, answer.completion_tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def completion(text: str, delta: str | None = None, answer: Answer | None = None) -> CompletionResponse:
    """The text so far and its newest piece; with `answer`, also the metadata in `raw`."""
    if answer is None:
        return CompletionResponse(text=text, delta=delta)
    return CompletionResponse(text=text, delta=delta, raw=metadata_of(answer), additional_kwargs=_tokens(answer))


def chat(response: CompletionResponse) -> ChatResponse:
    message = ChatMessage(role=MessageRole.ASSISTANT, content=response.text)
    return ChatResponse(
        message=message, delta=response.delta, raw=response.raw, additional_kwargs=response.additional_kwargs
    )
