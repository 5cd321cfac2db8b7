"""`shoal cache`: what answers are kept, refilling and replaying them, and how sure a match must be."""

import json as jsonlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from ...cache import DepthCache
from ...cache.cold import ColdLog
from ...gated_llm.errors import GatedError
from ...rag.embed import default_embedder
from ..decider import TOTAL_WITHOUT_MODEL
from ..decision import CacheControl
from ..errors import RouterError
from ..settings import load_settings
from .ask import Json, printable, router_for
from .output import can_write, note, out, print_json

_DEPTHS = ("min_depth", "max_depth", "avg_latency", "count")
_REPLAYED = ("max_tokens", "temperature", "top_p", "seed", "profile", "schema")
Newest = Annotated[int | None, typer.Option(min=1, help="Only so many, the newest.")]

cache = typer.Typer(help="Answer cache: what is kept, refill, replay, export, thresholds.", no_args_is_help=True)


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
    can_write(target)
    with _opened() as opened:
        cold = opened.cold()
        rows = cold.export(target) if cold else 0
    if json:
        print_json({"rows": rows, "file": str(target)})
    else:
        note(f"{rows} requests in {target}")


@cache.command()
def rehydrate(newest: Newest = None, json: Json = False) -> None:
    """Fill Redis from the log on disk, after its data was lost."""
    settings = load_settings()
    if settings.redis_url is None or settings.cold_path is None:
        raise RouterError("refilling needs a Redis (SHOAL_REDIS_URL) and the log on disk (SHOAL_COLD_LOG)")
    with _opened() as opened:
        taken, found = opened.rehydrate(newest), opened.stats()["entries"]
    if taken < found:
        raise RouterError(f"Redis took {taken} of {found} answers; see that it runs and has room, then try again")
    if json:
        print_json({"entries": taken})
    else:
        note(f"{taken} answers in Redis")


@cache.command()
def replay(
    newest: Newest = 20,
    router_only: Annotated[bool | None, typer.Option("--router-only", help="No language model.")] = None,
    json: Json = False,
) -> None:
    """Ask logged requests again, past the cache, and show the answers that changed; exit code 1 where any did."""
    settings = load_settings(router_only=router_only)
    if settings.cold_path is None:
        raise RouterError("no requests are kept on disk: set cold_log (SHOAL_COLD_LOG) to true, then ask again")
    rows = [row for row in ColdLog(settings.cold_path).requests() if row["request"]][-(newest or 0) :]
    router, found = router_for(settings), []
    try:
        for row in rows:
            try:
                text, failed = router.ask(row["request"]["messages"], **_fields(row)).text, ""
            except (RouterError, GatedError) as error:
                text, failed = "", str(error)
            outcome = "failed" if failed else "same" if text == row["text"] else "changed"
            found.append({"id": row["id"], "outcome": outcome, "was": row["text"], "is": failed or text})
    finally:
        router.close()
    if json:
        print_json(found)
    else:
        for each in found:
            if each["outcome"] != "same":
                shown = f"{each['outcome']} {each['id'][:16]}\n  was: {each['was']}\n  is:  {each['is']}"
                out.print(printable(shown), markup=False, highlight=False)
        counts = Counter(each["outcome"] for each in found)
        note(", ".join(f"{counts[name]} {name}" for name in ("same", "changed", "failed")))
    if any(each["outcome"] != "same" for each in found):
        raise typer.Exit(1)


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """A logged request in the words of `Router.ask`, with nothing read from the cache or kept in it."""
    asked, budget = row["request"], float(row["budget"])
    return {
        **{name: asked[name] for name in _REPLAYED if asked.get(name) is not None},
        "stop": tuple(asked["stop"]) if asked.get("stop") else None,
        "max_depth": int(budget) if budget.is_integer() else None,
        "tenant": row["tenant"],
        "cache": CacheControl(read=False, write=False),
    }


@cache.command()
def calibrate(
    pairs: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL: stored, asked, same.")],
    budget: Annotated[float, typer.Option(min=0.0, max=1.0, help="False hits allowed per look-up.")] = 0.01,
    bounded: Annotated[bool, typer.Option("--bounded", help="Hold the 95% upper bound to it, not the share.")] = False,
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
    found = fit(default_embedder(), rows, budget, bounded=bounded)
    if json:
        print_json(asdict(found))
    else:
        out.print(str(found), markup=False, highlight=False)
