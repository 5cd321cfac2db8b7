"""What can go wrong in rag. One base class; each message says what was wrong and what to do."""

from importlib import import_module
from typing import Any


class RagError(Exception):
    """Base of every error this package raises."""


class MissingExtraError(RagError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""


class DocumentError(RagError, ValueError):
    """A document cannot be read: not text, damaged, too large, empty."""


class IndexMismatchError(RagError, ValueError):
    """The index on disk was made with another embedder, width or format."""


class ModelError(RagError, ValueError):
    """A reranker or extractor file does not fit: wrong shapes, wrong features."""


def need(module: str, extra: str) -> Any:
    """Import `module`, or raise MissingExtraError naming the extra that carries it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f'{module.split(".")[0]} is not installed; it comes with the extra: pip install "shoal[{extra}]"'
        ) from error
