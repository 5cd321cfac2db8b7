"""The public names as a user's type checker sees them: `make check` reads this with mypy --strict; nothing runs it.

A line marked `type: ignore` must be wrong: where it is not, mypy says that the mark is unused.
"""

from collections.abc import Iterator
from typing import Any, assert_type

from shoal import CognitiveRouter, DepthCache, GatedLLM, KnowledgeBase, __version__, default_embedder
from shoal.cache import Entry, bucket_of
from shoal.gated_llm import Chunk, DepthReport, Generation, Usage
from shoal.rag import Context, Extracted, Hit
from shoal.router import Answer, Decision, Message, Piece, Route, Trace
from shoal.router.integrations.langchain import ChatShoal
from shoal.router.integrations.llama_index import ShoalLLM
from shoal.router.service import ServiceOptions
from shoal.router.settings import Settings, load_settings


def version() -> str:
    return __version__


def router(kb: KnowledgeBase) -> str:
    made = CognitiveRouter(kb=kb, router_only=True)
    answer = made.ask("When was the lighthouse built?", max_depth="60%", tenant="acme")
    assert_type(answer, Answer)
    assert_type(answer.route, Route)
    assert_type(answer.trace, Trace)
    assert_type(made.decide([Message(role="user", content="Hi")]), Decision)
    pieces = made.ask_stream("Hi")
    assert_type(pieces, Iterator[Piece])
    made.ask(17)  # type: ignore[arg-type]
    made.close()
    return answer.text


def model() -> list[float]:
    with GatedLLM.load("smollm2-135m", dtype="int8") as llm:
        made = llm.generate("Name a colour.", max_tokens=8, max_depth=24)
        assert_type(made, Generation)
        assert_type(made.depth, DepthReport)
        assert_type(made.usage, Usage)
        chunks: list[Chunk] = list(llm.stream("Name a fish.", max_tokens=8))
        llm.count_tokens(17)  # type: ignore[arg-type]
        return [chunk.depth.max for chunk in chunks]


def cache() -> str | None:
    kept = DepthCache(embed=default_embedder(), total=30)
    assert_type(kept.put("How?", "So.", budget=24, depth=18.5), Entry | None)
    found = kept.get("How?", budget=10)
    kept.get("How?", budget="ten")  # type: ignore[arg-type]
    return None if found is None else f"{found.tier} {bucket_of(10, 30)}"


def documents() -> list[str]:
    with KnowledgeBase.open("./kb") as kb:
        hits = kb.search("How heavy is the pump?", k=5)
        assert_type(hits, list[Hit])
        assert_type(kb.extract("How heavy is the pump?"), Extracted | None)
        assert_type(kb.context("How heavy is the pump?", token_budget=512), Context)
        return [hit.text for hit in hits]


def shells() -> tuple[Settings, ServiceOptions, Any]:
    ChatShoal(model="smollm2-135m", max_depth="auto")
    ShoalLLM(model="smollm2-135m", max_depth="auto")
    return load_settings(port=8001), ServiceOptions(concurrent=16), None
