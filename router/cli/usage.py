"""`shoal usage`: who used how many layers, and what it costs."""

import sqlite3
import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from ..accounting import Ledger
from ..errors import RouterError
from ..prices import PriceTable
from ..settings import load_settings
from ..usage import UsageReport, to_csv, to_html
from .ask import Json
from .output import can_write, note, out, print_json

usage = typer.Typer(help="What the service has booked.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(usage, name="usage")


@usage.command()
def report(
    by: Annotated[str, typer.Option(help="tenant, route, bucket, tier, account, day; several with commas.")] = "tenant",
    days: Annotated[float | None, typer.Option(min=0, help="Only the last so many days.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    form: Annotated[Literal["table", "csv", "html"], typer.Option("--format")] = "table",
    target: Annotated[Path | None, typer.Option("--out", help="A file instead of the terminal.")] = None,
    json: Json = False,
) -> None:
    """Layer-tokens, their price beside plain token pricing, and how deep answers were.

    Prices are the table `prices` of shoal.toml; without one, a token at full depth costs as much as a plain token.
    """
    settings = load_settings()
    if not settings.ledger_path.exists():
        raise RouterError(f"nothing booked yet: {settings.ledger_path} is made by `shoal serve`")
    groups, since = [part.strip() for part in by.split(",")], time.time() - days * 86_400 if days else 0.0
    if target is not None:
        can_write(target)
    try:
        with Ledger(settings.ledger_path) as ledger:
            made = UsageReport.read(ledger, groups, PriceTable.of(settings.prices), tenant=tenant, since=since)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except sqlite3.Error as error:
        raise RouterError(f"{settings.ledger_path} cannot be read ({error}): move it away") from None
    if json:
        print_json(made.rows)
    elif form == "table":
        _print(made)
    else:
        text = to_csv(made) if form == "csv" else to_html(made)
        if target is None:
            out.print(text, end="", markup=False, highlight=False)
        else:
            target.write_text(text, "utf-8", newline="")
            note(f"report in {target}")


def _print(made: UsageReport) -> None:
    table = Table(*made.heads)
    for line in made.lines:
        table.add_row(*line)
    out.print(table)
    out.print(made.saved, markup=False, highlight=False)
    if made.heat.rows:
        out.print(f"depth of answers: 0, then layers {made.heat.columns[1]} to {made.heat.columns[-1]}, and requests",
                  markup=False, highlight=False)  # fmt: skip
    for text in made.heat.lines():
        out.print(text, markup=False, highlight=False)
