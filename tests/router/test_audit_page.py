"""The audit report as a page: whole, in two languages, and nothing in it is markup that came from a document."""

import re
from typing import Any

import pytest

from shoal.router.audit_page import audit_page

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)> \x1b[31m \u202e"


@pytest.fixture
def report() -> dict[str, Any]:
    row = {"documents": 4, "mean": 0.4, "hard": 2, "hard_units": 3, "scores": [1, 0, 2, 1] * 5}
    return {
        "format": 1, "made": "2026-01-01T00:00:00Z", "scorer": "read:x", "limit": 0.65, "dry_run": False,
        "undone": False, "seconds": 3.2,
        "documents": {"all": 4, "easy": 2, "split": 2, "not_scored": 1, "split_wholly_hard": 1,
                      "units": 5, "hard_units": 3},
        "size": {name: {"documents": 4, "passages": n, "characters": 100 * n}
                 for name, n in (("before", 8), ("after", 6), ("quarantined", 3))},
        "depth": {"bins": 20, "before": row["scores"], "after": [0] * 20,
                  "by_source": [{"name": HOSTILE, **row}], "by_scenario": [{"name": "泵 · pump", **row, "mean": None}]},
        "hardest": [{"doc_id": HOSTILE, "score": 0.1, "where": "x", "text": HOSTILE, "quarantined": 2}],
        "recall": {"kind": "questions", "k": 5, "asked": 10, "before": 0.9, "after": 0.8,
                   "lost": [{"question": HOSTILE, "answers": [HOSTILE]}]},
        "quarantine": {"passages": 300, "hardest": [
            {"id": "abc", "doc_id": HOSTILE, "span": [0, 9], "score": 0.1, "text": HOSTILE}]},
    }  # fmt: skip


def test_text_of_documents_stays_text_and_nothing_is_asked_of_the_net(report: dict[str, Any]) -> None:
    page = audit_page(report, HOSTILE)
    assert not re.search(r"<script|<img|\x1b|\u202e|https?:|url\(", page)
    assert "default-src &#x27;none&#x27;" in page
    assert page.count("&lt;script&gt;") >= 6
    assert "onerror=alert(1)&gt;" in page


def test_both_languages_say_the_same_figures(report: dict[str, Any]) -> None:
    page = audit_page(report, "./kb")
    assert page.count('class="en"') == page.count('class="zh"')
    for figure in ("90.0% → 80.0%", "-25%", "8 → 6", "shoal kb restore --all --kb ./kb", "泵 · pump", "0.65"):
        assert figure in page
    assert "The first 1 of 300." in page
    assert "前 1 项，共 300 项。" in page


def test_what_was_not_measured_is_said(report: dict[str, Any]) -> None:
    report |= {
        "recall": {"kind": "none", "k": 5, "asked": 0}, "hardest": [], "dry_run": True,
        "quarantine": {"passages": 0, "hardest": []},
    }  # fmt: skip
    page = audit_page(report, "./kb")
    assert "everything was put back" in audit_page(report | {"undone": True}, "./kb")
    for said in ("Not measured", "未测量", "None is below the limit", "dry run", "试运行"):
        assert said in page
