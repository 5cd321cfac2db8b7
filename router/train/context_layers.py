"""Which layers' attention carries long-range context (R5): `python -m shoal.router.train.context_layers`.

Leaving out the attention of one layer costs likelihood. The same tokens are judged after a long and a short context; a
layer matters for long-range context where leaving it out costs clearly more after the long one: by more than twice the
standard error over windows. As in decoding, what comes before is read in full, and only the judged tokens go without.
Only layers that the model's plan may skip are measured. Knows no router. Under a minute on one core.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...gated_llm.checkpoint import fingerprint, read_tensors
from ...gated_llm.config import DecoderConfig
from ...gated_llm.model import Decoder, RunMask
from ...gated_llm.policy import SAFE_LAYERS
from ...gated_llm.served import find_plan
from ...gated_llm.tokenizer import ChatTokenizer
from ...gated_llm.train.samples import Sample, batch_of
from ...gated_llm.weights import DEFAULT_MODEL, locate
from ..experience import MEASURED
from .run import default_data

LONG, SHORT, JUDGED = 448, 32, 64  # tokens of context, and of each window that are judged
WINDOWS, BATCH = 12, 6
SKIP = 20_000  # tokens at the start of the text that benchmarks measure on


def without(layer: int, layers: int) -> RunMask:
    """Everything runs but the attention of one layer."""
    return tuple((i != layer, True) for i in range(layers))


@torch.inference_mode()
def losses(decoder: Decoder, ids: list[int], context: int, masks: list[RunMask]) -> Tensor:
    """Mean negative log-likelihood, nats per token, [masks, windows], of each window's last JUDGED tokens after
    `context` tokens."""
    size = LONG + JUDGED
    windows = [ids[at + size - JUDGED - context : at + size] for at in range(0, len(ids) - size + 1, size)]
    rows: list[list[Tensor]] = [[] for _ in masks]
    for at in range(0, len(windows), BATCH):
        batch = batch_of([Sample(kind="text", prefix=w[:context], rest=w[context:]) for w in windows[at : at + BATCH]])
        cache = decoder.cache(context + JUDGED, batch=len(batch.prefix))
        decoder.forward(batch.prefix, batch.prefix_at, cache)
        mark = cache.mark()
        for mask, row in zip(masks, rows, strict=True):
            cache.rewind(mark)
            hidden = decoder.forward(batch.rest, batch.rest_at, cache, mask).flatten(0, 1)
            loss = cross_entropy(decoder.logits(hidden), batch.targets.flatten(), reduction="none")
            row.append(loss.view(len(batch.prefix), -1).mean(1))
    return torch.stack([torch.cat(row) for row in rows])


def measure(decoder: Decoder, ids: list[int], layers: Sequence[int]) -> list[dict[str, Any]]:
    """Per layer, what leaving out its attention costs after a short and after a long context."""
    everything: RunMask = ((True, True),) * decoder.config.layers
    masks = [everything, *(without(layer, decoder.config.layers) for layer in layers)]
    short, long = (losses(decoder, ids, context, masks) for context in (SHORT, LONG))
    found = []
    for i, layer in enumerate(layers, 1):
        near, far = short[i] - short[0], long[i] - long[0]
        rise = far - near
        error = float(rise.std() / len(rise) ** 0.5)
        found.append(
            {
                "layer": layer,
                "short": round(float(near.mean()), 4),
                "long": round(float(far.mean()), 4),
                "more": round(float(rise.mean()), 4),
                "se": round(error, 4),
                "matters": bool(rise.mean() > 2 * error),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--out", type=Path, default=MEASURED)
    args = parser.parse_args()
    folder = locate(args.model)
    config, weights = DecoderConfig.from_folder(folder), read_tensors(folder)
    text = (default_data() / "wikitext2/valid.txt").read_text("utf-8")
    ids = ChatTokenizer(folder).encode_text(text)[SKIP : SKIP + WINDOWS * (LONG + JUDGED)]
    plan = find_plan(folder, config, fingerprint(weights))
    layers = sorted(layer for kind, layer in (point.drop for point in plan.points) if kind == "attention")
    found = measure(Decoder(config, weights, dtype="bf16"), ids, layers or range(config.layers - SAFE_LAYERS))
    for row in found:
        print(row)
    kept: dict[str, Any] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {"form": 1, "models": {}}
    kept["models"][fingerprint(weights)] = {
        "model": folder.name,
        "data": f"wikitext2/valid.txt, {WINDOWS} windows, {JUDGED} tokens after {SHORT} and after {LONG}",
        "units": "nats per token lost without the layer's attention",
        "layers": [row["layer"] for row in found if row["matters"]],
        "measured": found,
    }
    half = args.out.with_suffix(".tmp")
    half.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    half.chmod(0o644)
    os.replace(half, args.out)
    print(f"{args.out}: layers {kept['models'][fingerprint(weights)]['layers']}")


if __name__ == "__main__":
    main()
