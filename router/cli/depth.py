"""`shoal gates`: which branches of a model may be left out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ...gated_llm.policy import Branch
from ..settings import Settings, load_settings
from .ask import Json, Model
from .feedback import recalibrate, rollback, versions
from .output import note, out, print_json

gates = typer.Typer(help="Depth plans: which branches may be left out.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    for command in (recalibrate, rollback, versions):
        gates.command()(command)
    app.add_typer(gates, name="gates")


@gates.command()
def show(model: Model = None, json: Json = False) -> None:
    """The depth plan of a model: depth and measured loss after each branch that leaves."""
    from ..wiring import load_local

    llm = load_local(load_settings(model=model))
    points = [{"drop": list(p.drop), "depth": p.depth, "loss": p.loss} for p in llm.plan.points]
    if json:
        print_json({"model": llm.name, "total": llm.total, "min_depth": llm.min_depth, "points": points})
        return
    table = Table("without", "depth", "loss, nats per token")
    for point in llm.plan.points:
        table.add_row(f"{point.drop[0]} {point.drop[1]}", f"{point.depth:.2f}", f"{point.loss:.4f}")
    out.print(table)
    note(f"auto (at most {100 * llm.quality:g}% of likelihood) is {llm.resolve_budget('auto').depth:g} layers")


@gates.command()
def calibrate(
    data: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="Running text in the model's languages.")],
    prompts: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="What your users ask, one a line or JSON lines.")
    ] = None,
    model: Model = None,
    budget_quality: Annotated[str, typer.Option(help="Likelihood that may be lost; what that buys is said.")] = "0.3%",
    min_share: Annotated[float, typer.Option(min=0.1, max=0.99, help="Go down to this share of the layers.")] = 0.5,
    signals: Annotated[
        bool, typer.Option("--signals", help="Then fit the thresholds by which depth is chosen token by token.")
    ] = False,
    disliked: Annotated[
        bool, typer.Option("--disliked", help="Let branches leave later that answers with a thumbs-down had left out.")
    ] = False,
    json: Json = False,
) -> None:
    """Find out which branches of a model cost least to leave out, and keep the plan beside the model.

    Takes minutes; a run that was broken off goes on where it stopped.
    """
    from math import log1p

    from ...gated_llm.train.calibrate import calibrate as run
    from ...gated_llm.train.samples import read_prompts
    from ...gated_llm.weights import locate

    quality = _share(budget_quality)
    if signals and prompts is None:
        raise typer.BadParameter("--signals needs --prompts: thresholds are fitted on the model's own answers too.")
    settings = load_settings(model=model)
    folder = locate(settings.model, home=settings.home)
    progress_file, path = folder / "calibration.json", folder / "plan.json"
    text, asked = data.read_text("utf-8", errors="replace"), read_prompts(prompts, 200) if prompts else []
    if signals:  # what cannot end well is told before the long search
        _check_signals(folder, asked)
    marks = _marks(settings) if disliked else {}
    plan = run(
        folder,
        marks=marks,
        text=text,
        prompts=asked,
        quality=quality,
        min_share=min_share,
        progress_file=progress_file,
        say=note,
    )
    plan.write(path)
    progress_file.unlink(missing_ok=True)
    rules = _fit_signals(folder, text, asked) if signals else None
    if not json:
        note(f"{len(plan.points)} points down to depth {plan.min_depth:g} in {path}")
        return
    reached = {"budget_quality": quality, "depth": plan.depth_at(plan.point_within(-log1p(-quality)))}
    files = {"plan": str(path), "signals": None if rules is None else str(rules)}
    size = {"points": len(plan.points), "min_depth": plan.min_depth, "total": plan.total}
    print_json(files | size | reached | {"warnings": (plan.about or {})["warnings"]})


def _marks(settings: Settings) -> Mapping[Branch, float]:
    """Branches that stand out in the kept traces of answers with a thumbs-down; says which."""
    from ...gated_llm.marks import marks_of
    from ..wiring import open_traces

    store = open_traces(settings)
    try:
        found = marks_of(store.answers())
    finally:
        store.close()
    note(f"marked by thumbs-down: {found}" if found.branches else f"nothing is marked: {found.why}")
    return found.branches


def _check_signals(folder: Path, prompts: list[str]) -> None:
    from ...gated_llm.config import DecoderConfig
    from ...gated_llm.train.signals import check_kernel

    if len(prompts) < 2:
        raise typer.BadParameter(f"--signals needs at least two prompts; --prompts has {len(prompts)}")
    check_kernel(DecoderConfig.from_folder(folder))


def _fit_signals(folder: Path, text: str, prompts: list[str]) -> Path | None:
    """Thresholds for the plan that lies in `folder`, written beside it; None where no token could do with less."""
    from ...gated_llm.train.signals import calibrate_signals

    path = folder / "signals.json"
    rules = calibrate_signals(folder, text=text, prompts=prompts, say=note)
    if not rules.points:
        path.unlink(missing_ok=True)  # older ones were fitted to another plan
        note("no signal tells which tokens can do with less: no thresholds are kept")
        return None
    rules.write(path)
    note(f"thresholds in {path}: policy signals or hybrid uses them")
    return path


def _share(text: str) -> float:
    """A share given as "0.3%"."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not (text.endswith("%") and 0 <= share < 1):
        raise typer.BadParameter(f"{text!r} is no share: give it in percent, from 0% up to 100%, such as 0.3%.")
    return share


