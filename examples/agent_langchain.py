"""One customer-service agent in LangChain, twice: every step through the model, and routed by Shoal.

Run: `python examples/agent_langchain.py`. `benchmarks/agent_flow.py` measures both over a fixed script of turns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from langchain_core.prompts import ChatPromptTemplate
from lumen import TURNS, Shop, lumen

from shoal.router.decision import CacheControl
from shoal.router.integrations.langchain import ChatShoal, KnowledgeBaseRetriever, as_runnable

MAX_TOKENS = 48
PLAN = ChatPromptTemplate.from_messages(
    [
        ("system", "Decide what a customer's message needs. Answer with one word: search or chat."),
        ("human", "{question}"),
    ]
)
BRIEF = (
    "You are the customer service of Lumen, a lamp shop. Answer as briefly as possible, from the passages. "
    "If they do not hold the answer, say that you do not know.\n\n{passages}"
)
ANSWER = ChatPromptTemplate.from_messages([("system", BRIEF), ("human", "{question}")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    text: str
    route: str
    layer_tokens: float


Agent = Callable[[str], Reply]


def unrouted(shop: Shop) -> Agent:
    """The usual way: the model plans, a search runs, the model answers. Full depth, no FAQ, no cache."""
    chat = ChatShoal(llm=shop.llm, max_depth="100%", cache_control=CacheControl(read=False, write=False))
    plan, answer = PLAN | chat.bind(max_tokens=4), ANSWER | chat.bind(max_tokens=MAX_TOKENS)
    search = KnowledgeBaseRetriever(kb=shop.everything, k=3)

    def agent(question: str) -> Reply:
        planned = plan.invoke({"question": question})
        found = [] if "chat" in planned.text.lower() else search.invoke(question)
        passages = "\n\n".join(document.page_content for document in found)
        answered = answer.invoke({"question": question, "passages": passages})
        traces = [message.response_metadata["trace"] for message in (planned, answered)]
        return Reply(text=answered.text, route="model", layer_tokens=sum(trace["layer_tokens"] for trace in traces))

    return agent


def routed(shop: Shop) -> Agent:
    """The same agent, with Shoal in front: three lines, and the model is asked only when it has to be."""
    router = as_runnable(shop.router(), max_tokens=MAX_TOKENS)

    def agent(question: str) -> Reply:
        answered = router.invoke(question)
        trace = answered.response_metadata["trace"]
        return Reply(text=answered.text, route=trace["route"], layer_tokens=trace["layer_tokens"])

    return agent


def main() -> None:
    with lumen() as shop:
        agents = {"unrouted": unrouted(shop), "routed": routed(shop)}
        for question in TURNS:
            print(f"\n> {question}")
            for name, agent in agents.items():
                began = time.perf_counter()
                reply = agent(question)
                ms = (time.perf_counter() - began) * 1000
                print(
                    f"  {name:9} {ms:6.0f} ms  {reply.layer_tokens:7.0f} layer-tokens  {reply.route:8} {reply.text!r}"
                )


if __name__ == "__main__":
    main()
