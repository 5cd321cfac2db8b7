"""`shoal baseline`: what is normal here, and whether it still is."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..baseline import Baseline
from ..baseline import compare as compare_baselines
from ..baseline import record as record_baseline
from ..baseline import rules as alert_rules
from ..conversation import skip_rate
from ..settings import load_settings
from .ask import Json, router_for
from .output import note, out, print_json, progress_bar

baseline = typer.Typer(help="Baselines: record, compare, alert rules.", no_args_is_help=True)
Queries = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="One query a line.")]
Saved = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A recorded baseline.")]


def register(app: typer.Typer) -> None:
    app.add_typer(baseline, name="baseline")


def _recorded(queries: Path, n: int) -> Baseline:
    router = router_for(load_settings())
    try:
        llm = router.llm
        least = llm.min_depth if llm else float(router.total)
        with progress_bar() as progress:
            return record_baseline(
                router.ask,
                _lines(queries),
                n=n,
                model=router.model_name,
                skip_rate=lambda depth: skip_rate(depth, total=router.total, min_depth=least),
                progress=lambda done, total: progress("asking", done, total),
            )
    finally:
        router.close()


def _lines(path: Path) -> Iterator[str]:
    return (line for line in path.read_text("utf-8").splitlines() if line.strip())


@baseline.command()
def record(
    queries: Queries,
    target: Annotated[Path, typer.Option("--out", help="Where the baseline goes.")] = Path("baseline.json"),
    n: Annotated[int, typer.Option(min=1)] = 1000,
    json: Json = False,
) -> None:
    """Ask recorded queries and keep how deep, how fast and by which route they were answered."""
    made = _recorded(queries, n)
    made.save(target)
    if json:
        print_json(asdict(made))
    else:
        note(f"{made.n} queries in {target}")


@baseline.command()
def compare(was: Saved, queries: Queries, n: Annotated[int, typer.Option(min=1)] = 1000, json: Json = False) -> None:
    """Ask again and say what moved; exit code 1 when something did."""
    moved = compare_baselines(Baseline.load(was), _recorded(queries, n))
    if json:
        print_json([asdict(each) for each in moved])
    for each in [] if json else moved:
        out.print(f"{each.what}: {each.was:.4g} -> {each.now:.4g}", markup=False, highlight=False)
    if moved:
        raise typer.Exit(1)


@baseline.command()
def rules(saved: Saved, json: Json = False) -> None:
    """Prometheus alert rules at mean ± 2 sigma; JSON, which Prometheus reads as the YAML it is."""
    text = alert_rules(Baseline.load(saved))
    if json:
        print_json(text)
    else:
        out.print(text, end="", markup=False, highlight=False)
