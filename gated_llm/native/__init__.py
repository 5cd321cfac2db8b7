"""native: decoding on a CPU by a small C++ kernel that the user's own compiler builds at first use.

Without a compiler `available()` is False and the torch path serves. Knows no text, budgets or sampling.
"""

from .build import available
from .decoder import Gated, NativeDecoder, Run, Watch, supports
from .store import NativeKV

__all__ = ["Gated", "NativeDecoder", "NativeKV", "Run", "Watch", "available", "supports"]
