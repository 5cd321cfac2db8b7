"""The pages that are saved to a file, in a real browser: a trace, an audit's report, a usage report.

Each must need no network, run nothing that a text holds, and have nothing that axe finds serious, light and dark.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal import KnowledgeBase
from shoal.router.accounting import Ledger
from shoal.router.audit_page import audit_page
from shoal.router.prices import PriceTable
from shoal.router.traces import Record
from shoal.router.traces.page import page as trace_page
from shoal.router.usage import UsageReport, to_html
from tests.router.records import answer_of, request_of, tokens_of

from .conftest import HOSTILE, Easy

PAGES = ("trace", "audit", "usage")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    answer = answer_of(HOSTILE, reasons=(HOSTILE,), tokens=tokens_of("It", HOSTILE, " is"))
    record = Record.of(request_of(HOSTILE), answer, at=0.0, keep_text=True)
    trace = json.loads(json.dumps(record.trace))
    trace["steps"] = [{"name": HOSTILE, "ms": 1.0, "detail": {HOSTILE: HOSTILE}}]
    (folder / "trace.html").write_text(trace_page(replace(record, id=HOSTILE, trace=trace)), "utf-8")
    kb = KnowledgeBase.open(folder / "kb")
    kb.add_text("The Heron lamp weighs 740 grams.", "heron.md")
    kb.add_text(f"zxq {HOSTILE} zxq 0x17 zxq.", f"{HOSTILE}.md")
    (folder / "audit.html").write_text(audit_page(kb.audit(Easy(), []), HOSTILE), "utf-8")
    kb.close()
    with Ledger(":memory:", clock=lambda: 86_400.0) as ledger:
        ledger.settle("r", tenant=HOSTILE, account="k", answer=answer)
        report = UsageReport.read(ledger, ("tenant",), PriceTable.of({}), tenant=None, since=0.0)
    (folder / "usage.html").write_text(to_html(report), "utf-8")
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_a_saved_page_opens_offline_and_runs_nothing_of_its_texts(browser: Any, saved: Path, name: str) -> None:
    from axe_playwright_python.base import AXE_SCRIPT

    file = (saved / f"{name}.html").as_uri()
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 800})
    page = context.new_page()
    troubles: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file)
    assert page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth") <= 0
    if name == "trace":
        page.locator(".map td[title]").nth(17).click()
        assert "layer 17" in page.inner_text("#why")
    assert page.evaluate("() => window.owned") is None
    assert page.locator("img, main script, a[href^='javascript']").count() == 0
    assert (troubles, asked) == ([], [file])
    context.close()

    found = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(bypass_csp=True, color_scheme=scheme, viewport={"width": 900, "height": 800})
        page = context.new_page()
        page.goto(file)
        page.evaluate(AXE_SCRIPT)
        for issue in page.evaluate("async () => (await axe.run()).violations"):
            if issue["impact"] in ("serious", "critical"):
                found[f"{scheme} {issue['id']}"] = [node["html"][:200] for node in issue["nodes"][:3]]
        context.close()
    assert found == {}
