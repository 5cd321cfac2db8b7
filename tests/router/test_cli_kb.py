"""`shoal kb`: standard input, audit, report and restore."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Shoal = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def say(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return say


def test_standard_input_is_a_text_or_rows(shoal: Shoal, stdin: Callable[[str], None]) -> None:
    stdin("The pump weighs 40 kg. 泵重四十公斤。")
    assert shoal("kb", "add", "-", "--name", "pump", "--label", "machines", "--json")[0] == 0
    stdin('{"id": "a", "text": "Eins."}\n{]\n{"id": "b", "text": "二。"}\n')
    code, out, err = shoal("kb", "add", "-", "--jsonl", "--json")
    assert (code, json.loads(out)["added"]) == (0, 2)
    assert "skipped stdin: line 2 is not JSON" in err
    assert json.loads(shoal("kb", "list", "--json")[1]) == ["pump", "stdin#a", "stdin#b"]
    stdin("  ")
    code, _, err = shoal("kb", "add", "-")
    assert (code, "empty" in err) == (2, True)


def test_audit_reports_sets_aside_and_restores(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "plain.md").write_text("# Lamp\n\nThe lamp is red. It stands on the table.\n", "utf-8")
    (tmp_path / "docs" / "泵.txt").write_text("水泵放在地下室里，每年检查一次。", "utf-8")
    (tmp_path / "q.jsonl").write_text('{"question": "What colour is the lamp?", "answer": "red"}\n', "utf-8")
    page = tmp_path / "audit.html"
    code, out, _ = shoal(
        "kb",
        "audit",
        "docs",
        "--questions",
        "q.jsonl",
        "--limit",
        "1",
        "--allow-loss",
        "1",
        "--scores",
        "predicted",
        "--report",
        str(page),
        "--json",
    )
    report = json.loads(out)
    assert code == 0
    assert report["documents"]["all"] == 2
    assert report["documents"]["not_scored"] == 1  # the predictor knows nothing of Chinese
    aside = report["size"]["quarantined"]["passages"]
    assert aside == report["documents"]["hard_units"] >= 1
    assert (report["recall"]["before"], report["recall"]["asked"]) == (1.0, 1)
    assert "<h1>" in page.read_text("utf-8")
    assert shoal("kb", "restore")[0] == 2
    assert shoal("kb", "restore", "nothing")[0] == 1
    first = json.loads(shoal("kb", "restore", "plain.md", "--json")[1])
    assert first["quarantined"] == aside - len(first["restored"])
    assert json.loads(shoal("kb", "restore", "--all", "--json")[1])["quarantined"] == 0
    assert "red" in json.loads(shoal("kb", "search", "colour of the lamp", "--json")[1])[0]["text"]
    code, _, err = shoal("kb", "audit", "--scores", "guessed")
    assert (code, "auto, read or predicted" in err) == (2, True)
