"""`shoal trace`: what was decided for a request and each of its tokens, and why (G7)."""

from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from ...gated_llm.policy import SAFE_LAYERS
from ...gated_llm.trace import DepthTrace, TokenTrace
from ..errors import RouterError
from ..settings import load_settings
from ..traces import Record, TraceStore
from ..traces.record import encoded
from ..traces.words import lines
from .ask import Json, printable
from .output import can_write, note, out, print_json

trace = typer.Typer(help="Traces: what was decided for each request and token, and why.", no_args_is_help=True)
LAST = "last"
_CELLS = {(True, True): "█", (True, False): "▀", (False, True): "▄", (False, False): "·"}
_LABEL = 18  # cells of a row's text


def register(app: typer.Typer) -> None:
    app.add_typer(trace, name="trace")


@trace.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 20,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    json: Json = False,
) -> None:
    """The requests that are kept, the newest first."""
    store = _store()
    rows = store.newest(tenant=tenant, limit=limit) if Path(store.path).exists() else []
    store.close()
    if json:
        print_json(rows)
        return
    for row in rows:
        depth = f"depth {row['depth']:g}/{row['total']}"
        out.print(_plain("  ".join((row["id"], _when(row["at"]), row["tenant"], row["route"], depth, row["mode"]))))
    if not rows:
        note('nothing is kept yet: `shoal ask`, `chat` and `serve` keep traces unless the setting trace is "off"')


@trace.command()
def show(
    which: Annotated[str, typer.Argument(metavar="ID|FILE", help='A request\'s id, "last", or a saved trace.')],
    html: Annotated[Path | None, typer.Option(help="Write one page that opens anywhere.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Write it as PDF.")] = None,
    base64: Annotated[bool, typer.Option("--base64", help="Print base64 of the JSON.")] = False,
    rows: Annotated[int, typer.Option(min=1, help="At most so many rows of the terminal's map.")] = 60,
    json: Json = False,
) -> None:
    """Why a request went where it did and, of a full trace, why each layer ran or was skipped."""
    for file in (html, pdf):
        if file is not None:
            can_write(file)
    record = _found(which)
    if html is not None or pdf is not None:
        _write(record, html, pdf)
    if json:
        print_json(record.to_dict())
    elif base64:
        out.print(encoded(record.to_dict()), markup=False, highlight=False, soft_wrap=True)
    elif html is None and pdf is None:
        _print(record, rows)


def _store() -> TraceStore:
    from ..wiring import open_traces

    return open_traces(load_settings())


def _found(which: str) -> Record:
    """The record in the file of that name, else the one the store has by that id."""
    if Path(which).is_file():
        return Record.read(Path(which).read_text("utf-8", errors="replace"))
    store = _store()
    try:
        record = None
        if Path(store.path).exists():
            newest = store.newest(limit=1) if which == LAST else []
            record = store.get(newest[0]["id"] if newest else which, tenant=None)
    finally:
        store.close()
    if record is None:
        raise RouterError(
            f"no trace has the id {printable(which[:80])!r}, and no file is called that: `shoal trace list`"
        )
    return record


def _write(record: Record, html: Path | None, pdf: Path | None) -> None:
    from ..traces.page import page
    from ..traces.pdf import write_pdf

    text = page(record)
    if html is not None:
        html.write_text(text, "utf-8")
        note(f"written: {html}")
    if pdf is not None:
        write_pdf(text, pdf)
        note(f"written: {pdf}")


def _print(record: Record, most: int) -> None:
    trace, depth = record.trace, record.trace["depth"]
    tier = f", cache {trace['cache']['tier']}" if trace["cache"]["tier"] else ""
    facts = {
        "trace": f"{record.id}, {_when(record.at)}, mode {record.mode.value}",
        "route": f"{trace['route']}{tier}",
        "why": "; ".join(map(str, trace["decision"].get("reasons", ()))),
        "budget": f"{trace['decision']['budget']:g} of {depth['total']} layers, bucket {trace['decision']['bucket']}",
        "depth": f"at most {depth['max']:g}, mean {depth['mean']:.4g} of {depth['total']}; prompt {depth['prefill']:g}",
        "cost": f"{trace['layer_tokens']:g} layer-tokens, {trace['latency_ms']:.0f} ms",
        "passages": f"{len(trace['passages']['kept'])} kept, {len(trace['passages']['dropped'])} dropped",
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if out.is_terminal:
            grid.add_row(Text(name, style="dim"), _plain(value))
        else:  # a line each, however long, for what reads them
            out.print(_plain(f"{name:<10}{value}"))
    if out.is_terminal:
        out.print(grid)
    if record.tokens is None:
        note('no tokens in it: ask with trace "full" (SHOAL_TRACE=full) to see every layer of every token')
    else:
        _print_tokens(record.tokens, most)


def _print_tokens(trace: DepthTrace, most: int) -> None:
    out.print()
    ruler = "".join(f"{layer:<5}" for layer in range(0, trace.total, 5))[: trace.total]
    out.print(Text(" " * (_LABEL + 1) + ruler, style="dim"))
    runs = [list(run) for _, run in groupby(trace.tokens, key=lambda token: token.branches)]
    for run in runs[:most]:
        out.print(_strip(trace, run))
    if len(runs) > most:
        note(f"… {len(runs) - most} more rows: --rows {len(runs)}, or --html")
    out.print(Text("█ ran  ▀ attention only  ▄ MLP only  · skipped; the last layers always run", style="dim"))
    out.print()
    found = lines(trace)
    for line in found:
        out.print(_plain(str(line)))
    if not found:
        out.print("nothing was skipped: every branch ran for every token")


def _strip(trace: DepthTrace, run: list[TokenTrace]) -> Text:
    """One row for tokens in a row whose branches did the same."""
    token = run[0]
    text = Text(_label("".join(each.token for each in run)) + " ")
    for layer in range(trace.total):
        ran = token.decision(layer, "attention").ran, token.decision(layer, "mlp").ran
        safe = layer >= trace.total - SAFE_LAYERS
        text.append(_CELLS[ran], style="yellow" if safe else "cyan" if any(ran) else "dim")
    text.append(f" {token.depth:g}" + (f"  {len(run)} tokens" if len(run) > 1 else ""), style="dim")
    return text


def _label(text: str) -> str:
    seen = printable(text.replace("\n", "⏎").replace("\t", "⇥")) or "·"
    return set_cell_size(seen, _LABEL) if cell_len(seen) <= _LABEL else set_cell_size(seen, _LABEL - 1) + "…"


def _plain(value: Any) -> Text:
    """Text that is neither markup nor able to drive the terminal."""
    return Text(printable(str(value)))


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
