"""A usage report as CSV or as one HTML page that needs nothing else (S5): what was spent, what plain token pricing
would ask for the same, and a heat map of depth. Pure: rows of the ledger in, text out; all in the page is escaped.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Self

from .accounting import Ledger
from .prices import PriceTable
from .traces.page import csp_hash, shown

_CSS = Path(__file__).parent / "traces" / "page.css"
COLUMNS = 15  # of the heat map, at most, beside the one for depth 0
SHADES = " ░▒▓█"
HEADS = {
    "requests": "requests", "prompt_tokens": "prompt", "completion_tokens": "written", "layer_tokens": "layer-tokens",
    "full_depth": "at full depth", "mean_depth": "mean depth", "cost": "cost", "plain_cost": "plain pricing",
}  # fmt: skip
NOTE = (
    "A layer-token is one token at one layer. Plain pricing asks for tokens read and written, however deep. Answers "
    "from the FAQ, the cache or by extraction have depth 0 and count no tokens on either side."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """How deep answers were: `rows` are a label and the requests per column, `columns` the layers in words."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, depths: Sequence[Mapping[str, Any]], by: str) -> Self:
        """From `Ledger.depths`: depth 0 apart, the layers in at most 15 columns of equal width."""
        total = max((int(row["total"]) for row in depths), default=0)
        width = max(1, -(-total // COLUMNS))
        edges = range(1, total + 1, width)
        columns = ("0", *(f"{low}-{min(low + width - 1, total)}" if width > 1 else str(low) for low in edges))
        counts: dict[str, list[int]] = {}
        for row in depths:
            cells = counts.setdefault(str(row[by]), [0] * len(columns))
            cells[-(-int(row["depth"]) // width)] += int(row["requests"])
        return cls(columns=columns, rows=tuple((name, tuple(cells)) for name, cells in sorted(counts.items())))

    def lines(self) -> list[str]:
        """For a terminal: one character per column, the darker the more of the row."""
        wide = max((len(name) for name, _ in self.rows), default=0)
        return [
            f"{name.rjust(wide)} |{''.join(SHADES[_step(n, cells, len(SHADES) - 1)] for n in cells)}| {sum(cells)}"
            for name, cells in self.rows
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """`rows` as `PriceTable.report` gives them, grouped by `by`; `since` in seconds since 1970, 0 for all there is."""

    by: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    heat: HeatMap
    since: float
    currency: str

    @classmethod
    def read(cls, ledger: Ledger, by: Sequence[str], prices: PriceTable, *, tenant: str | None, since: float) -> Self:
        """Raises `ValueError` for a group that the ledger does not have."""
        heat_by = by[0] if by else "day"
        return cls(
            by=tuple(by),
            rows=tuple(prices.report(ledger, by, tenant=tenant, since=since)),
            heat=HeatMap.of(ledger.depths((heat_by,), tenant=tenant, since=since), heat_by),
            since=since,
            currency=prices.currency,
        )

    @property
    def heads(self) -> list[str]:
        unit = f" {self.currency}" if self.currency else ""
        return [*self.by, *(head + unit * (name in ("cost", "plain_cost")) for name, head in HEADS.items())]

    @property
    def total(self) -> dict[str, Any]:
        """All rows as one."""
        found: dict[str, Any] = {name: sum(row[name] for row in self.rows) for name in HEADS if name != "mean_depth"}
        deep = sum(row["mean_depth"] * row["requests"] for row in self.rows)
        return {**found, "mean_depth": deep / found["requests"] if found["requests"] else 0.0}

    @property
    def lines(self) -> list[list[str]]:
        """Cells for people, the sum last."""
        every = [*self.rows, {**dict.fromkeys(self.by, ""), **self.total, **({self.by[0]: "all"} if self.by else {})}]
        rows = every if self.by and len(self.rows) > 1 else self.rows
        return [[*(str(row[name]) for name in self.by), *(_cell(name, row[name]) for name in HEADS)] for row in rows]

    @property
    def saved(self) -> str:
        """The comparison in one sentence."""
        total = self.total
        if not total["full_depth"]:
            return "No tokens were read or written by the model."
        depth = 1 - total["layer_tokens"] / total["full_depth"]
        text = f"{depth:.1%} fewer layer-tokens than the same tokens at full depth"
        if not total["plain_cost"]:
            return f"{text}."
        cost, plain = _cell("cost", total["cost"]), _cell("cost", total["plain_cost"])
        change = total["cost"] / total["plain_cost"] - 1
        return f"{text}; {cost} {self.currency} by depth, {plain} by plain token pricing ({change:+.1%}).".replace(
            "  ", " "
        )


def to_csv(report: UsageReport) -> str:
    """Full numbers, one row a group; a text that a spreadsheet would take for a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*report.by, *HEADS])
    for row in report.rows:
        writer.writerow([*(_inert(str(row[name])) for name in report.by), *(row[name] for name in HEADS)])
    return out.getvalue()


def to_html(report: UsageReport, *, now: datetime | None = None) -> str:
    """The whole page, light or dark as the reader's system is; no script, no network."""
    style = _CSS.read_text("utf-8")
    policy = f"default-src 'none'; style-src '{csp_hash(style)}'"
    made = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    since = datetime.fromtimestamp(report.since, UTC).strftime(" since %Y-%m-%d %H:%M UTC") if report.since else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Usage</title>\n<style>{style}</style></head>\n<body><main>\n<h1>Usage</h1>\n"
        f'<p>All booked requests{shown(since)}.</p>\n<p class="sum">{shown(report.saved)}</p>\n'
        f"<h2>Spent</h2>\n{_table(report)}\n<p>{shown(NOTE)}</p>\n"
        f"<h2>Depth of answers</h2>\n{_heat(report)}\n"
        f"<footer>Made by Shoal, {made}.</footer></main></body></html>\n"
    )


def _table(report: UsageReport) -> str:
    heads = "".join(f'<th scope="col">{shown(head)}</th>' for head in report.heads)
    body = "".join(
        "<tr>" + "".join(f"<td{' class=num' * (i >= len(report.by))}>{shown(cell)}</td>" for i, cell in enumerate(line))
        + "</tr>" for line in report.lines
    )  # fmt: skip
    if not body:
        return "<p>Nothing is booked.</p>"
    table = f'<table class="rows sums"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide" tabindex="0">{table}</div>'


def _heat(report: UsageReport) -> str:
    if not report.heat.rows:
        return "<p>Nothing is booked.</p>"
    heads = "".join(f'<th scope="col">{shown(column)}</th>' for column in report.heat.columns)
    rows = []
    for name, cells in report.heat.rows:
        row = "".join(f'<td class="d{_step(n, cells, 9)}">{n or ""}</td>' for n in cells)
        rows.append(f'<tr><th scope="row">{shown(name)}</th>{row}<td>{sum(cells)}</td></tr>')
    return (
        "<p>Requests by the deepest token of their answer, in layers; a stronger colour is more of the row.</p>\n"
        '<div class="wide" tabindex="0"><table class="heat">'
        f'<thead><tr><td></td>{heads}<th scope="col">all</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _step(count: int, cells: Sequence[int], most: int) -> int:
    """0 for none, else 1 to `most`, which is the row's largest."""
    return 0 if not count else max(1, round(most * count / max(cells)))


def _cell(name: str, value: float) -> str:
    if name == "mean_depth":
        return f"{value:.1f}"
    return f"{value:.4g}" if name in ("cost", "plain_cost") and value < 100 else f"{value:,.0f}"


def _inert(text: str) -> str:
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") else text
