"""The HTTP face of Shoal: an OpenAI-compatible service with depth in every answer (S1, S2)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import create_app as create_app
    from .options import ServiceOptions as ServiceOptions
    from .server import serve as serve

_FACE = {"create_app": ".app", "ServiceOptions": ".options", "serve": ".server"}
__all__ = ["ServiceOptions", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_FACE[name], __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in {"fastapi", "starlette", "uvicorn"}:
            raise
        from ..errors import MissingExtra

        raise MissingExtra("The HTTP service", "serve") from error
