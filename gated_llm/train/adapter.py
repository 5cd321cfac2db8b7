"""Runs a training recipe from its data to what ships: an adapter, learned gates, or both (G1, G13).

One recipe file decides everything. Gates are measured on held-out text at several thrifts, so that a request's quality
setting can choose one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import fingerprint, read_tensors
from ..config import DecoderConfig
from ..engine import GatedLLM
from ..errors import GatedError
from ..gates import Gates
from ..lora import TARGETS, Adapter
from ..passes import KernelModel
from ..policy import Plan
from ..served import find_plan
from ..tokenizer import ChatTokenizer
from ..weights import locate
from .gate_points import draw_alphas, held_samples, measured
from .packs import Pack
from .recipe import Recipe, Source, gather, own_answers
from .run import CHECKPOINT, Run, Say

_MEASURED = 60  # held-out answers of each kind of work


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Files that a run has made; None for what its recipe does not train."""

    adapter: Path | None
    gates: Path | None


def started(path: Path, model: str, rank: int) -> Mapping[str, Tensor]:
    """The tensors of an adapter to go on from. Raises WeightsError, or GatedError where model or rank is another."""
    found = Adapter.read(path)
    if (found.model_fingerprint, found.rank) != (model, rank):
        raise GatedError(
            f"{path} is of model {found.model_fingerprint} and rank {found.rank}, the recipe's are {model} and {rank}."
        )
    return found.tensors


def train_adapter(
    recipe: Recipe, data: Path, out: Path, *, home: Path | None = None, resume: bool = False, say: Say = print
) -> Trained:
    """Runs a recipe with sources under `data`; returns files in `out`, beside checkpoint and curve.

    With `resume` it goes on from the folder's checkpoint. Raises GatedError (data, recipe), WeightsError.
    """
    if recipe.gates_only and not recipe.gated:
        raise GatedError("A recipe with gates_only trains nothing unless `gated` is more than 0.")
    folder = locate(recipe.model, home=home)
    config, tokenizer = DecoderConfig.from_folder(folder), ChatTokenizer(folder)
    weights: Mapping[str, Tensor] = read_tensors(folder)
    model = fingerprint(weights)
    plan = find_plan(folder, config, model)
    out.mkdir(parents=True, exist_ok=True)
    if not resume and (out / CHECKPOINT).exists():
        raise GatedError(f"{out} holds a run already: go on with --resume, or give another folder.")

    def own(source: Source, prompts: Sequence[str]) -> Path:
        kept = out / f"{source.kind}-{Path(source.path).stem}.jsonl"
        if not kept.exists():
            say(f"the model answers {len(prompts)} prompts of {source.path} itself")
            with GatedLLM.load(folder) as llm:
                own_answers(llm, prompts, kept)
        return kept

    train, held, counts = gather(recipe, data, tokenizer, end=min(config.eos), total=config.layers, own=own)
    for name, count in counts.items():
        say(f"{count:6} questions from {name}")
    dtype = torch.bfloat16 if recipe.half else torch.float32
    run = Run(recipe, config, weights, plan, train, held, out, say=say, dtype=dtype)
    if resume and run.resume():
        say(f"going on from step {run.state['step']}")
    elif recipe.start:
        run.start(started(Path(recipe.start), model, recipe.rank))
    say(run.estimate())
    tensors = run.train()
    about, path = run.about(counts), out / "adapter.safetensors"
    if not recipe.gates_only:
        adapter = _written(run, tensors, model, {"targets": list(TARGETS), **about}, path, say)
        model, weights = adapter.merged_fingerprint, adapter.merged(weights)
    made = None if recipe.gates_only else path
    if run.gates is None:
        return Trained(adapter=made, gates=None)
    weight, bias, slope = (value.numpy() for value in run.trained_gates().values())
    gates = Gates(model_fingerprint=model, floor=run.gates.floor, weight=weight, bias=bias, slope=slope, about=about)
    return Trained(adapter=made, gates=_with_points(gates, config, weights, plan, held, out, made is not None, say))


def _written(
    run: Run, tensors: Mapping[str, Tensor], model: str, about: Mapping[str, Any], path: Path, say: Say
) -> Adapter:
    """The adapter as its file holds it, rounded."""
    plans, rank = (run.plan.fingerprint,), run.recipe.rank
    Adapter(model_fingerprint=model, plans=plans, rank=rank, tensors=tensors, about=about).write(path)
    say(f"{path}: {path.stat().st_size / 1e6:.2f} MB after {run.state['step']} steps")
    return Adapter.read(path)


def _with_points(
    gates: Gates, config: DecoderConfig, weights: Mapping[str, Tensor], plan: Plan, held: Sequence[Pack], out: Path,
    merged: bool, say: Say,
) -> Path:  # fmt: skip
    """The gates' file, with what they do on held-out answers where the native kernel can measure it."""
    path = out / "gates.safetensors"
    model = KernelModel.load(config, weights, bits=8 if merged else None, reader=False)
    if model is None:
        say("no native kernel here: the gates are not measured, so no request chooses them by itself")
    else:
        gates = measured(gates, model.kernel, held_samples(held, _MEASURED), plan)
        model.close()
        draw_alphas(gates.about["alphas"], out / "alphas.png")
        for point in gates.points:
            shown = ", ".join(
                f"{kind} {point.depth[kind]:.2f} layers {point.loss[kind]:.4f} nats" for kind in point.depth
            )
            say(f"thrift {point.thrift:.2f}: {shown}")
    gates.write(path)
    say(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    return path
