"""Documents to passages worth thinking about. Everything is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit_scores import DepthScore as DepthScore
    from .embed import Embedder as Embedder
    from .embed import default_embedder as default_embedder
    from .embed import sentence_transformers_embedder as sentence_transformers_embedder
    from .errors import DocumentError as DocumentError
    from .errors import IndexMismatchError as IndexMismatchError
    from .errors import MissingExtraError as MissingExtraError
    from .errors import ModelError as ModelError
    from .errors import RagError as RagError
    from .extract import Extracted as Extracted
    from .fuse import Context as Context
    from .ingest import AddReport as AddReport
    from .knowledge_base import KnowledgeBase as KnowledgeBase
    from .rerank import CrossEncoderReranker as CrossEncoderReranker
    from .retrieve import Hit as Hit

_FACE = {
    "AddReport": ".ingest",
    "Context": ".fuse",
    "CrossEncoderReranker": ".rerank",
    "DepthScore": ".audit_scores",
    "DocumentError": ".errors",
    "Embedder": ".embed",
    "Extracted": ".extract",
    "Hit": ".retrieve",
    "IndexMismatchError": ".errors",
    "KnowledgeBase": ".knowledge_base",
    "MissingExtraError": ".errors",
    "ModelError": ".errors",
    "RagError": ".errors",
    "default_embedder": ".embed",
    "sentence_transformers_embedder": ".embed",
}
__all__ = list(_FACE)


def __getattr__(name: str) -> Any:
    if name in _FACE:
        return getattr(import_module(_FACE[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
