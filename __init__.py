"""Shoal: spend only as much thinking on a request as the request needs.

The public face. Everything is imported on first use, so that `import shoal` stays fast and needs no optional part.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .cache import DepthCache as DepthCache
    from .gated_llm import GatedLLM as GatedLLM
    from .rag import KnowledgeBase as KnowledgeBase
    from .rag.embed import default_embedder as default_embedder
    from .router import CognitiveRouter as CognitiveRouter

_FACE = {
    "CognitiveRouter": ".router",
    "DepthCache": ".cache",
    "GatedLLM": ".gated_llm",
    "KnowledgeBase": ".rag",
    "default_embedder": ".rag.embed",
}
__all__ = ["CognitiveRouter", "DepthCache", "GatedLLM", "KnowledgeBase", "__version__", "default_embedder"]


def __getattr__(name: str) -> Any:
    if name in _FACE:
        return getattr(import_module(_FACE[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
