"""What docs/security.md promises of the code: nothing runs what it reads, and every test it points to exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path for room in ("cache", "gated_llm", "rag", "router") for path in sorted((ROOT / room).rglob("*.py"))]
UNPICKLE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
RUN = {"eval", "exec", "compile", "__import__"}


def faults(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        found += [f"imports {name}" for name in names if name.split(".")[0] in UNPICKLE]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in RUN or called in {"torch.load", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"}:
            found.append(f"line {node.lineno}: {called}")
        for word in node.keywords:
            if word.arg in {"trust_remote_code", "allow_pickle", "shell"} and ast.unparse(word.value) != "False":
                found.append(f"line {node.lineno}: {word.arg}={ast.unparse(word.value)}")
    return found


def test_nothing_in_the_package_runs_what_it_reads() -> None:
    assert len(SOURCES) > 100
    assert {str(path.relative_to(ROOT)): found for path in SOURCES if (found := faults(path))} == {}


def test_what_would_run_is_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import pickle\nimport torch\ntorch.load('x')\neval('1')\nf(trust_remote_code=True)\n", "utf-8")
    assert len(faults(bad)) == 4


@pytest.mark.parametrize("page", ["docs/security.md", "SECURITY.md"])
def test_the_tests_it_points_to_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    missing = []
    for name, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        path = ROOT / name
        if not path.is_file() or (test and not re.search(rf"^(async )?def {test}\(", path.read_text("utf-8"), re.M)):
            missing.append(f"{name}::{test}")
    assert missing == []
