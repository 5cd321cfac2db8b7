"""Errors of the router. Each message says what was wrong and what to do about it; none knows HTTP."""


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


class MissingExtra(RouterError, ImportError):
    """An optional part is not installed; the message names the extra."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} is not installed. Run: pip install "shoal[{extra}]"')
        self.extra = extra
