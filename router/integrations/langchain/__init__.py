"""LangChain (I1): chat model, cache, retriever, compressor, embeddings, decision model, remote deep path.

`ChatShoal(model="smollm2-135m", max_depth="auto").invoke("What is the boiling point of water?")`
"""

from ...errors import MissingExtra

try:
    import langchain_core  # noqa: F401
except ImportError as error:
    raise MissingExtra("langchain-core", "langchain") from error

from .cache import ShoalCache
from .chat import ChatShoal, as_runnable
from .decisions import RouterDecisions
from .remote import RemoteLLM
from .retrieval import DepthCompressor, KnowledgeBaseRetriever, ShoalEmbeddings

__all__ = [
    "ChatShoal",
    "DepthCompressor",
    "KnowledgeBaseRetriever",
    "RemoteLLM",
    "RouterDecisions",
    "ShoalCache",
    "ShoalEmbeddings",
    "as_runnable",
]
