"""Errors of the cache. Every message says what was wrong and what to do."""


class CacheError(Exception):
    """Base class of everything this package raises on purpose."""


class CacheInputError(CacheError, ValueError):
    """A request, entry or setting that can never be cached as given."""


class MissingExtraError(CacheError, ImportError):
    """An optional part was asked for by name and is not installed."""
