"""Answers by prompt and depth: exact and semantic, in memory, in Redis and on disk (C1 to C6, R7)."""

from .bucket import bucket_of
from .control import Control
from .entry import Entry
from .errors import CacheError, CacheInputError, MissingExtraError
from .guards import Guards
from .key import CacheKey, key_of
from .scorer import same_question
from .tiered import DepthCache

__all__ = [
    "CacheError",
    "CacheInputError",
    "CacheKey",
    "Control",
    "DepthCache",
    "Entry",
    "Guards",
    "MissingExtraError",
    "bucket_of",
    "key_of",
    "same_question",
]