@gates.command()
def train(
    config: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="A training recipe (YAML).")] = None,
    lora: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Your own examples: JSON lines with prompt and answer."),
    ] = None,
    name: Annotated[str, typer.Option(help="What the adapter is called from then on.")] = "own",
    out: Annotated[Path | None, typer.Option(help="Checkpoints and curve; by default beside the model.")] = None,
    data: Annotated[
        Path, typer.Option(envvar="SHOAL_DATA", help="Folder of the recipe's data sets, see docs/data.md.")
    ] = Path("../shared/data"),
    resume: Annotated[bool, typer.Option(help="Go on from the last checkpoint.")] = False,
    model: Model = None,
    json: Json = False,
) -> None:
    """Train an adapter, learned gates or both, as the recipe says, and keep them beside the model.

    Says what it will take before it starts. Give either --config or --lora. Gates that were there stay as a version.
    """
    from dataclasses import replace

    from ...gated_llm.gates import Gates
    from ...gated_llm.train.adapter import train_adapter
    from ...gated_llm.train.recipe import Recipe, Source
    from ...gated_llm.versions import Versions
    from ...gated_llm.weights import locate

    if (config is None) == (lora is None):
        raise typer.BadParameter("give either --config RECIPE.yaml or --lora EXAMPLES.jsonl")
    settings = load_settings(model=model)
    if config is not None:
        recipe = Recipe.read(config)
        recipe = recipe if model is None else replace(recipe, model=model)
    else:
        assert lora is not None
        recipe = Recipe(model=settings.model, sources=(Source(kind="lines", path=str(lora.resolve())),), steps=300)
    folder = locate(recipe.model, home=settings.home)
    made = train_adapter(recipe, data, out or folder / f"{name}.training", home=settings.home, resume=resume, say=note)
    kept: dict[str, str] = {}
    for kind, path in (("adapter", made.adapter), ("gates", made.gates)):
        if path is not None:
            to = folder / (f"{kind}.safetensors" if made.adapter is None else f"{name}.{kind}.safetensors")
            if kind == "gates":
                Versions(to).adopt(Gates.read(path), reason="trained", figures={})
            else:
                to.write_bytes(path.read_bytes())
            kept[kind] = str(to)
            note(f"{to}, {to.stat().st_size / 1e6:.2f} MB")
    if json:
        print_json(kept)
