"""`shoal gates train`: what it refuses, before any training."""

import sys
from pathlib import Path

import pytest

from shoal.router.cli import main


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["shoal", "gates", "train", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), capsys.readouterr().err

    return run


def test_it_needs_a_recipe_or_examples(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "answer": "b"}', "utf-8")
    (tmp_path / "a.yaml").write_text("sources: []", "utf-8")
    for words in ((), ("--lora", "a.jsonl", "--config", "a.yaml")):
        code, said = call(*words)
        assert code == 2
        assert "--config" in said
        assert "--lora" in said


def test_bad_examples_are_named_by_line(call, tmp_path: Path, tiny_folder: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}', "utf-8")
    code, said = call("--lora", "bad.jsonl", "--model", str(tiny_folder), "--out", "run")
    assert code == 1
    assert "line 2" in said
    assert "answer" in said


def test_missing_data_says_where_to_look(call, tmp_path: Path, tiny_folder: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "r.yaml").write_text("sources: [{kind: squad, path: none.json}]", "utf-8")
    code, said = call("--config", "r.yaml", "--model", str(tiny_folder), "--out", "run", "--data", "nowhere")
    assert code == 1
    assert "none.json" in said
    assert "SHOAL_DATA" in said
