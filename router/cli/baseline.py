"""`shoal baseline`: what is normal here, and whether it still is."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..baseline import Baseline, sample_queries
from ..baseline import compare as compare_baselines
from ..baseline import record as record_baseline
from ..baseline import rules as alert_rules
from ..conversation import skip_rate
from ..errors import RouterError
from ..settings import load_settings
from .ask import Json, router_for
from .output import can_write, note, out, print_json, progress_bar

baseline = typer.Typer(help="Baselines: record, compare, alert rules.", no_args_is_help=True)
Queries = Annotated[
    Path | None, typer.Argument(exists=True, dir_okay=False, help="One query a line; without it, a bundled sample.")
]
FromLog = Annotated[bool, typer.Option("--from-log", help="Ask again what the cold log holds (hard requests only).")]
Saved = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A recorded baseline.")]


def register(app: typer.Typer) -> None:
    app.add_typer(baseline, name="baseline")


def _recorded(queries: Path | None, n: int, *, from_log: bool) -> Baseline:
    settings = load_settings()
    prompts = _logged(settings.cold_path) if from_log else _lines(queries) if queries else sample_queries()
    router = router_for(settings)
    try:
        llm = router.llm
        least = llm.min_depth if llm else float(router.total)
        with progress_bar() as progress:
            return record_baseline(
                router.ask,
                prompts,
                n=n,
                model=router.model_name,
                skip_rate=lambda depth: skip_rate(depth, total=router.total, min_depth=least),
                progress=lambda done, total: progress("asking", done, total),
            )
    finally:
        router.close()


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text("utf-8").split("\n") if line.strip()]


def _logged(path: Path | None) -> list[list[dict[str, str]]]:
    from ...cache.cold import ColdLog

    if path is None or not path.is_dir():
        raise RouterError("there is no cold log: set SHOAL_COLD_LOG=true and serve, or name a file of queries")
    log = ColdLog(path)
    try:
        kept = (record["request"] for record in log.requests())
        return [request["messages"] for request in kept if request and request.get("messages")]
    finally:
        log.close()


@baseline.command()
def record(
    queries: Queries = None,
    target: Annotated[Path, typer.Option("--out", help="Where the baseline goes.")] = Path("baseline.json"),
    n: Annotated[int, typer.Option(min=1)] = 1000,
    rules_to: Annotated[Path | None, typer.Option("--rules", help="Also write the alert rules, here.")] = None,
    from_log: FromLog = False,
    json: Json = False,
) -> None:
    """Ask recorded queries and keep how deep, how fast and by which route they were answered."""
    for file in (target, rules_to):
        if file is not None:
            can_write(file)
    made = _recorded(queries, n, from_log=from_log)
    made.save(target)
    if rules_to is not None:
        rules_to.write_text(alert_rules(made), "utf-8")
    if json:
        print_json(asdict(made))
    else:
        note(f"{made.n} queries in {target}")


@baseline.command()
def compare(
    was: Saved,
    queries: Queries = None,
    n: Annotated[int, typer.Option(min=1)] = 1000,
    from_log: FromLog = False,
    json: Json = False,
) -> None:
    """Ask again and say what moved; exit code 1 when something did."""
    moved = compare_baselines(Baseline.load(was), _recorded(queries, n, from_log=from_log))
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
