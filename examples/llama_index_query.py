"""LlamaIndex: a query engine with sources, a stream, an LLM, on Shoal. Run: `python examples/llama_index_query.py`."""

import tempfile
from pathlib import Path

from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer

from shoal import CognitiveRouter, KnowledgeBase
from shoal.router.integrations.llama_index import DepthPostprocessor, KnowledgeBaseRetriever, ShoalLLM, ShoalQueryEngine

LUMEN = Path(__file__).parent / "demo"


def show(question: str, response) -> None:
    depth, sources = response.metadata["depth"], [node.node.ref_doc_id for node in response.source_nodes]
    route = response.metadata["trace"]["route"]
    print(f"{question} -> {response}  (route {route}, depth {depth['max']:g}/{depth['total']}, sources {sources})")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, KnowledgeBase.open(folder) as kb:
        kb.add(LUMEN / "kb")
        router = CognitiveRouter(kb=kb)

        # 1. The router as a query engine: sources and the whole trace come along.
        engine = ShoalQueryEngine(router, max_tokens=48)
        for question in ("How long does the battery of the Lumen Go last?", "极光会员享受几折?"):
            show(question, engine.query(question))

        # 2. Streamed.
        stream = ShoalQueryEngine(router, streaming=True, max_tokens=32).query("Hi there! How are you?")
        print("streamed:", *stream.response_gen, sep="")

        # 3. The pieces, composed by LlamaIndex itself: retriever, postprocessor that keeps scores, LLM.
        llm = ShoalLLM(router=router, max_tokens=32)
        composed = RetrieverQueryEngine(
            KnowledgeBaseRetriever(kb, k=6), get_response_synthesizer(llm=llm), [DepthPostprocessor(top_n=2)]
        )
        response = composed.query("How long is the warranty?")
        print(f"composed: {response}  ({[f'{n.node.ref_doc_id} {n.score:.2f}' for n in response.source_nodes]})")


if __name__ == "__main__":
    main()
