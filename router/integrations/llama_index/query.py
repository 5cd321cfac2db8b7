"""The router as a LlamaIndex query engine, and as the selector of a `RouterQueryEngine` (I2).

Source nodes are the passages that the trace says were kept. Events: the base class's query start and end, since the
router retrieves and answers in one go; a `RetrieverQueryEngine` over this package's retriever and LLM shows each step.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.tools.types import ToolMetadata
from llama_index.core.types import TokenAsyncGen, TokenGen

from ...decision import Answer, Decision
from ...pipeline import CognitiveRouter
from ..loading import ask_fields, astreamed, checked, choose, routes_of, streamed
from .messages import metadata_of
from .retrieval import node_of


class ShoalQueryEngine(BaseQueryEngine):
    """`ShoalQueryEngine(router).query("...")`: `response.source_nodes`, `response.metadata["trace"]`.

    `streaming=True` gives a `StreamingResponse`; its sources and metadata fill when the stream has ended, and dropping
    the stream stops the model. Other keyword arguments are those of `router.ask` (`tenant`, `max_depth`, ...).
    """

    def __init__(
        self,
        router: CognitiveRouter,
        *,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(callback_manager)
        self.router, self._streaming, self._fields = checked(router), streaming, ask_fields(fields)

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        if self._streaming:
            nodes, metadata = list[NodeWithScore](), dict[str, Any]()
            return StreamingResponse(self._stream(query_bundle.query_str, nodes, metadata), nodes, metadata)
        return _respond(self.router.ask(query_bundle.query_str, **self._fields))

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        if self._streaming:
            nodes, metadata = list[NodeWithScore](), dict[str, Any]()
            return AsyncStreamingResponse(self._astream(query_bundle.query_str, nodes, metadata), nodes, metadata)
        return _respond(await self.router.aask(query_bundle.query_str, **self._fields))

    def _stream(self, question: str, nodes: list[NodeWithScore], metadata: dict[str, Any]) -> TokenGen:
        with streamed(self.router, question, self._fields) as pieces:
            for piece in pieces:
                _fill(piece.answer, nodes, metadata)
                yield piece.text

    async def _astream(self, question: str, nodes: list[NodeWithScore], metadata: dict[str, Any]) -> TokenAsyncGen:
        async with astreamed(self.router, question, self._fields) as pieces:
            async for piece in pieces:
                _fill(piece.answer, nodes, metadata)
                yield piece.text


def _respond(answer: Answer) -> Response:
    return Response(answer.text, [node_of(passage) for passage in answer.trace.kept], metadata_of(answer))


def _fill(answer: Answer | None, nodes: list[NodeWithScore], metadata: dict[str, Any]) -> None:
    if answer is not None:
        nodes.extend(node_of(passage) for passage in answer.trace.kept)
        metadata.update(metadata_of(answer))


class RouterSelector(BaseSelector):
    """Picks one engine of a `RouterQueryEngine` by the router's decision, without a call to any model.

    `tools` maps routes to tool names (`{"faq": "faq", "rag": "docs", "deep": "expert"}`); without it a tool named like
    the route is taken, else the tools are read as ordered from least to most thinking. Raises `InvalidRequest` for
    routes that do not exist, and when choosing for a tool that is not among the choices.
    """

    def __init__(self, router: CognitiveRouter, *, tools: Mapping[str, str] | None = None) -> None:
        self.router, self._tools = checked(router), routes_of(tools)

    def _get_prompts(self) -> PromptDictType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        """It has none."""

    def _select(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        return self._pick(self.router.decide(query.query_str), choices)

    async def _aselect(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        return self._pick(await asyncio.to_thread(self.router.decide, query.query_str), choices)

    def _pick(self, decision: Decision, choices: Sequence[ToolMetadata]) -> SelectorResult:
        names = [choice.name or choice.description for choice in choices]
        reason = f"route {decision.route.value}: {'; '.join(decision.reasons)}"
        return SelectorResult(selections=[SingleSelection(index=choose(decision, names, self._tools), reason=reason)])
