"""LangChain: a chat model, a chain, a stream and a retriever, on Shoal. Run: `python examples/langchain_chat.py`."""

import tempfile
from pathlib import Path

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from shoal import CognitiveRouter, KnowledgeBase
from shoal.router.integrations.langchain import ChatShoal, KnowledgeBaseRetriever, as_runnable

LUMEN = Path(__file__).parent / "demo"


def depth_of(metadata: dict) -> str:
    depth = metadata["depth"]
    return f"route {metadata['trace']['route']}, depth {depth['max']:g}/{depth['total']}"


def main() -> None:
    # 1. The bare model, at the depth you name.
    chat = ChatShoal(model="smollm2-135m", max_depth="auto", max_tokens=32)
    message = chat.invoke("What is the capital of France?")
    written = message.usage_metadata["output_tokens"]
    print(f"{message.content!r}  ({depth_of(message.response_metadata)}, {written} tokens)")

    # 2. In a chain, streamed.
    chain = (
        ChatPromptTemplate.from_messages([("human", "Say hello to {name} in one sentence.")]) | chat | StrOutputParser()
    )
    print("streamed:", *chain.stream({"name": "Mina"}), sep="")

    # 3. The whole router as a Runnable: it reads the handbook only as far as the question needs.
    with tempfile.TemporaryDirectory() as folder, KnowledgeBase.open(folder) as kb:
        kb.add(LUMEN / "kb")
        router = as_runnable(CognitiveRouter(kb=kb), max_tokens=48)
        for question in ("How long does the battery of the Lumen Go last?", "极光会员享受几折?"):
            answer = router.invoke(question)
            print(f"{question} -> {answer.content}  ({depth_of(answer.response_metadata)})")
        best, *_ = KnowledgeBaseRetriever(kb=kb, k=2).invoke("How long is the warranty?")
        print(f"retrieved: {best.metadata['doc_id']}, score {best.metadata['score']:.2f}")


if __name__ == "__main__":
    main()
