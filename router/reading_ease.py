"""The depth scores an audit asks for: of texts by themselves, calibrated, high = easy (A3, A5).

`read` has the gated model read every text, twice, whole and skimmed; `predicted` asks the light predictor that was
distilled from that, at the speed of ingest and without a model, and leaves to another what it cannot tell. Both are on
the one scale of `rag.depth`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..gated_llm import GatedLLM
    from ..rag import DepthScore
    from .settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    skim: Any
    fingerprint: str

    def __call__(self, texts: Sequence[str], /) -> list[float]:
        from ..rag.depth import default_depth_model, language_of

        scale = default_depth_model()
        return [
            scale.calibrated(raw, language_of(text)) for text, raw in zip(texts, self.skim(list(texts)), strict=True)
        ]


@dataclass(slots=True, kw_only=True)
class _Predicted:
    depths: Any
    fingerprint: str
    rest: "Callable[[], DepthScore] | None"
    _other: "DepthScore | None" = field(init=False, default=None)

    def __call__(self, texts: Sequence[str], /) -> list[float]:
        found = [math.nan if one is None else one.score for one in self.depths.judge(texts)]
        unknown = [place for place, score in enumerate(found) if math.isnan(score)]
        if unknown and self.rest is not None:
            self._other = self._other or self.rest()
            for place, score in zip(unknown, self._other([texts[place] for place in unknown]), strict=True):
                found[place] = score
        return found


def read(llm: "GatedLLM") -> "DepthScore":
    """By the model itself; raises GatedError for one without a calibrated plan."""
    from ..gated_llm.skim import Skim

    skim = Skim(llm)
    return _Read(skim=skim, fingerprint=f"read:{skim.fingerprint}")


def predicted(rest: "Callable[[], DepthScore] | None" = None, by: str = "") -> "DepthScore":
    """By the predictor that ships, for the default model.

    `rest` makes what scores the texts that it cannot tell, when there is one; `by` is that model's name.
    """
    from ..rag.depth import Depths
    from ..rag.reading import default_reader

    depths = Depths(default_reader(), folder=Path())
    kind = "predicted" if rest is None else f"predicted, else read by {by}"
    return _Predicted(depths=depths, fingerprint=f"{kind}:{depths.fingerprint}", rest=rest)


@contextmanager
def scorer(
    kind: str, settings: "Settings", progress: Callable[[str, float, float], None] | None = None
) -> Iterator["DepthScore"]:
    """`read`, `predicted`, or `auto`: predicted, and read where that cannot be told; a model that it needs is closed
    again.
    """
    from .wiring import load_local

    with ExitStack() as models:

        def reading() -> "DepthScore":
            return read(models.enter_context(load_local(settings, progress=progress)))

        able = find_spec("torch") and find_spec("transformers") and not settings.router_only
        yield (
            reading() if kind == "read" else predicted(reading if kind == "auto" and able else None, by=settings.model)
        )
