"""ChatShoal: what it sends to the router, what it hands back, and how it stops. The text is scripted."""

import asyncio
from typing import Any, Literal

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import OutputParserException
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, AIMessageChunk, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from pydantic import BaseModel, Field

from shoal import CognitiveRouter, DepthCache
from shoal.gated_llm.errors import BudgetError
from shoal.router.decision import CacheControl
from shoal.router.errors import InvalidRequest
from shoal.router.integrations.langchain import ChatShoal, ShoalCache, as_runnable

ASK = "Write a short rhyme about a harbour."
FRESH = CacheControl(read=False, write=False)


def test_an_answer_carries_depth_trace_and_usage(plain: CognitiveRouter) -> None:
    message = ChatShoal(router=plain, max_depth=24).invoke(ASK)
    assert message.content == "It is forty two."
    told = message.response_metadata
    assert told["model_name"] == "scripted"
    assert told["finish_reason"] == "stop"
    assert told["depth"]["max"] == 24
    assert told["trace"]["depth"] == told["depth"]
    assert told["trace"]["route"] in {"direct", "deep"}
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_tokens"] == 4


def test_the_trace_is_the_routers_own(router: CognitiveRouter) -> None:
    message = as_runnable(router).invoke("How much does a library card cost?")
    assert message.response_metadata["trace"].keys() == router.ask(ASK).trace.to_dict().keys()
    assert message.response_metadata["trace"]["passages"]["kept"][0]["doc_id"] == "cards.md"


def test_around_a_bare_model(scripted: Any) -> None:
    chat = ChatShoal(llm=scripted)
    assert chat.model == "scripted"
    assert [chat.invoke(ASK).content for _ in range(2)] == ["It is forty two."] * 2
    assert len(scripted.prompts) == 1


def test_streamed_chunks_add_up_and_show_the_depth_so_far(plain: CognitiveRouter) -> None:
    whole: AIMessageChunk | None = None
    chunks = list(ChatShoal(router=plain, max_depth=24, cache_control=FRESH).stream(ASK))
    for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert len(chunks) == 5
    assert whole.content == "It is forty two."
    assert whole.additional_kwargs["depth"] == [24.0] * 5
    assert whole.response_metadata["depth"]["max"] == 24
    assert chunks[-1].chunk_position == "last"


async def test_the_async_ways_give_the_same(plain: CognitiveRouter) -> None:
    chat = ChatShoal(router=plain, max_depth=24, cache_control=FRESH)
    message = await chat.ainvoke(ASK)
    streamed = "".join([chunk.text async for chunk in chat.astream(ASK)])
    assert message.content == streamed == "It is forty two."
    assert [m.content for m in await chat.abatch([ASK, "Another rhyme, please."])] == [streamed] * 2


def test_a_dropped_stream_stops_the_model(script: Any) -> None:
    llm, router = script("word " * 2000)
    stream = ChatShoal(router=router).stream(ASK)
    for _ in range(3):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert llm.made < 10


async def test_a_dropped_async_stream_stops_the_model_at_the_next_token(script: Any) -> None:
    llm, router = script("word " * 2000, pause_s=0.01)
    stream = ChatShoal(router=router).astream(ASK)
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0.2)
    made = llm.made
    await asyncio.sleep(0.2)
    assert llm.made == made < 100


async def test_a_cancelled_call_stops_the_model(script: Any) -> None:
    llm, router = script("word " * 2000, pause_s=0.01)
    task = asyncio.create_task(ChatShoal(router=router).ainvoke(ASK))
    while not llm.made:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert llm.made < 200


async def test_the_event_loop_stays_free_while_the_model_thinks(script: Any) -> None:
    chat = ChatShoal(router=script("word " * 10, pause_s=0.02)[1])
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1

    pulse = asyncio.create_task(beat())
    await chat.ainvoke(ASK)
    pulse.cancel()
    assert beats >= 5


def test_fields_given_per_call_win_over_the_models_own(plain: CognitiveRouter) -> None:
    chat = ChatShoal(router=plain, max_depth=28, cache_control=FRESH)
    assert chat.invoke(ASK, max_depth=20).response_metadata["depth"]["max"] == 20
    assert chat.bind(max_depth=16).invoke(ASK).response_metadata["depth"]["max"] == 16
    assert chat.invoke(ASK).response_metadata["depth"]["max"] == 28


@pytest.mark.parametrize("bad", [{"max_dept": 20}, {"tool_choice": "any"}, {"response_format": {"type": "json"}}])
def test_arguments_nobody_knows_are_refused(plain: CognitiveRouter, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(bad))):
        ChatShoal(router=plain).invoke(ASK, **bad)
    with pytest.raises(ValueError, match=next(iter(bad))):
        ChatShoal(router=plain, **bad)


