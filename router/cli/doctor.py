"""`shoal doctor`: what is installed and reachable here, and what to do about what is not."""

import os
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from ..settings import Settings, load_settings
from .ask import Json
from .output import out, print_json

MEMORY_GIB = 1.0  # what the default model takes with its copy for long prompts
Check = tuple[str, bool, str]  # what, whether it is fine, what was found or what to do
_EXTRAS = {
    "torch": "llm",
    "transformers": "llm",
    "faiss-cpu": "search",
    "jieba": "search",
    "sentence-transformers": "rag",
    "fastapi": "serve",
    "uvicorn": "serve",
    "redis": "redis",
    "langchain-core": "langchain",
    "llama-index-core": "llama-index",
}


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(json: Json = False) -> None:
    """Check libraries, machine, model, plan, Redis, documents and FAQ; exit code 1 when `shoal ask` could not work."""
    settings = load_settings()
    checks = [_python(), *(_library(name, extra) for name, extra in _EXTRAS.items())]
    checks += [_guarded(name, check, settings) for name, check in _PARTS.items()]
    if json:
        print_json([{"check": what, "ok": ok, "detail": detail} for what, ok, detail in checks])
    for what, ok, detail in [] if json else checks:
        out.print(f"{'ok ' if ok else '-- '} {what:24} {detail}", markup=False, highlight=False)
    if not all(ok for what, ok, _ in checks if what in ("Python", "torch", "transformers", "model")):
        raise typer.Exit(1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _python() -> Check:
    return "Python", sys.version_info >= (3, 11), f"{sys.version.split()[0]}, {_cores()} cores"


def _library(name: str, extra: str) -> Check:
    try:
        return name, True, version(name)
    except PackageNotFoundError:
        return name, False, f'not installed: pip install "shoal[{extra}]"'


def _guarded(name: str, check: Callable[[Settings], str], settings: Settings) -> Check:
    try:
        return name, True, check(settings)
    except Exception as error:
        return name, False, str(error)


def _compiler(settings: Settings) -> str:
    found = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if found is None:
        raise LookupError("none: the model decodes several times slower; install g++")
    return found


def _threads(settings: Settings) -> str:
    if settings.threads is not None and settings.threads > _cores():
        raise LookupError(f"{settings.threads} on {_cores()} cores: set SHOAL_THREADS to {_cores()} or fewer")
    return "chosen when the model is loaded" if settings.threads is None else f"{settings.threads} of {_cores()}"


def _memory(settings: Settings) -> str:
    if not (table := Path("/proc/meminfo")).exists():
        return "not known on this system"
    kinds = dict(line.split(":", 1) for line in table.read_text("utf-8").splitlines())
    free = int(kinds["MemAvailable"].split()[0]) / 2**20
    if free < MEMORY_GIB:
        raise LookupError(f"{free:.1f} GiB free; the default model wants {MEMORY_GIB:g}: end other programs")
    return f"{free:.1f} GiB free"


def _plan(settings: Settings) -> str:
    from ...gated_llm import Plan
    from ...gated_llm.weights import home_folder, model_name

    folder = Path(settings.model)
    if not (folder / "config.json").exists():
        folder = home_folder(settings.home) / "models" / model_name(settings.model)
    if (folder / "plan.json").exists():
        return str(folder / "plan.json")
    if Plan.shipped(folder.name):
        return "the one that ships"
    raise LookupError(f"none: only full depth; run: shoal gates calibrate --model {settings.model} --data FILE")


def _model(settings: Settings) -> str:
    from ...gated_llm import list_models

    names = [model.name for model in list_models(settings.home)]
    if settings.model not in names and not os.path.exists(settings.model):
        raise LookupError(f"{settings.model} is not here yet; run: shoal models pull {settings.model}")
    return settings.model


def _redis(settings: Settings) -> str:
    if settings.redis_url is None:
        return "none set (SHOAL_REDIS_URL); answers are cached in each process and logged on disk for the next one"
    from redis import Redis

    server = Redis.from_url(settings.redis_url, socket_timeout=1, socket_connect_timeout=1)
    return f"version {server.info('server')['redis_version']}"


def _knowledge(settings: Settings) -> str:
    from ..wiring import open_kb

    base = open_kb(settings)
    if base is None:
        return "empty; add documents with: shoal kb add FOLDER"
    with base:
        return f"{len(base)} chunks in {settings.kb_path}"


def _faq(settings: Settings) -> str:
    from .faq import opened

    return f"{len(opened(settings.faq))} entries in {settings.faq_path}"


_PARTS: dict[str, Callable[[Settings], str]] = {
    "C++ compiler": _compiler,
    "threads": _threads,
    "memory": _memory,
    "model": _model,
    "depth plan": _plan,
    "Redis": _redis,
    "knowledge base": _knowledge,
    "FAQ": _faq,
}
