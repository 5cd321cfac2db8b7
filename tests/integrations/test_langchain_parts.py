"""Retriever, compressor and decision model for LangChain, on the real knowledge base, encoder and classifier."""

from typing import Any

import pytest
from langchain_core.decisions import Choice, Noul, Score
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from shoal import CognitiveRouter, KnowledgeBase
from shoal.rag.retrieve import Hit
from shoal.router.decision import Decision, Route
from shoal.router.errors import InvalidRequest
from shoal.router.integrations.langchain import (
    DepthCompressor,
    KnowledgeBaseRetriever,
    RouterDecisions,
    ShoalEmbeddings,
)
from shoal.router.integrations.loading import choose
from shoal.router.integrations.ranking import Ranker

QUESTION = "How much does a library card cost?"
DOCUMENTS = [
    Document("The reading room on the third floor seats forty people.", metadata={"page": 1}),
    Document("A library card costs five euros a year.", metadata={"page": 2}),
    Document("Bananas are rich in potassium.", metadata={"page": 3}),
]
HARD = (
    "A farm has 17 hens and 4 goats. Each hen lays 5 eggs a week, each goat gives 9 litres. How many eggs in 3 weeks?"
)


def decision(route: Route, confidence: float = 0.8) -> Decision:
    return Decision(route=route, budget=30, total=30, bucket="27+", confidence=confidence, cacheable=True)


def test_retriever_keeps_scores_and_spans(kb: KnowledgeBase) -> None:
    best, *_ = KnowledgeBaseRetriever(kb=kb, k=2).invoke(QUESTION)
    assert best.metadata["doc_id"] == "cards.md"
    assert 0 < best.metadata["score"] <= 1
    source = kb.document("cards.md")
    assert source is not None
    assert source.text[best.metadata["start"] : best.metadata["end"]] == best.page_content


def test_compressor_puts_the_helpful_first_and_keeps_scores() -> None:
    kept = DepthCompressor(top_n=2, min_score=0.0).compress_documents(DOCUMENTS, QUESTION)
    assert kept[0].metadata["page"] == 2
    assert len(kept) == 2
    assert kept[0].metadata["score"] >= kept[1].metadata["score"]
    assert kept[0].metadata["depth_score"] is None


def test_compressor_leaves_its_input_alone() -> None:
    before = [d.model_copy(deep=True) for d in DOCUMENTS]
    DepthCompressor().compress_documents(DOCUMENTS, QUESTION)
    assert before == DOCUMENTS


def test_compressor_never_empties_the_context() -> None:
    assert len(DepthCompressor(min_score=1.0).compress_documents(DOCUMENTS, "quantum chromodynamics")) == 1
    assert DepthCompressor().compress_documents([], QUESTION) == []


def test_compressor_keeps_the_depth_scores_of_a_probe() -> None:
    def probe(question: str, passages: Any) -> list[float]:
        return [len(hit.text) / 100 for hit in passages]

    kept = DepthCompressor(ranker=Ranker(depth_probe=probe)).compress_documents(DOCUMENTS, QUESTION)
    assert kept[0].metadata["depth_score"] == pytest.approx(0.39)


async def test_compressor_async_and_in_a_chain() -> None:
    compressor = DepthCompressor(top_n=1)
    assert (await compressor.acompress_documents(DOCUMENTS, QUESTION))[0].metadata["page"] == 2
    chain = RunnableLambda(lambda question: compressor.compress_documents(DOCUMENTS, question))
    assert chain.invoke(QUESTION)[0].metadata["page"] == 2


def test_compressor_in_chinese() -> None:
    documents = [Document("图书馆周日闭馆。"), Document("办理借书证每年五欧元。"), Document("香蕉富含钾。")]
    assert DepthCompressor(top_n=1).compress_documents(documents, "借书证多少钱？")[0].page_content.startswith("办理")


def test_a_hit_is_the_same_from_ranker_and_knowledge_base(kb: KnowledgeBase) -> None:
    found = kb.search(QUESTION, 1)[0]
    (_, ranked), *_ = Ranker()(QUESTION, [found.text], top_n=1)
    assert isinstance(ranked, Hit)
    assert ranked.score == pytest.approx(found.score, abs=0.1)


def test_embeddings_are_unit_vectors_in_both_languages() -> None:
    embed = ShoalEmbeddings()
    english, chinese = embed.embed_documents(["Where is the library?", "图书馆在哪里？"])
    assert sum(a * b for a, b in zip(english, chinese, strict=True)) > 0.5
    assert embed.embed_query("Where is the library?") == pytest.approx(english, abs=1e-5)


@pytest.mark.parametrize(
    ("route", "labels", "mapping", "label"),
    [
        (Route.DEEP, ["fast", "powerful"], None, "powerful"),
        (Route.DIRECT, ["fast", "powerful"], None, "fast"),
        (Route.RAG, ["fast", "middling", "powerful"], None, "middling"),
        (Route.RAG, ["deep", "rag", "faq"], None, "rag"),
        (Route.DIRECT, ["a", "b"], {"direct": "b"}, "b"),
        (Route.FAQ, ["only"], None, "only"),
    ],
)
def test_a_route_stands_for_a_label(route: Route, labels: list[str], mapping: Any, label: str) -> None:
    assert labels[choose(decision(route), labels, mapping)] == label


def test_a_mapping_to_a_label_not_offered_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="'huge'"):
        choose(decision(Route.DEEP), ["fast"], {"deep": "huge"})


def test_decisions_pick_the_powerful_model_for_what_is_hard(plain: CognitiveRouter) -> None:
    classifier = RouterDecisions(router=plain)
    question = Choice(instructions="Choose the least costly model.", criteria={"fast": "Simple", "powerful": "Complex"})
    hard = classifier.invoke({"state": HumanMessage(HARD), "questions": {"route": question}}).choices["route"]
    easy = classifier.invoke({"state": "hello there!", "questions": {"route": question}}).choices["route"]
    assert (hard.choice, easy.choice) == ("powerful", "fast")
    assert sum(hard.probabilities.values()) == pytest.approx(1)
    assert hard.confidence == hard.probabilities["powerful"]


async def test_scores_and_refusals(plain: CognitiveRouter) -> None:
    classifier = RouterDecisions(router=plain)
    score = Score(instructions="How hard?", criteria=["easy", "middling", "hard"])
    answer = (await classifier.ainvoke({"state": [HumanMessage(HARD)], "questions": {"q": score}})).scores["q"]
    assert answer.score > 1
    assert answer.legend[2] == "hard"
    with pytest.raises(InvalidRequest, match="Noul"):
        classifier.invoke({"state": HARD, "questions": {"q": Noul(instructions="Is it urgent?")}})
    with pytest.raises(InvalidRequest, match="text or messages"):
        classifier.invoke({"state": {"rows": 3}, "questions": {"q": score}})


def test_the_model_router_middleware_takes_it(plain: CognitiveRouter) -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import ModelChoice, ModelRouterMiddleware
    from langchain_core.language_models import GenericFakeChatModel

    models = {name: GenericFakeChatModel(messages=iter([AIMessage(f"from {name}")])) for name in ("fast", "powerful")}
    choices = {name: ModelChoice(model=model, criteria=name) for name, model in models.items()}
    with pytest.warns(match="ModelRouterMiddleware"):
        middleware = ModelRouterMiddleware(
            choices=choices, instructions="Choose by effort.", classifier=RouterDecisions(router=plain)
        )
    agent = create_agent(models["fast"], middleware=[middleware])
    assert agent.invoke({"messages": [HumanMessage(HARD)]})["messages"][-1].content == "from powerful"
