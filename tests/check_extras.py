"""Installs the built wheel with one extra at a time, each in an environment of its own, and uses that part (I3).

It runs in a folder that holds a `cache.py` and a `router/` of the user's own. A part whose extra is missing must raise
an error that names the extra. Takes minutes and needs the package index: `python tests/check_extras.py [EXTRA ...]`.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = os.environ.get("TORCH", "torch==2.13.0")  # a plain torch would be the build for GPUs
PARTS = {
    "": "from shoal import CognitiveRouter; print(CognitiveRouter(router_only=True).decide('What is 2 + 2?').route)",
    "llm": "from shoal import GatedLLM; print(GatedLLM.load().generate('Say hello.', max_tokens=2).text)",
    "search": "from shoal import KnowledgeBase as K; kb = K.open('kb'); kb.add_text('The lamp is red.', 'a.md'); "
    "print(kb.search('What colour is the lamp?', k=1)[0].doc_id)",
    "rag": "import docx, pypdf, sentence_transformers; from shoal.rag import KnowledgeBase; print(KnowledgeBase)",
    "serve": "from shoal.router.service import create_app; from shoal import CognitiveRouter; "
    "print(create_app(CognitiveRouter(router_only=True)).title)",
    "redis": "from shoal import DepthCache; print(DepthCache('redis://127.0.0.1:1').stats()['redis'])",
    "langchain": "from shoal.router.integrations.langchain import ChatShoal; print(ChatShoal)",
    "remote": "from langchain.chat_models import init_chat_model; import langchain_openai; print(init_chat_model)",
    "llama-index": "from shoal.router.integrations.llama_index import ShoalQueryEngine; print(ShoalQueryEngine)",
    "mcp": "from shoal.router import mcp_server; print(mcp_server.__name__)",
    "plots": "import matplotlib; print(matplotlib.__name__)",
    "pdf": "import importlib.util as u; print(u.find_spec('weasyprint').name)",
}
NAMED = {"langchain", "llama-index", "mcp", "serve", "search"}  # parts that are asked for without their extra too
BEFORE = """
import cache, router
assert cache.OWNER == router.OWNER == "user"
import shoal
assert "site-packages" in shoal.__file__, shoal.__file__
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "work" / "router").mkdir(parents=True)
        for name in ("cache.py", "router/__init__.py"):
            (place / "work" / name).write_text("OWNER = 'user'\n")
        run(sys.executable, "-m", "build", "--wheel", "--outdir", str(place / "dist"), str(ROOT))
        (wheel,) = (place / "dist").glob("*.whl")
        failed = [extra for extra in sys.argv[1:] or PARTS if not check(extra, wheel, place)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def check(extra: str, wheel: Path, place: Path) -> bool:
    """Whether the part works with its extra alone; in the bare environment also that the others name theirs."""
    venv = place / (extra or "bare")
    run(sys.executable, "-m", "venv", str(venv))
    python = str(venv / "bin" / "python")
    if extra in ("llm", "rag"):
        run(python, "-m", "pip", "install", "--quiet", TORCH)
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]" if extra else str(wheel))
    done = ask(python, PARTS[extra], place)
    good = done.returncode == 0
    print(f"[{extra}] {'works: ' + done.stdout.strip() if good else done.stderr.strip()[-800:]}", flush=True)
    for other in sorted(NAMED) if not extra else ():
        said = ask(python, PARTS[other], place).stderr.strip().splitlines()[-1:]
        named = any(f"shoal[{other}]" in line for line in said)
        print(f"[] without {other}: {' '.join(said)}", flush=True)
        good = good and named
    return good


def ask(python: str, code: str, place: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SHOAL_HOME": str(place / "home")}
    command = [python, "-c", f"{BEFORE}\n{code}"]
    return subprocess.run(command, cwd=place / "work", env=environment, capture_output=True, text=True, check=False)


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
