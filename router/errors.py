"""Errors of the router. Each message says what was wrong and what to do about it; none knows HTTP."""

from typing import Self


class RouterError(Exception):
    """Base of everything the router raises on purpose."""


class InvalidRequest(RouterError, ValueError):
    """The request itself is wrong (empty, bad role, bad number); `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Refused(RouterError):
    """A guard refused the request before any model saw it (R4); `code` is the machine-readable reason."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class NoModel(RouterError):
    """The request needs a language model and this router has none."""


class RemoteFailed(RouterError):
    """A model on another server did not answer, or answered with an error."""

    @classmethod
    def of(cls, name: str, error: Exception) -> Self:
        """For the model `name`. Of the vendor's error only its kind and status: its words may hold the prompt."""
        status = getattr(error, "status_code", None)
        kind = f"{type(error).__name__}, status {status}" if isinstance(status, int) else type(error).__name__
        return cls(f"the remote model {name} failed ({kind}): check its address, key and quota, then try again")


class MissingExtra(RouterError, ImportError):
    """An optional part is not installed; the message names the extra."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} is not installed. Run: pip install "shoal[{extra}]"')
        self.extra = extra
