"""One customer-service agent in LlamaIndex, twice: every step through the model, and routed by Shoal.

Run: `python examples/agent_llama_index.py`. The agent is that of `agent_langchain.py`, prompts included.
"""

import time

from agent_langchain import ANSWER, MAX_TOKENS, PLAN, Agent, Reply
from llama_index.core.base.llms.types import ChatMessage
from lumen import TURNS, Shop, lumen

from shoal.router.decision import CacheControl
from shoal.router.integrations.llama_index import KnowledgeBaseRetriever, ShoalLLM, ShoalQueryEngine


def turns(template, **values: str) -> list[ChatMessage]:
    roles = {"system": "system", "human": "user"}
    return [ChatMessage(role=roles[m.type], content=m.text) for m in template.format_messages(**values)]


def unrouted(shop: Shop) -> Agent:
    """The usual way: the model plans, a search runs, the model answers. Full depth, no FAQ, no cache."""
    llm = ShoalLLM(llm=shop.llm, max_depth="100%", cache_control=CacheControl(read=False, write=False))
    search = KnowledgeBaseRetriever(shop.everything, k=3)

    def agent(question: str) -> Reply:
        planned = llm.chat(turns(PLAN, question=question), max_tokens=4)
        found = [] if "chat" in (planned.message.content or "").lower() else search.retrieve(question)
        passages = "\n\n".join(node.text for node in found)
        answered = llm.chat(turns(ANSWER, question=question, passages=passages), max_tokens=MAX_TOKENS)
        spent = sum(response.raw["trace"]["layer_tokens"] for response in (planned, answered))
        return Reply(text=answered.message.content or "", route="model", layer_tokens=spent)

    return agent


def routed(shop: Shop) -> Agent:
    """The same agent, with Shoal in front: three lines, and the model is asked only when it has to be."""
    engine = ShoalQueryEngine(shop.router(), max_tokens=MAX_TOKENS)

    def agent(question: str) -> Reply:
        response = engine.query(question)
        trace = response.metadata["trace"]
        return Reply(text=str(response), route=trace["route"], layer_tokens=trace["layer_tokens"])

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
