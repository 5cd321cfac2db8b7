"""What adapters are given by mistake: told at once, never taken in silence and dropped."""

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage, HumanMessageChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import ConfigurableField
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools.types import ToolMetadata

from shoal import CognitiveRouter, DepthCache, KnowledgeBase, default_embedder
from shoal.rag.errors import RagError
from shoal.router.errors import InvalidRequest
from shoal.router.integrations import langchain as lc
from shoal.router.integrations import llama_index as li
from shoal.router.integrations import loading

TOOLS = [ToolMetadata(name="cheap", description="quick"), ToolMetadata(name="dear", description="slow")]


@pytest.fixture
def router(script: Any) -> CognitiveRouter:
    made: CognitiveRouter = script("It is forty two.")[1]
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda router, kb: li.ShoalLLM(router=router, bogus=1),
        lambda router, kb: li.ShoalQueryEngine(router, bogus=1),
        lambda router, kb: li.DepthPostprocessor(bogus=1),
        lambda router, kb: li.ShoalEmbedding(bogus=1),
        lambda router, kb: lc.ChatShoal(router=router, bogus=1),
        lambda router, kb: lc.ChatShoal(router=router).with_structured_output({"title": "x"}, bogus=1),
        lambda router, kb: lc.as_runnable(router, bogus=1),
        lambda router, kb: lc.DepthCompressor(bogus=1),
        lambda router, kb: lc.KnowledgeBaseRetriever(kb=kb, bogus={"k": 2}),
        lambda router, kb: lc.RouterDecisions(router=router, bogus=1),
    ],
)
def test_an_argument_nobody_knows_is_named(
    router: CognitiveRouter, kb: KnowledgeBase, make: Callable[[CognitiveRouter, KnowledgeBase], Any]
) -> None:
    with pytest.raises(ValueError, match="bogus"):  # InvalidRequest and pydantic's own are ValueErrors
        make(router, kb)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: lc.as_runnable(None), "router must be a CognitiveRouter, not NoneType"),
        (lambda: li.ShoalQueryEngine(None), "router must be a CognitiveRouter"),
        (lambda: li.RouterSelector(None), "router must be a CognitiveRouter"),
        (lambda: li.KnowledgeBaseRetriever(None), "kb must be a KnowledgeBase"),
        (lambda: li.ShoalEmbedding("name"), "embed must be an Embedder, not str"),
        (lambda: li.ShoalEmbedding(model_name="other"), "leave out model_name"),
        (lambda: lc.ShoalEmbeddings("name"), "embed must be an Embedder, not str"),
        (lambda: lc.ShoalCache(None), "cache must be a DepthCache"),
        (lambda: lc.RemoteLLM(None), "chat model is needed, not NoneType"),
        (lambda: lc.RemoteLLM(FakeMessagesListChatModel(responses=[]), total="30"), "total must be a whole number"),
    ],
)
def test_the_wrong_kind_of_part_is_told_when_it_is_given(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        make()


@pytest.mark.parametrize("model", [lc.ChatShoal, li.ShoalLLM])
def test_two_sources_of_answers_are_one_too_many(script: Any, model: Any) -> None:
    llm, router = script("yes")
    with pytest.raises(ValueError, match="give router or llm, not both"):
        model(router=router, llm=llm)
    with pytest.raises(ValueError, match="answers with scripted"):
        model(router=router, model="another")
    assert model(router=router, model="scripted").model == model(llm=llm).model == "scripted"


def test_a_selector_knows_routes_and_choices(router: CognitiveRouter) -> None:
    for tools in ({"bogus": "cheap"}, {"bogus": "cheap", "deep": "dear"}):
        with pytest.raises(InvalidRequest, match=r"no route bogus: use faq, .*deep"):
            li.RouterSelector(router, tools=tools)
        with pytest.raises(ValueError, match="no route bogus"):
            lc.RouterDecisions(router=router, labels=tools)
    with pytest.raises(InvalidRequest, match="must be a mapping, not str"):
        li.RouterSelector(router, tools="cheap")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="nothing to choose from"):
        li.RouterSelector(router).select([], "Hello")
    nobody = dict.fromkeys(("faq", "extract", "direct", "rag", "deep"), "nobody")
    with pytest.raises(InvalidRequest, match="not among"):
        li.RouterSelector(router, tools=nobody).select(TOOLS, "Hello")


