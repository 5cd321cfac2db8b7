"""gated_llm: tokens by gated layers. A local decoder that runs only the layers that a budget allows.

Knows nothing of routing, retrieval or caching. torch is imported when a model is loaded, not before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import BudgetError, Busy, GatedError, LogitsError, PlanError, PromptError, SamplingError, WeightsError
from .policy import Budget, Plan
from .report import Chunk, DepthReport, Generation, Usage

if TYPE_CHECKING:
    from .engine import GatedLLM as GatedLLM
    from .weights import list_models as list_models
    from .weights import pull as pull

_ON_USE = {"GatedLLM": ".engine", "list_models": ".weights", "pull": ".weights"}
__all__ = [
    "Budget",
    "BudgetError",
    "Busy",
    "Chunk",
    "DepthReport",
    "GatedError",
    "GatedLLM",
    "Generation",
    "LogitsError",
    "Plan",
    "PlanError",
    "PromptError",
    "SamplingError",
    "Usage",
    "WeightsError",
    "list_models",
    "pull",
]


def __getattr__(name: str) -> Any:
    if name in _ON_USE:
        return getattr(import_module(_ON_USE[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