def test_tools_are_refused_and_not_ignored(plain: CognitiveRouter) -> None:
    chat = ChatShoal(router=plain)
    with pytest.raises(NotImplementedError, match="calls no tools"):
        chat.bind_tools([{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(NotImplementedError, match="calls no tools"):
        chat.invoke(ASK, tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(InvalidRequest, match="tool"):
        chat.invoke([HumanMessage(ASK), ToolMessage("3", tool_call_id="1")])
    called = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}])
    with pytest.raises(InvalidRequest, match="tool"):
        chat.invoke([HumanMessage(ASK), called])


def test_images_are_refused(plain: CognitiveRouter) -> None:
    picture = HumanMessage(
        [{"type": "text", "text": "What is this?"}, {"type": "image", "url": "https://x.example/a.png"}]
    )
    with pytest.raises(InvalidRequest, match="text only"):
        ChatShoal(router=plain).invoke([picture])


def test_the_routers_errors_come_through(plain: CognitiveRouter) -> None:
    with pytest.raises(BudgetError, match="15 to 30"):
        ChatShoal(router=plain).invoke(ASK, max_depth=3)
    with pytest.raises(InvalidRequest, match="empty"):
        ChatShoal(router=plain).invoke("  ")


def test_a_conversation_reaches_the_model_turn_by_turn(scripted: Any, plain: CognitiveRouter) -> None:
    turns = [SystemMessage("Be brief."), ChatMessage("user", role="user"), AIMessage("Yes?"), HumanMessage(ASK)]
    ChatShoal(router=plain).invoke(turns)
    assert [turn["role"] for turn in scripted.prompts[-1]] == ["system", "user", "assistant", "user"]


def test_it_composes_with_prompts_and_parsers(plain: CognitiveRouter) -> None:
    chain = (
        ChatPromptTemplate.from_messages([("human", "Write a rhyme about {what}.")])
        | as_runnable(plain)
        | StrOutputParser()
    )
    assert chain.invoke({"what": "rain"}) == "It is forty two."
    assert "".join(chain.stream({"what": "rain"})) == "It is forty two."


def test_what_an_answer_depends_on_is_in_the_identity(plain: CognitiveRouter, router: CognitiveRouter) -> None:
    known = ChatShoal(router=plain, max_depth=24)._identifying_params
    assert known["fingerprint"] == "scripted-1"
    assert known["max_depth"] == 24
    assert ChatShoal(router=router)._identifying_params["kb"] == router.kb.fingerprint  # type: ignore[union-attr]
    assert (
        ChatShoal(router=plain, max_depth=20)._get_llm_string()
        != ChatShoal(router=plain, max_depth=24)._get_llm_string()
    )


def test_the_answer_cache_works_under_stream(scripted: Any, plain: CognitiveRouter) -> None:
    chat = ChatShoal(router=plain)
    first, second = ("".join(chunk.text for chunk in chat.stream(ASK)) for _ in range(2))
    assert first == second
    assert len(scripted.prompts) == 1
    assert chat.invoke(ASK).response_metadata["trace"]["cache"]["tier"] == "l1"


def test_langchains_own_cache_works_under_stream_too(scripted: Any, plain: CognitiveRouter) -> None:
    """langchain-core reads no cache under `stream()` (langchain #23701): the model does."""
    chat = ChatShoal(router=plain, cache=InMemoryCache(), cache_control=FRESH)
    streamed = "".join(chunk.text for chunk in chat.stream(ASK))
    assert "".join(chunk.text for chunk in chat.stream(ASK)) == chat.invoke(ASK).content == streamed
    assert len(scripted.prompts) == 1
    assert (
        "".join(chunk.text for chunk in ChatShoal(router=plain, cache=False, cache_control=FRESH).stream(ASK))
        == streamed
    )
    assert len(scripted.prompts) == 2


async def test_a_global_depth_cache_serves_invoke_and_stream_alike(scripted: Any, plain: CognitiveRouter) -> None:
    set_llm_cache(ShoalCache(DepthCache()))
    try:
        chat = ChatShoal(router=plain, cache_control=FRESH)
        message = await chat.ainvoke(ASK)
        streamed = "".join([chunk.text async for chunk in chat.astream(ASK)])
        assert streamed == message.content == chat.invoke(ASK).content
        assert len(scripted.prompts) == 1
    finally:
        set_llm_cache(None)


def test_a_cut_off_answer_is_not_kept(plain: CognitiveRouter) -> None:
    store = ShoalCache(DepthCache())
    chat = ChatShoal(router=plain, cache=store, cache_control=FRESH)
    stream = chat.stream(ASK)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert store.lookup(*chat._cache_place([HumanMessage(ASK)], None, {})[1:]) is None


def test_entries_of_another_model_or_tenant_are_out_of_reach() -> None:
    depths = DepthCache()
    mine, theirs = ShoalCache(depths), ShoalCache(depths, tenant="b")
    from langchain_core.outputs import Generation

    mine.update("prompt", "model a", [Generation(text="kept")])
    assert mine.lookup("prompt", "model b") is None
    assert theirs.lookup("prompt", "model a") is None
    theirs.clear()
    assert mine.lookup("prompt", "model a") == [Generation(text="kept")]


class Pet(BaseModel):
    """A pet."""

    kind: Literal["cat", "dog", "fish"]
    legs: int = Field(ge=0, le=4)


@pytest.mark.model
async def test_answers_held_to_a_schema(bare: CognitiveRouter) -> None:
    """Whatever the model would rather say: pydantic classes, JSON schemas, streams, and what was cut off."""
    chat = ChatShoal(router=bare, max_tokens=24, cache_control=FRESH)
    assert isinstance(chat.with_structured_output(Pet).invoke("A cat has four legs."), Pet)
    assert isinstance(await chat.with_structured_output(Pet).ainvoke("A cat has four legs."), Pet)
    held = chat.with_structured_output(Pet.model_json_schema())
    last = list(held.stream("A cat has four legs."))[-1]
    assert Pet.model_validate(last)
    short = ChatShoal(router=bare, max_tokens=2, cache_control=FRESH)
    raw = short.with_structured_output(Pet, include_raw=True).invoke("A cat has four legs.")
    assert raw["parsed"] is None
    assert isinstance(raw["parsing_error"], OutputParserException)
    assert raw["raw"].response_metadata["finish_reason"] == "length"