@pytest.mark.parametrize("question", ["", "  ", None])
def test_passages_are_not_dropped_for_want_of_a_question(question: Any) -> None:
    document, node = Document("The library opens at nine."), NodeWithScore(node=TextNode(text="It opens at nine."))
    with pytest.raises(InvalidRequest, match="not blank"):
        lc.DepthCompressor().compress_documents([document], question)
    if question is not None:
        with pytest.raises(InvalidRequest, match="not blank"):
            li.DepthPostprocessor().postprocess_nodes([node], query_str=question)
    assert lc.DepthCompressor().compress_documents([], question) == []


async def test_k_of_a_retriever_counts_both_ways(kb: KnowledgeBase) -> None:
    retriever = lc.KnowledgeBaseRetriever(kb=kb, k=3)
    assert len(await retriever.ainvoke("library", k=1)) == len(retriever.invoke("library", k=1)) == 1
    for k in (0, -1):
        with pytest.raises(RagError, match=f"k is {k}"):
            retriever.invoke("library", k=k)
    for wrong in (0, "3", None):
        with pytest.raises(InvalidRequest, match="k must be a whole number"):
            li.KnowledgeBaseRetriever(kb, k=wrong)  # type: ignore[arg-type]


def test_what_a_call_is_given_by_mistake(router: CognitiveRouter) -> None:
    chat, llm = lc.ChatShoal(router=router), li.ShoalLLM(router=router)
    asks: tuple[Callable[..., Any], ...] = (chat.invoke, chat.bind().invoke, llm.complete)
    for ask in asks:
        with pytest.raises(InvalidRequest, match="cache_control must be a CacheControl, not dict"):
            ask("Hello there", cache_control={"read": False})
        with pytest.raises(InvalidRequest, match="unknown argument bogus"):
            ask("Hello there", bogus=1)
    assert chat.invoke("Hello there", tools=[]).text == "It is forty two."
    with pytest.raises(NotImplementedError, match="calls no tools"):
        chat.invoke("Hello there", tools=[{"name": "search"}])


def test_one_bad_request_of_a_batch_is_its_own_affair(router: CognitiveRouter) -> None:
    chat = lc.ChatShoal(router=router)
    turns = ["Hello there", [ToolMessage("4", tool_call_id="1")], "And you?"]
    good, bad, also = chat.batch(turns, return_exceptions=True)  # type: ignore[arg-type]
    assert good.text == also.text == "It is forty two."
    assert isinstance(bad, InvalidRequest)
    assert chat.batch([]) == []


def test_configured_and_copied_models_are_the_same_model(router: CognitiveRouter) -> None:
    chat = lc.ChatShoal(router=router)
    depth = chat.configurable_fields(max_depth=ConfigurableField(id="depth")).with_config(configurable={"depth": 21})
    for asked, budget in ((depth, 21), (chat.model_copy(update={"max_depth": 20}), 20), (chat.bind(max_depth=19), 19)):
        assert asked.invoke("Hello there").response_metadata["depth"]["budget"] == budget
    llm = li.ShoalLLM(router=router, max_depth=20)
    assert copy.copy(llm).complete("Hello there").raw["depth"]["budget"] == 20
    assert li.ShoalLLM(**{**llm.model_dump(), "router": router}).max_depth == 20
    assert li.DepthPostprocessor(**li.DepthPostprocessor(top_n=2).model_dump()).top_n == 2


def test_pickles_are_whole_or_refused(router: CognitiveRouter) -> None:
    llm = li.ShoalLLM(router=router)
    with pytest.raises(TypeError, match="your own router cannot be pickled"):
        pickle.dumps(llm)
    assert llm.complete("Hello there").text == "It is forty two."  # LlamaIndex's own way took the router away
    assert pickle.loads(pickle.dumps(li.ShoalLLM(max_depth=20))).max_depth == 20
    with pytest.raises(TypeError, match=r"a ChatShoal around your own router cannot be pickled: pickle ChatShoal\("):
        pickle.dumps(lc.ChatShoal(router=router))
    assert pickle.loads(pickle.dumps(lc.ChatShoal(max_depth=20))).max_depth == 20
    embedding = li.ShoalEmbedding(embed_batch_size=3)
    for again in (pickle.loads(pickle.dumps(embedding)), copy.deepcopy(embedding)):
        assert again.embed_batch_size == 3
        assert again.get_query_embedding("library") == embedding.get_query_embedding("library")
    assert pickle.loads(pickle.dumps(default_embedder())) is default_embedder()


def test_no_generations_are_nothing_to_store() -> None:
    cache = lc.ShoalCache(DepthCache())
    cache.update("prompt", "model", [])
    assert cache.lookup("prompt", "model") is None
    cache.update("prompt", "model", [Generation(text="four")])
    assert cache.lookup("prompt", "model") == [Generation(text="four")]


