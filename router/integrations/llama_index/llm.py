"""A Shoal router, or a bare gated model behind one, as a LlamaIndex LLM (I2), with chat, streaming and real async.

All thinking happens in the router; this file translates.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Self

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import ConfigDict, Field, model_validator
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.custom import CustomLLM

from ...decision import CacheControl
from ...pipeline import CognitiveRouter
from ..loading import FIELDS, ask_fields, astreamed, router_for, streamed, unpicklable, wrapped
from .messages import chat, completion, to_prompt

Prompt = str | list[dict[str, str]]


class ShoalLLM(CustomLLM):
    """`ShoalLLM(model="smollm2-135m", max_depth="auto")`, or `ShoalLLM(router=my_router)`, or `ShoalLLM(llm=my_llm)`.

    Every field from `max_depth` on may also be given per call. `response.raw` carries `depth` and `trace`.
    The model loads on first use. Raises what the router raises, and `InvalidRequest` on arguments nobody knows.
    """

    model_config = ConfigDict(extra="forbid")

    model: str = "smollm2-135m"
    llm: Any = Field(default=None, exclude=True, repr=False)
    router: CognitiveRouter | None = Field(default=None, exclude=True, repr=False)
    max_depth: int | str | None = "auto"
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    tenant: str | None = None
    profile: str | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_class_name(cls, values: Any) -> Any:
        """What `model_dump` adds."""
        return {k: v for k, v in values.items() if k != "class_name"} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _wrap_llm(self) -> Self:
        self.router = wrapped(self.router, self.llm, self.model, named="model" in self.model_fields_set)
        self.llm = None  # in the router now
        if self.router is not None:
            self.model = self.router.model_name
        return self

    def __getstate__(self) -> dict[str, Any]:
        if self.router is not None:  # LlamaIndex would leave it out, of this object too
            raise unpicklable(self)
        return super().__getstate__()

    @classmethod
    def class_name(cls) -> str:
        return "ShoalLLM"

    @property
    def metadata(self) -> LLMMetadata:
        router = self._router()
        known = LLMMetadata(model_name=router.model_name, is_chat_model=True)
        if router.llm is not None:
            known.context_window = router.llm.context
        if self.max_tokens is not None:
            known.num_output = self.max_tokens
        return known

    def to_payload(self) -> dict[str, Any]:
        """What events carry. LlamaIndex asks for it in the event loop, so it loads no model."""
        return {"class_name": self.class_name(), "model_name": self.model, "is_chat_model": True}

    def _router(self) -> CognitiveRouter:
        return self.router or router_for(self.model)

    def _fields(self, given: dict[str, Any]) -> dict[str, Any]:
        return ask_fields({**{name: getattr(self, name) for name in FIELDS}, **given})

    def _ask(self, prompt: Prompt, given: dict[str, Any]) -> CompletionResponse:
        answer = self._router().ask(prompt, **self._fields(given))
        return completion(answer.text, answer=answer)

    async def _aask(self, prompt: Prompt, given: dict[str, Any]) -> CompletionResponse:
        router = await asyncio.to_thread(self._router)  # loads on first use
        answer = await router.aask(prompt, **self._fields(given))
        return completion(answer.text, answer=answer)

    def _stream(self, prompt: Prompt, given: dict[str, Any]) -> CompletionResponseGen:
        text = ""
        with streamed(self._router(), prompt, self._fields(given)) as pieces:
            for piece in pieces:
                text += piece.text
                yield completion(text, piece.text, piece.answer)

    async def _astream(self, prompt: Prompt, given: dict[str, Any]) -> CompletionResponseAsyncGen:
        text = ""
        router = await asyncio.to_thread(self._router)
        async with astreamed(router, prompt, self._fields(given)) as pieces:
            async for piece in pieces:
                text += piece.text
                yield completion(text, piece.text, piece.answer)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return self._ask(prompt, kwargs)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return await self._aask(prompt, kwargs)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return self._stream(prompt, kwargs)

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        return self._astream(prompt, kwargs)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return chat(self._ask(to_prompt(messages), kwargs))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return chat(await self._aask(to_prompt(messages), kwargs))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        return (chat(response) for response in self._stream(to_prompt(messages), kwargs))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return self._astream_chat(to_prompt(messages), kwargs)

    async def _astream_chat(self, prompt: Prompt, given: dict[str, Any]) -> ChatResponseAsyncGen:
        async with aclosing(self._astream(prompt, given)) as responses:
            async for response in responses:
                yield chat(response)
