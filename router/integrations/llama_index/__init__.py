"""LlamaIndex (I2): query engine, LLM, retriever, postprocessor, embedding, selector.

`ShoalQueryEngine(router).query("When was the lighthouse built?")`, `ShoalLLM(model="smollm2-135m").complete("Hello")`
"""

from ...errors import MissingExtra

try:
    import llama_index.core  # noqa: F401
except ImportError as error:
    raise MissingExtra("llama-index-core", "llama-index") from error

from .llm import ShoalLLM
from .query import RouterSelector, ShoalQueryEngine
from .retrieval import DepthNode, DepthPostprocessor, KnowledgeBaseRetriever, ShoalEmbedding

__all__ = [
    "DepthNode",
    "DepthPostprocessor",
    "KnowledgeBaseRetriever",
    "RouterSelector",
    "ShoalEmbedding",
    "ShoalLLM",
    "ShoalQueryEngine",
]