async def test_a_closed_stream_of_turns_stops_the_model(script: Any) -> None:
    slow, router = script(" ".join(["word"] * 200), pause_s=0.01)
    turns = [ChatMessage(role=MessageRole.USER, content="Tell me a story about the sea")]
    pieces: Any = await li.ShoalLLM(router=router).astream_chat(turns)
    async for _ in pieces:
        break
    await pieces.aclose()
    assert await asyncio.to_thread(slow.cancelled.wait, 10)
    assert slow.made < 200


def test_texts_that_are_none_are_named() -> None:
    asks: tuple[Callable[..., Any], ...] = (lc.ShoalEmbeddings().embed_query, li.ShoalEmbedding().get_text_embedding)
    for ask in asks:
        with pytest.raises(TypeError, match="takes texts, not NoneType"):
            ask(None)


def test_a_streamed_answer_is_a_turn_of_the_next_request(router: CognitiveRouter) -> None:
    chat = lc.ChatShoal(router=router)
    first, *more = chat.stream("Hello there")
    answer = sum(more, first)
    assert (
        chat.invoke([HumanMessageChunk(content="Hello there"), answer, HumanMessage("And you?")]).text
        == "It is forty two."
    )


@pytest.mark.parametrize("block", [{"type": "text"}, {"type": "text", "text": None}])
def test_a_text_block_without_text_is_named(router: CognitiveRouter, block: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="a text block needs its text"):
        lc.ChatShoal(router=router).invoke([HumanMessage([block])])


@pytest.mark.parametrize(
    ("told", "ended"),
    [
        ({"finish_reason": "length"}, "length"),  # OpenAI
        ({"finish_reason": "MAX_TOKENS"}, "length"),  # Google
        ({"finish_reason": "SAFETY"}, "content_filter"),
        ({"stop_reason": "max_tokens"}, "length"),  # Anthropic
        ({"stop_reason": "refusal"}, "content_filter"),
        ({"stopReason": "max_tokens"}, "length"),  # Bedrock
        ({"done_reason": "length"}, "length"),  # Ollama
        ({"stop_reason": "end_turn"}, "stop"),
        ({"finish_reason": "STOP"}, "stop"),
        ({}, "stop"),
    ],
)
def test_cut_off_and_refused_answers_are_known_by_any_vendors_word(told: dict[str, str], ended: str) -> None:
    cache, message = lc.ShoalCache(DepthCache()), AIMessage("The answer is", response_metadata=told)
    cache.update("prompt", "model", [ChatGeneration(message=message)])
    assert (cache.lookup("prompt", "model") is not None) == (ended == "stop")
    *_, last = lc.RemoteLLM(FakeMessagesListChatModel(responses=[message])).stream("What is it?")
    assert last.finish_reason == ended


def test_tokens_are_counted_without_another_models_tokenizer(script: Any) -> None:
    llm, router = script("yes")
    remote = lc.RemoteLLM(FakeMessagesListChatModel(responses=[]))
    assert lc.ChatShoal(router=router).get_num_tokens("one two three") == llm.count_tokens("one two three")
    alone = lc.ChatShoal(router=CognitiveRouter(remote=remote, router_only=True))
    assert alone.get_num_tokens("one two three") == remote.count_tokens("one two three")
    with pytest.raises(NotImplementedError, match="use get_num_tokens"):
        lc.ChatShoal(router=router).get_token_ids("one")
    assert lc.ChatShoal(router=router, custom_get_token_ids=lambda text: [len(text)]).get_token_ids("one") == [3]


def test_a_neutral_top_p_is_not_sent() -> None:
    class Chat(FakeMessagesListChatModel):
        top_p: float | None = None

    remote, sent = lc.RemoteLLM(Chat(responses=[AIMessage("yes")])), []
    messages = remote._messages
    remote._messages = lambda chat, *rest: (sent.append(chat.top_p), messages(chat, *rest))[1]  # type: ignore[method-assign]
    for top_p in (1.0, 0.9):
        list(remote.stream("Hello", top_p=top_p))
    assert sent == [None, 0.9]


@pytest.mark.parametrize("way", ["ainvoke", "astream", "acomplete", "astream_complete"])
async def test_a_model_loads_beside_the_event_loop(
    router: CognitiveRouter, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    places = []

    def load(name: str) -> CognitiveRouter:
        places.append(threading.current_thread())
        return router

    monkeypatch.setattr(loading, "_load", load)
    chat: Any = lc.ChatShoal() if way in ("ainvoke", "astream") else li.ShoalLLM()
    asked = getattr(chat, way)("Hello there")
    if asyncio.iscoroutine(asked):
        asked = await asked
    if way.startswith("astream"):
        assert [piece async for piece in asked]
    assert places[0] is not threading.main_thread()
