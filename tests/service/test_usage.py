"""The usage report: sums at each tenant's prices, the heat map, CSV and a page that need nothing and trust nobody."""

import csv
import io
import json
import re

import pytest

from shoal.router.accounting import Ledger
from shoal.router.decision import Answer, Decision, Route
from shoal.router.journal import Journal, no_depth
from shoal.router.prices import BadPrices, PriceTable
from shoal.router.usage import HeatMap, UsageReport, to_csv, to_html

EVIL = '=<script>alert("1")</script>'
PRICES = {"layer_tokens": 0.5, "prompt_tokens": 10, "completion_tokens": 20, "currency": "EUR",
          "tenants": {"cheap": {"layer_tokens": 0.1}}}  # fmt: skip


def answer(layer_tokens, depth, route=Route.DEEP):
    decision = Decision(route=route, budget=30, total=30, bucket="27+", confidence=1, cacheable=True)
    trace = Journal().trace(route, decision, {**no_depth(30, 30), "max": depth}, layer_tokens=layer_tokens)
    tokens = 10 if layer_tokens else 0
    return Answer(text="", trace=trace, prompt_tokens=tokens, completion_tokens=tokens)


@pytest.fixture
def ledger():
    with Ledger(":memory:", clock=lambda: 86_400.0) as made:
        rows = [("usual", 400, 21.5), ("usual", 600, 30), ("usual", 0, 0), ("cheap", 500, 25), (EVIL, 300, 15)]
        for index, (tenant, spent, depth) in enumerate(rows):
            route = Route.DEEP if spent else Route.FAQ
            made.settle(f"r{index}", tenant=tenant, account="k", answer=answer(spent, depth, route))
        yield made


def read(ledger, by=("tenant",), **prices):
    return UsageReport.read(ledger, by, PriceTable.of(prices), tenant=None, since=0.0)


def test_each_tenant_pays_its_own_prices_however_rows_are_grouped(ledger):
    rows = {row["tenant"]: row for row in read(ledger, **PRICES).rows}
    assert rows["usual"]["cost"] == pytest.approx(0.5)
    assert rows["cheap"]["cost"] == pytest.approx(0.05)
    assert rows["usual"]["plain_cost"] == pytest.approx(0.6)
    assert rows["usual"]["mean_depth"] == pytest.approx(51.5 / 3)
    for by in (("day",), ("route", "bucket"), ()):
        again = read(ledger, by, **PRICES).rows
        assert sum(row["cost"] for row in again) == pytest.approx(0.5 + 0.05 + 0.15)
        assert sum(row["requests"] for row in again) == 5


def test_without_prices_a_shallow_token_costs_its_share(ledger):
    report = read(ledger)
    assert report.total["cost"] / report.total["plain_cost"] == pytest.approx(1800 / 2400)
    assert report.saved.startswith("25.0% fewer layer-tokens")
    assert "-25.0%" in report.saved


@pytest.mark.parametrize(
    "wrong", [{"layer_tokens": -1}, {"prompt_tokens": "2"}, {"colour": 1}, {"tenants": {"a": 3}}, {"tenants": 3},
              {"tenants": {"a": {"layer_tokens": float("nan")}}}])  # fmt: skip
def test_wrong_prices_are_named(wrong):
    with pytest.raises(BadPrices, match=r"price|layer_tokens"):
        PriceTable.of(wrong)


def test_the_heat_map_counts_every_request_once(ledger):
    heat = read(ledger).heat
    assert heat.columns[:3] == ("0", "1-2", "3-4")
    assert heat.columns[-1] == "29-30"
    cells = dict(heat.rows)["usual"]
    assert (cells[0], cells[11], cells[15], sum(cells)) == (1, 1, 1, 3)  # 21.5 is in layers 21 to 22
    assert "| 3" in next(line for line in heat.lines() if "usual" in line)
    assert HeatMap.of([], "day") == HeatMap(columns=("0",), rows=())


def test_csv_is_read_back_and_no_formula(ledger):
    rows = list(csv.DictReader(io.StringIO(to_csv(read(ledger, **PRICES)))))
    assert [row["tenant"] for row in rows] == ["usual", "cheap", f"'{EVIL}"]
    assert float(rows[0]["cost"]) == pytest.approx(0.5)


def test_the_page_needs_no_network_and_runs_nothing(ledger):
    page = to_html(read(ledger, **PRICES))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"https?://|@import|url\(|src=", page)
    assert "default-src" in page
    assert "color-scheme: light dark" in page
    assert "EUR by depth" in page
    assert 'class="d' in page
    with Ledger(":memory:") as empty:
        assert "Nothing is booked" in to_html(read(empty))


def test_the_command_writes_all_three(shoal, tmp_path, ledger):
    (tmp_path / "home").mkdir()
    with Ledger(tmp_path / "home" / "ledger.sqlite") as kept:
        kept.settle("r", tenant="acme", account="k", answer=answer(400, 21.5))
    (tmp_path / "shoal.toml").write_text("[prices]\nlayer_tokens = 0.5\n[prices.tenants.acme]\nlayer_tokens = 1\n")
    code, out, _ = shoal("usage", "report", "--json")
    assert (code, json.loads(out)[0]["cost"]) == (0, 0.4)
    code, out, _ = shoal("usage", "report", "--by", "route,day")
    assert code == 0
    assert "layer-tokens" in out
    assert "deep" in out
    assert shoal("usage", "report", "--format", "csv")[1].startswith("tenant,requests")
    assert shoal("usage", "report", "--format", "html", "--out", "usage.html")[0] == 0
    assert "acme" in (tmp_path / "usage.html").read_text()
    assert shoal("usage", "report", "--by", "colour")[0] == 2
