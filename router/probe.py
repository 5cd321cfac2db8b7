"""The layer probe (G12): `<LAYER_TEST:17>` in a prompt asks whether layer 17 ran. Only where it is switched on.

The mark is taken out before anything reads the prompt; the answer's trace then says what became of the layer. Pure.
"""

import re
from dataclasses import replace

from .decision import Request, Trace
from .errors import InvalidRequest

_MARK = re.compile(r"[ \t]?<LAYER_TEST:(\d{1,4})>")
STEP = "probe"


def take_probes(request: Request, total: int) -> tuple[Request, tuple[int, ...]]:
    """The request without the marks of its last turn, and the layers they name, in order.

    Raises `InvalidRequest` for a layer that the model of `total` layers does not have, or when nothing else was said.
    """
    layers = tuple(dict.fromkeys(int(number) for number in _MARK.findall(request.text)))
    if not layers:
        return request, ()
    if max(layers) >= total:
        raise InvalidRequest(f"LAYER_TEST:{max(layers)} is no layer here: they are 0 to {total - 1}", "messages")
    text = _MARK.sub("", request.text).strip()
    if not text:
        raise InvalidRequest("the request is empty but for its layer tests: ask something", "messages")
    return replace(request, messages=(*request.history, replace(request.messages[-1], content=text))), layers


def probed(trace: Trace) -> dict[int, str]:
    """`pruned` or `active` for every layer that the request asked about; without a model's run all are pruned."""
    states = trace.depth.get("layers", {})
    asked = [layer for step in trace.steps if step.name == STEP for layer in step.detail["layers"]]
    return {layer: states.get(f"layer_{layer}", "pruned") for layer in asked}
