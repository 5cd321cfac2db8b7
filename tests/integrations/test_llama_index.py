"""LlamaIndex: answers with sources and trace, events in order, hashes untouched by scores."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.query_engine import RetrieverQueryEngine, RouterQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import QueryEngineTool

from shoal import CognitiveRouter, KnowledgeBase
from shoal.router.decision import CacheControl
from shoal.router.errors import InvalidRequest
from shoal.router.integrations.llama_index import (
    DepthNode,
    DepthPostprocessor,
    KnowledgeBaseRetriever,
    RouterSelector,
    ShoalEmbedding,
    ShoalLLM,
    ShoalQueryEngine,
)
from shoal.router.integrations.ranking import Ranker

QUESTION = "How much does a library card cost?"
ASK = "Write a short rhyme about a harbour."
FRESH = CacheControl(read=False, write=False)


class Recorder(BaseEventHandler):
    names: list[str] = Field(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "Recorder"

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.names.append(event.class_name())


@pytest.fixture
def events() -> Iterator[list[str]]:
    recorder = Recorder(names=[])
    root = get_dispatcher()
    root.add_event_handler(recorder)
    yield recorder.names
    root.event_handlers.remove(recorder)


def test_an_answer_has_sources_and_the_trace(router: CognitiveRouter) -> None:
    response = ShoalQueryEngine(router).query(QUESTION)
    assert response.metadata is not None
    assert response.metadata["trace"]["route"] in {"extract", "rag"}
    assert response.metadata["depth"] == response.metadata["trace"]["depth"]
    source = response.source_nodes[0]
    assert source.node.ref_doc_id == "cards.md"
    assert "five euros" in source.text


async def test_async_and_streaming_engines(router: CognitiveRouter) -> None:
    fresh = {"cache_control": FRESH}
    plain = await ShoalQueryEngine(router, **fresh).aquery(ASK)
    stream = ShoalQueryEngine(router, streaming=True, **fresh).query(ASK)
    astream = await ShoalQueryEngine(router, streaming=True, **fresh).aquery(ASK)
    assert isinstance(stream, StreamingResponse)
    assert isinstance(astream, AsyncStreamingResponse)
    texts = [str(plain), "".join(stream.response_gen), "".join([t async for t in astream.response_gen])]
    assert texts == ["It is forty two."] * 3
    assert stream.metadata is not None
    assert stream.metadata["trace"].keys() == plain.metadata["trace"].keys()  # type: ignore[index]
    streamed = ShoalQueryEngine(router, streaming=True).query(QUESTION)
    assert str(streamed)
    assert streamed.source_nodes[0].node.ref_doc_id == "cards.md"


async def test_a_dropped_stream_stops_the_model(script: Any) -> None:
    llm, router = script("word " * 2000, pause_s=0.01)
    response = await ShoalQueryEngine(router, streaming=True).aquery(ASK)
    stream = response.response_gen  # type: ignore[union-attr]
    async for _ in stream:
        break
    await stream.aclose()
    await asyncio.sleep(0.2)
    made = llm.made
    await asyncio.sleep(0.2)
    assert llm.made == made < 100


def test_unknown_arguments_are_refused(router: CognitiveRouter) -> None:
    with pytest.raises(InvalidRequest, match="max_dept"):
        ShoalQueryEngine(router, max_dept=3)
    with pytest.raises(InvalidRequest, match="max_dept"):
        ShoalLLM(router=router).complete(ASK, max_dept=3)


def test_the_engines_events(router: CognitiveRouter, events: list[str]) -> None:
    ShoalQueryEngine(router).query(QUESTION)
    assert events == ["QueryStartEvent", "QueryEndEvent"]


def test_events_of_a_composed_engine_come_in_order(
    router: CognitiveRouter, kb: KnowledgeBase, events: list[str]
) -> None:
    engine = RetrieverQueryEngine(
        KnowledgeBaseRetriever(kb, k=4),
        get_response_synthesizer(llm=ShoalLLM(router=router)),
        [DepthPostprocessor(top_n=2)],
    )
    response = engine.query(QUESTION)
    order = [
        "QueryStartEvent", "RetrievalStartEvent", "RetrievalEndEvent", "ReRankStartEvent", "ReRankEndEvent",
        "SynthesizeStartEvent", "GetResponseStartEvent", "LLMPredictStartEvent", "LLMChatStartEvent", "LLMChatEndEvent",
        "LLMPredictEndEvent", "GetResponseEndEvent", "SynthesizeEndEvent", "QueryEndEvent",
    ]  # fmt: skip
    assert [name for name in events if name in order] == order
    assert response.source_nodes[0].node.ref_doc_id == "cards.md"


async def test_events_come_in_order_when_async(router: CognitiveRouter, kb: KnowledgeBase, events: list[str]) -> None:
    engine = RetrieverQueryEngine(
        KnowledgeBaseRetriever(kb, k=4),
        get_response_synthesizer(llm=ShoalLLM(router=router), use_async=True),
        [DepthPostprocessor(top_n=2)],
    )
    await engine.aquery(QUESTION)
    order = ["QueryStartEvent", "RetrievalEndEvent", "ReRankStartEvent", "ReRankEndEvent", "SynthesizeStartEvent"]
    assert [name for name in events if name in order] == order
    assert events[-1] == "QueryEndEvent"


def nodes() -> list[NodeWithScore]:
    texts = [
        "Bananas are rich in potassium.",
        "A library card costs five euros a year.",
        "The third floor seats forty.",
    ]
    return [
        NodeWithScore(node=TextNode(id_=f"n{i}", text=t, metadata={"page": i}), score=0.5) for i, t in enumerate(texts)
    ]


def test_scores_change_neither_hash_nor_embedded_text() -> None:
    given = nodes()
    hashes = {n.node_id: n.node.hash for n in given}
    texts = {n.node_id: n.node.get_content(MetadataMode.EMBED) for n in given}
    kept = DepthPostprocessor(top_n=3, min_score=0).postprocess_nodes(given, query_str=QUESTION)
    assert {n.node_id: n.node.hash for n in kept} == hashes
    assert {n.node_id: n.node.get_content(MetadataMode.EMBED) for n in kept} == texts
    assert [n.score for n in given] == [0.5] * 3


def test_postprocessor_orders_keeps_scores_and_never_empties() -> None:
    best, *_ = DepthPostprocessor().postprocess_nodes(nodes(), query_str=QUESTION)
    assert best.node_id == "n1"
    assert len(DepthPostprocessor(min_score=1.0).postprocess_nodes(nodes(), query_str="zebra")) == 1
    assert DepthPostprocessor().postprocess_nodes([], query_str=QUESTION) == []
    probed = DepthPostprocessor(ranker=Ranker(depth_probe=lambda question, hits: [0.25] * len(hits)))
    first = probed.postprocess_nodes(nodes(), query_str=QUESTION)[0]
    assert isinstance(first, DepthNode)
    assert first.depth_score == 0.25
    with pytest.raises(ValueError, match="query_str"):
        DepthPostprocessor().postprocess_nodes(nodes())


async def test_retriever_sync_and_async(kb: KnowledgeBase) -> None:
    retriever = KnowledgeBaseRetriever(kb, k=2)
    found, again = retriever.retrieve(QUESTION), await retriever.aretrieve(QUESTION)
    assert [n.node_id for n in found] == [n.node_id for n in again]
    assert found[0].node.ref_doc_id == "cards.md"
    assert found[0].node.metadata == {}
    node = found[0].node
    assert isinstance(node, TextNode)
    source = kb.document("cards.md")
    assert source is not None
    assert source.text[node.start_char_idx : node.end_char_idx] == node.text


async def test_llm_completes_chats_and_streams_both_ways(plain: CognitiveRouter) -> None:
    llm = ShoalLLM(router=plain, max_depth=24, cache_control=FRESH)
    messages = [ChatMessage(role=MessageRole.SYSTEM, content="Be brief."), ChatMessage(content=ASK)]
    whole = llm.complete(ASK)
    assert whole.text == "It is forty two."
    assert whole.raw["depth"]["max"] == 24
    assert whole.additional_kwargs["completion_tokens"] == 4
    assert (
        (await llm.acomplete(ASK)).text
        == llm.chat(messages).message.content
        == (await llm.achat(messages)).message.content
    )
    pieces = list(llm.stream_complete(ASK))
    assert "".join(p.delta or "" for p in pieces) == pieces[-1].text == whole.text
    assert pieces[-1].raw["trace"]["depth"]["max"] == 24
    assert [p.text async for p in await llm.astream_complete(ASK)][-1] == whole.text
    assert list(llm.stream_chat(messages))[-1].message.content == whole.text
    assert [p.message.content async for p in await llm.astream_chat(messages)][-1] == whole.text


def test_llm_sends_the_turns_as_they_are(scripted: Any, plain: CognitiveRouter) -> None:
    messages = [
        ChatMessage(role=MessageRole.DEVELOPER, content="Be brief."),
        ChatMessage(role=MessageRole.ASSISTANT, content="Yes?"),
        ChatMessage(content=ASK),
    ]
    ShoalLLM(router=plain).chat(messages)
    assert [turn["role"] for turn in scripted.prompts[-1]] == ["system", "assistant", "user"]


def test_llm_refuses_what_it_cannot_read(plain: CognitiveRouter) -> None:
    llm = ShoalLLM(router=plain)
    with pytest.raises(InvalidRequest, match="text only"):
        llm.chat([ChatMessage(blocks=[ImageBlock(url="https://x.example/a.png")])])
    with pytest.raises(InvalidRequest, match="tool"):
        llm.chat([ChatMessage(role=MessageRole.TOOL, content="3")])


def test_llm_tells_what_it_is(plain: CognitiveRouter) -> None:
    known = ShoalLLM(router=plain, max_tokens=99).metadata
    assert (known.model_name, known.context_window, known.num_output) == ("scripted", 2048, 99)
    assert known.is_chat_model
    assert not known.is_function_calling_model


async def test_selector_picks_an_engine_by_route(router: CognitiveRouter) -> None:
    engine = ShoalQueryEngine(router)
    tools = [
        QueryEngineTool.from_defaults(engine, name="docs", description="Passages of the handbook."),
        QueryEngineTool.from_defaults(engine, name="expert", description="Hard questions."),
    ]
    selector = RouterSelector(router, tools={"deep": "expert", "rag": "docs", "faq": "docs", "extract": "docs"})
    hard = "A farm has 17 hens. Each hen lays 5 eggs a week and a goat eats 2. How many eggs are left in 3 weeks?"
    assert selector.select([t.metadata for t in tools], hard).ind == 1
    picked = await selector.aselect([t.metadata for t in tools], QueryBundle(QUESTION))
    assert picked.ind == 0
    assert "route" in picked.reason
    routed = RouterQueryEngine(selector, tools, llm=ShoalLLM(router=router)).query(QUESTION)
    assert routed.metadata is not None
    assert routed.metadata["selector_result"].ind == 0


async def test_embedding() -> None:
    embed = ShoalEmbedding()
    one = embed.get_text_embedding("Where is the library?")
    assert len(one) == 512
    assert embed.similarity(one, await embed.aget_query_embedding("图书馆在哪里？")) > 0.5
    assert embed.get_text_embedding_batch(["a", "b", "c"])[2] == pytest.approx(
        await embed.aget_text_embedding("c"), abs=1e-5
    )
    assert "universal" in embed.model_name or embed.model_name.startswith("use-")
