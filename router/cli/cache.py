"""`shoal cache`: what answers are kept on this machine, and how sure a match must be."""

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from ...cache import DepthCache
from ...rag.embed import default_embedder
from ..decider import TOTAL_WITHOUT_MODEL
from ..errors import RouterError
from ..settings import load_settings
from .ask import Json
from .output import note, out, print_json

_DEPTHS = ("min_depth", "max_depth", "avg_latency", "count")

cache = typer.Typer(help="Answer cache: what is kept, thresholds, export.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(cache, name="cache")


def _opened() -> DepthCache:
    settings = load_settings()
    return DepthCache(settings.redis_url, cold_path=settings.cold_path, total=TOTAL_WITHOUT_MODEL)


@cache.command()
def stats(tenant: str = "default", json: Json = False) -> None:
    """What Redis holds per prompt (depths and latency), and how many answers the log on disk can bring back."""
    with _opened() as opened:
        cold = opened.cold()
        found: dict[str, Any] = {
            "redis": opened.stats()["redis"],
            "logged": sum(1 for _ in cold.entries()) if cold else 0,
            "prompts": dict(opened.depth_table(tenant)),
        }
    if json:
        print_json(found)
        return
    note(f"Redis: {found['redis'] or 'none'}; answers logged on disk: {found['logged']}")
    if found["prompts"]:
        table = Table("prompt", *(Column(name, justify="right") for name in _DEPTHS), box=None)
        for key, depths in found["prompts"].items():
            table.add_row(key[:16], *(f"{depths[name]:g}" for name in _DEPTHS))
        out.print(table)


@cache.command()
def export(
    target: Annotated[Path, typer.Argument(help="A .jsonl file, or .parquet with pyarrow.")], json: Json = False
) -> None:
    """Write every logged request to a file."""
    with _opened() as opened:
        cold = opened.cold()
        rows = cold.export(target) if cold else 0
    if json:
        print_json({"rows": rows, "file": str(target)})
    else:
        note(f"{rows} requests in {target}")


@cache.command()
def calibrate(
    pairs: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL: stored, asked, same.")],
    budget: Annotated[float, typer.Option(min=0.0, max=1.0, help="False hits allowed per look-up.")] = 0.01,
    json: Json = False,
) -> None:
    """Fit the threshold of semantic hits to your own question pairs, and say what recall that costs."""
    from ...cache.trial import Pair
    from ...cache.trial import calibrate as fit

    rows = []
    for number, line in enumerate(pairs.read_text("utf-8").rstrip("\n").split("\n"), 1):
        try:
            raw = jsonlib.loads(line)
            rows.append(Pair(stored=str(raw["stored"]), asked=str(raw["asked"]), same=bool(raw["same"])))
        except (ValueError, KeyError, TypeError) as error:
            raise RouterError(f"{pairs}, line {number}: needs stored, asked and same ({error})") from None
    found = fit(default_embedder(), rows, budget)
    if json:
        print_json(asdict(found))
    else:
        out.print(str(found), markup=False, highlight=False)
