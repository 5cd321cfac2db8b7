"""A depth plan for an adapter: which branches may leave when answers rest on given passages (G2, G13).

The same search and measure as for the bare model, on merged weights and on answers from the recipe's own sources:
search on those that were trained on, losses on the validation sources. Prompts are read at full depth here; what
gating them too costs is for a benchmark.
"""

import random
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import torch

from ..checkpoint import fingerprint, read_tensors
from ..config import DecoderConfig
from ..errors import GatedError
from ..lora import Adapter, merge
from ..model import Decoder
from ..policy import Branch, Plan
from ..tokenizer import ChatTokenizer
from ..weights import locate
from .bench import Bench
from .calibrate import losses_of, measure
from .packs import Pack
from .recipe import Recipe, Source, gather
from .samples import Sample
from .search import Search

_ROUGH = 3  # one in so many samples screens branches
_LONGEST = 12  # tokens of an answer


def samples_of(packs: Sequence[Pack], count: int, *, seed: int) -> list[Sample]:
    """`count` questions with short answers, in random order, as prompts and answers of their own."""
    found = [
        Sample(kind="grounded", prefix=[*pack.trunk, *b.ids[: -b.answer]], rest=list(b.ids[-b.answer :]))
        for pack in packs
        for b in pack.branches
        if b.answer <= _LONGEST
    ]
    random.Random(seed).shuffle(found)
    return found[:count]


def _searched(
    decoder: Decoder, samples: Sequence[Sample], config: DecoderConfig, min_depth: float, say: Callable[[str], None]
) -> list[Branch]:
    """Branches in the order in which they leave."""
    way = Search(Bench(decoder, samples[::_ROUGH]), Bench(decoder, samples), config, min_depth=min_depth)
    while way.grow():
        kind, layer = way.found.order[-1]
        say(f"depth {way.depth:5.2f}: without {kind} {layer:<3} KL {way.kl():.4f}")
    while way.settle():
        pass
    return way.found.order


@torch.inference_mode()
def plan_for(
    adapter: Path,
    recipe: Recipe,
    data: Path,
    *,
    home: Path | None = None,
    min_depth: float = 20.0,
    search: int = 60,
    held_out: int = 120,
    order: Sequence[Branch] = (),
    say: Callable[[str], None] = print,
) -> Plan:
    """A plan for the recipe's model with `adapter` in it, down to `min_depth` layers, or for the `order`
    of another search.

    `search`, `held_out`: questions that are searched on and measured on. Raises GatedError where there are too few,
    WeightsError.
    """
    folder = locate(recipe.model, home=home)
    config, weights = DecoderConfig.from_folder(folder), read_tensors(folder)
    found = Adapter.read(adapter)
    decoder = Decoder(config, merge(weights, found, model_fingerprint=fingerprint(weights)), dtype="bf16")

    def no_own(source: Source, prompts: Sequence[str]) -> Path:
        raise GatedError(f"A plan needs no answers of the model's own, such as {source.kind}.")

    grounded = Recipe(
        **{name: getattr(recipe, name) for name in ("model", "seed", "longest", "measured")},
        plain=0.0,
        validation_packs=held_out,
        sources=tuple(source for source in recipe.sources if not source.kind.startswith("own")),
    )
    train, held, _ = gather(grounded, data, ChatTokenizer(folder), end=min(config.eos), total=config.layers, own=no_own)
    searched = samples_of(train, search, seed=recipe.seed)
    unseen = samples_of(held, held_out, seed=recipe.seed)
    if not searched or not unseen:
        raise GatedError("The recipe's sources hold no short answers to calibrate on.")
    say(f"searching on {len(searched)} answers, measuring on {len(unseen)} others")
    branches = list(order) or _searched(decoder, searched, config, min_depth, say)
    rows = measure(Bench(decoder, unseen), branches, config.layers)
    return Plan.from_order(
        branches,
        losses_of(rows),
        total=config.layers,
        attention_share=config.attention_share,
        model_fingerprint=found.merged_fingerprint,
        about={
            "made": date.today().isoformat(),
            "model": folder.name,
            "adapter": found.fingerprint,
            "answers": {"search": len(searched), "held_out": len(unseen)},
            "units": "kl and grounded in nats per token against full depth, se their standard error; top1 is agreement "
            "with it; prompts read at full depth",
            "measured": rows,
        },
    )
