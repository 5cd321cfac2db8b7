"""A Shoal router, or a bare gated model behind one, as a LangChain chat model (I1).

All thinking happens in the router; this file translates. langchain-core reads no cache under `stream()`
(langchain #23701), so the model does it itself, with the same keys as `invoke()`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from operator import itemgetter
from typing import Any, Self, cast

from langchain_core.caches import BaseCache
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel, LanguageModelInput, ModelProfile
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import ConfigDict, Field, model_validator

from ...decision import Answer, CacheControl
from ...errors import InvalidRequest
from ...pipeline import CognitiveRouter
from ..loading import FIELDS, ask_fields, astreamed, checked, router_for, streamed, unpicklable, wrapped
from .messages import cached_chunk, to_chunk, to_generation, to_prompt

_REMOTE_ONLY = ("api_key", "base_url", "max_retries", "timeout")  # standard arguments without use for a local model


class ChatShoal(BaseChatModel):
    """`ChatShoal(model="smollm2-135m", max_depth="auto")`, `ChatShoal(router=my_router)` or `ChatShoal(llm=my_llm)`.

    Every field from `max_depth` to `cache_control` may also be given per call (`invoke(..., max_depth=24)`, `bind`).
    `response_metadata` carries `depth` and `trace`, `usage_metadata` the tokens. The model loads on first use.
    LangChain's standard arguments for remote services (`api_key`, `timeout`, ...) are taken and have no effect;
    any other unknown argument is an error. Raises what the router raises.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

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
    answer_profile: str | None = None
    cache_control: CacheControl | None = None
    streaming: bool = False

    @model_validator(mode="before")
    @classmethod
    def _drop_remote_only(cls, values: Any) -> Any:
        return {k: v for k, v in values.items() if k not in _REMOTE_ONLY} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _wrap_llm(self) -> Self:
        self.router = wrapped(self.router, self.llm, self.model, named="model" in self.model_fields_set)
        self.llm = None  # in the router now
        if self.router is not None:
            self.model = self.router.model_name
        return self

    def __getstate__(self) -> dict[Any, Any]:
        if self.router is not None:
            raise unpicklable(self)
        return super().__getstate__()

    def _router(self, model: str | None = None) -> CognitiveRouter:
        if self.router is None:
            return router_for(model or self.model)
        if model not in (None, self.model):
            raise InvalidRequest(f"this ChatShoal was made around {self.model}; make another for {model!r}", "model")
        return self.router

    async def agenerate(self, *args: Any, **kwargs: Any) -> LLMResult:
        await asyncio.to_thread(self._router)  # loads on first use; langchain-core asks for its fingerprint in the loop
        return await super().agenerate(*args, **kwargs)

    async def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[AIMessageChunk]:
        await asyncio.to_thread(self._router)
        async with aclosing(cast("AsyncGenerator[AIMessageChunk, None]", super().astream(*args, **kwargs))) as chunks:
            async for chunk in chunks:
                yield chunk

    @property
    def _llm_type(self) -> str:
        return "shoal"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """What an answer depends on, fingerprints of model and gates, knowledge base and embedder among it."""
        router = self._router()
        return {
            "model": self.model,
            "fingerprint": router.model_fingerprint,
            "kb": router.kb.fingerprint if router.kb is not None else "",
            **{
                name: value
                for name, value in self._defaults().items()
                if value not in (None, []) and name != "cache_control"
            },
        }

    def _resolve_model_profile(self) -> ModelProfile | None:
        return {"text_inputs": True, "text_outputs": True, "image_inputs": False, "tool_calling": False}

    def _defaults(self) -> dict[str, Any]:
        """This model's own request fields. In LangChain `profile` means what a model can do, hence `answer_profile`."""
        return {name: getattr(self, "answer_profile" if name == "profile" else name) for name in FIELDS}

    def _request(self, stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments of `router.ask` for one call; raises `InvalidRequest` on arguments nobody knows."""
        for own in ("stream", "ls_structured_output_format"):  # langchain-core's own
            kwargs.pop(own, None)
        held = {"schema": schema} if (schema := kwargs.pop("schema", None)) is not None else {}
        if kwargs.pop("tools", None):
            raise NotImplementedError(_NO_TOOLS)
        if "answer_profile" in kwargs:
            kwargs["profile"] = kwargs.pop("answer_profile")
        return {**ask_fields({**self._defaults(), **kwargs, "stop": stop or self.stop}), **held}

    def _result(self, answer: Answer, router: CognitiveRouter) -> ChatResult:
        return ChatResult(generations=[to_generation(answer, router.model_name)])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        router = self._router(kwargs.pop("model", None))
        return self._result(router.ask(to_prompt(messages), **self._request(stop, kwargs)), router)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        router = self._router(kwargs.pop("model", None))
        return self._result(await router.aask(to_prompt(messages), **self._request(stop, kwargs)), router)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        """Chunks as they are made. When the consumer stops, generation stops at the next token."""
        cache, prompt, model = self._cache_place(messages, stop, kwargs)
        if cache is not None and (hit := cache.lookup(prompt, model)):
            yield cached_chunk(self._convert_cached_generations(list(hit))[0])
            return
        router = self._router(kwargs.pop("model", None))
        with streamed(router, to_prompt(messages), self._request(stop, kwargs)) as pieces:
            for piece in pieces:
                if piece.answer is not None and cache is not None and piece.answer.finish_reason == "stop":
                    cache.update(prompt, model, self._result(piece.answer, router).generations)
                yield to_chunk(piece, router.model_name)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        """As `_stream`; the model runs in a thread and the event loop never waits for it."""
        cache, prompt, model = self._cache_place(messages, stop, kwargs)
        if cache is not None and (hit := await cache.alookup(prompt, model)):
            yield cached_chunk(self._convert_cached_generations(list(hit))[0])
            return
        router = self._router(kwargs.pop("model", None))
        async with astreamed(router, to_prompt(messages), self._request(stop, kwargs)) as pieces:
            async for piece in pieces:
                if piece.answer is not None and cache is not None and piece.answer.finish_reason == "stop":
                    await cache.aupdate(prompt, model, self._result(piece.answer, router).generations)
                yield to_chunk(piece, router.model_name)

    def _cache_place(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> tuple[BaseCache | None, str, str]:
        """LangChain's cache for this call and the key `invoke()` would use."""
        cache = self.cache if isinstance(self.cache, BaseCache) else get_llm_cache()
        if cache is None or self.cache is False:
            return None, "", ""
        prompt = dumps([m.model_copy(update={"id": None}) if m.id is not None else m for m in messages])
        return cache, prompt, self._get_llm_string(stop=stop, **kwargs)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Always raises: the engine calls no tools, and leaving them out in silence would be worse."""
        raise NotImplementedError(_NO_TOOLS)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """Answers held to `schema` token by token: a pydantic class gives instances, a TypedDict or JSON schema dicts.

        `include_raw` gives `raw`, `parsed` and `parsing_error`, as when `max_tokens` cut the answer off.

        LangChain's `method` and `strict` make no difference. Raises `ValueError` for what is no schema,
        `InvalidRequest` for arguments nobody knows.
        """
        if unknown := sorted(set(kwargs) - {"method", "strict"}):
            raise InvalidRequest(f"unknown argument {', '.join(unknown)}; known are method, strict", unknown[0])
        form = convert_to_json_schema(schema)
        parser: Runnable[Any, Any] = JsonOutputParser()
        if isinstance(schema, type) and is_basemodel_subclass(schema):
            parser = PydanticOutputParser(pydantic_object=schema)
        format_ = {"kwargs": {"method": "json_schema"}, "schema": form}
        chat = self.bind(schema=form, ls_structured_output_format=format_)
        if not include_raw:
            return chat | parser
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=chat) | parsed.with_fallbacks([failed], exception_key="parsing_error")

    def get_num_tokens(self, text: str) -> int:
        """Tokens that the model would read for this text as one user turn."""
        router = self._router()
        model = router.llm or router.remote
        return model.count_tokens(text) if model is not None else super().get_num_tokens(text)

    def get_token_ids(self, text: str) -> list[int]:
        """By `custom_get_token_ids` alone: langchain-core would fetch the tokenizer of another model (GPT-2)."""
        if self.custom_get_token_ids is None:
            raise NotImplementedError("a router has no token ids: use get_num_tokens, or set custom_get_token_ids")
        return super().get_token_ids(text)


_NO_TOOLS = (
    "ChatShoal calls no tools. Route first and call the tool from your own code, "
    "or give the router a chat model that has tools as its deep path"
)


def as_runnable(router: CognitiveRouter, **fields: Any) -> ChatShoal:
    """The whole router as a Runnable: text, messages or a prompt value in, `AIMessage` with the trace out."""
    return ChatShoal(router=checked(router), max_depth=fields.pop("max_depth", None), **fields)
