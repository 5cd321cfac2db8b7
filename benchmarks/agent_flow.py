"""The same customer-service agent over a fixed script of 100 turns: every step through the model, and routed (I3).

`python -m benchmarks.agent_flow [--turns N] [--model NAME]`. The script (`agent_flow_script.jsonl`) was fixed before
anything was tuned: 25 FAQ questions, 15 repeats, 10 paraphrases, 25 for retrieval (4 without an answer), 15 to
reason about, 10 of small talk; a third Chinese. Both agents answer turn by turn, in alternating order, on the same
model. Right means: the FAQ's answer word for word; the expected words or number in the text; a refusal where the
handbook has no answer. Small talk is not judged.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
import unicodedata
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))

from agent_langchain import routed, unrouted  # noqa: E402
from lumen import lumen  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

REFUSALS = re.compile(
    r"(do|does|did) ?n[o'’]t (know|hold|contain|mention|have|provide)|not (know|mentioned|provided|available)|"
    r"no information|cannot answer|can't answer|不知道|没有提到|没有提供|无法回答",
    re.IGNORECASE,
)
KINDS = ("faq", "paraphrase", "repeat", "retrieval", "reasoning", "small talk")


def plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def has(text: str, wanted: str) -> bool:
    """Whether the words, or the number as a number of its own, are in the text."""
    if re.fullmatch(r"[\d.,]+", wanted):
        return re.search(rf"(?<![\d.]){re.escape(wanted)}0*(?!\.?\d)", text.replace(",", "")) is not None
    return plain(wanted) in plain(text)


def right(turn: dict[str, Any], text: str, faq: dict[str, str]) -> bool | None:
    """Whether the reply is right; None where that cannot be said (small talk)."""
    if "faq" in turn:
        return plain(faq[turn["faq"]]) in plain(text)
    if turn.get("refuse"):
        return REFUSALS.search(text) is not None
    return any(has(text, wanted.replace(",", "")) for wanted in turn["any_of"]) if "any_of" in turn else None


def run(turns: list[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    """One record a turn and agent."""
    records = []
    with lumen(model) as shop:
        faq = {entry.id: entry.answer for entry in shop.faq.entries()}
        agents = {"unrouted": unrouted(shop), "routed": routed(shop)}
        for agent in agents.values():
            agent("Where do you sell your lamps?")  # the first request pays for imports and caches
        for adapter in shop.llm.adapters:  # and a service loads its weights once
            shop.llm.generate("Hello.", adapter=adapter, max_tokens=1)
        for turn in turns:
            names = list(agents) if turn["turn"] % 2 else list(reversed(agents))
            for name in names:
                began = time.perf_counter()
                reply = agents[name](turn["text"])
                record = {"agent": name, "ms": (time.perf_counter() - began) * 1000, "reply": reply.text}
                record |= {"route": reply.route, "layer_tokens": reply.layer_tokens, **turn}
                records.append({**record, "right": right(turn, reply.text, faq)})
            print(f"\r{turn['turn']}/{len(turns)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return records


def row(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Latency in ms, layer-tokens a turn, and the share that is right."""
    times = [r["ms"] for r in records]
    judged = [r["right"] for r in records if r["right"] is not None]
    cuts = quantiles(times, n=20, method="inclusive") if len(times) > 1 else times * 19
    return {
        "turns": len(records),
        "mean ms": mean(times),
        "p50 ms": cuts[9],
        "p95 ms": cuts[18],
        "layer-tokens": mean(r["layer_tokens"] for r in records),
        "right": f"{sum(judged)}/{len(judged)}" if judged else "-",
    }


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    by: dict[str, dict[str, Any]] = {}
    for kind in (*KINDS, "all"):
        for name in ("unrouted", "routed"):
            mine = [r for r in records if r["agent"] == name and kind in (r["kind"], "all")]
            if mine:
                by[f"{kind}, {name}"] = row(mine)
    routes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        if record["agent"] == "routed":
            routes[record["route"]].append(record)
    old, new = by["all, unrouted"], by["all, routed"]
    saved = {name: f"{100 * (1 - new[name] / old[name]):.1f}%" for name in ("mean ms", "layer-tokens")}
    return {"by kind": by, "by route (routed)": {name: row(routes[name]) for name in sorted(routes)}, "saved": saved}


def show(results: dict[str, Any]) -> None:
    console = Console(width=120)
    for title in ("by kind", "by route (routed)"):
        table = Table(title=title)
        for column in ("", *next(iter(results[title].values()))):
            table.add_column(column, justify="left" if not column else "right")
        for label, cells in results[title].items():
            table.add_row(label, *(f"{cell:.0f}" if isinstance(cell, float) else str(cell) for cell in cells.values()))
        console.print(table)
    console.print(f"saved by routing: {results['saved']}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=None, help="only the first N turns")
    options.add_argument("--model", default="smollm2-135m")
    given = options.parse_args()
    lines = (HERE / "agent_flow_script.jsonl").read_text(encoding="utf-8").splitlines()
    records = run([json.loads(line) for line in lines][: given.turns], given.model)
    results = summary(records)
    show(results)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE
    )
    origin = {
        "title": "Customer-service agent, unrouted and routed",
        "note": __doc__.split("\n\n")[1].replace("\n", " "),
        "command": f"python -m benchmarks.agent_flow --model {given.model}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "versions": {name: version(name) for name in ("torch", "langchain-core")},
        "data": "benchmarks/agent_flow_script.jsonl, examples/demo",
    }
    out = HERE / "out"
    out.mkdir(exist_ok=True)
    for name, value in (("agent_flow", {**origin, **results}), ("agent_flow_turns", records)):
        (out / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
