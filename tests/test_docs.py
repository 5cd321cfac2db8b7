"""The documents keep their word: links lead somewhere, and every measured number comes from a committed result."""

import json
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
from typer.core import TyperGroup as Group
from typer.main import get_command

from shoal.router.cli import app
from shoal.router.settings import Settings

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"^```(?:sh|bash)\n.*?^```$|`[^`\n]+`", re.M | re.S)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_chinese_readme_has_the_same_commands_figures_and_links() -> None:
    english, chinese = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh.md"))
    block = re.compile(r"(?:<!-- not run:[^>]*-->\n)?^```.*?^```$", re.M | re.S)
    assert block.findall(chinese) == block.findall(english)
    for what in (r"(?<![\w.])\d[\d.,/-]*\d%?|\d%?", r"`[^`]+`", r"\]\((?!README)([^)]+)\)"):
        assert Counter(re.findall(what, block.sub("", chinese))) == Counter(re.findall(what, block.sub("", english)))
    assert "](README.zh.md)" in english
    assert "](README.md)" in chinese


def test_every_command_and_option_that_is_named_exists() -> None:
    root = get_command(app)
    wrong = []
    for page in PAGES:
        for line in re.findall(
            r"\bshoal (?!import )([a-z][^`\n|&#]*)", "\n".join(CODE.findall(page.read_text("utf-8")))
        ):
            command, words = root, line.split()
            while words and isinstance(command, Group) and words[0] in command.commands:
                command = command.commands[words.pop(0)]
            known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
            named = {word.partition("=")[0].rstrip(",.);:") for word in words if word.startswith("--")}
            group = isinstance(command, Group) and words and re.fullmatch("[a-z]+", words[0])
            if command is root or group or not named <= known:
                wrong.append(f"{page.name}: shoal {line.strip()}")
    assert wrong == []


def test_every_setting_is_on_the_page_with_its_default() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`, [^|]+ \| `?([^|`]+)`? \|", page, re.M))
    words = {"None": "none", "True": "true", "False": "false"}
    expected = {"home": "your cache folder"}
    for name, field in Settings.model_fields.items():
        value = str(field.get_default(call_default_factory=True)).removesuffix(".0")
        expected.setdefault(name, words.get(value, value))
    assert rows == expected


def test_every_file_that_ships_has_its_source_and_licence() -> None:
    page = (ROOT / "docs" / "data.md").read_text("utf-8").partition("## What ships")[2]
    named = set(re.findall(r"`([\w./-]+)`", " ".join(re.findall(r"^\|([^|]+)\|", page, re.M))))
    files = [path for room in ("cache", "gated_llm", "rag", "router") for path in (ROOT / room / "assets").iterdir()]
    assert [path.name for path in files if {f"{path.relative_to(ROOT)}", path.name}.isdisjoint(named)] == []


def test_the_benchmark_page_is_what_the_committed_results_render_to() -> None:
    bench = runpy.run_path(str(ROOT / "benchmarks" / "__main__.py"))
    results = {path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert (ROOT / "docs" / "benchmarks.md").read_text("utf-8") == bench["render"](results)


def test_every_picture_of_a_measurement_is_drawn_from_the_committed_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = runpy.run_path(str(ROOT / "benchmarks" / "_pictures.py"))
    results = {path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert pictures["draw"](results, tmp_path) == [f"{name}.png" for name in pictures["PICTURES"]]
    for name in tmp_path.iterdir():
        assert (ROOT / "docs" / "pictures" / name.name).exists()
        assert name.stat().st_size > 10_000


def test_the_benchmark_page_shows_rows_figures_and_where_they_come_from() -> None:
    bench = runpy.run_path(str(ROOT / "benchmarks" / "__main__.py"))
    result = {"title": "Guards", "machine": "2 cores", "seed": 0, "recall": 0.98765, "rows": [{"a": 1, "b": "x|y"}]}
    page = bench["render"]({"guards": result, "by_language": {"sets": {"en": {"n": 3}, "zh": {"n": 4}}}})
    for line in ("## Guards", "| recall | 0.9877 |", "| 1 | x\\|y |", "*machine: 2 cores; seed: 0*", "| zh | 4 |"):
        assert line in page
    assert page.index("## by language") < page.index("## Guards")
