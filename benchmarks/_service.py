"""What the service's benchmarks share: a `shoal serve` in its own process, and how requests are timed and kept."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks._router import OUT, write
from shoal.gated_llm.weights import home_folder

ROOT = Path(__file__).parents[1]
SHOAL = str(Path(sys.executable).with_name("shoal"))
FAQ = "How do I track my order?"  # in the demo's FAQ
# `shoal` with OpenTelemetry's own SDK writing every span to the file named first
LAUNCH = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
spans = open(sys.argv[1], "w")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=spans)))
trace.set_tracer_provider(provider)
sys.argv = ["shoal", *sys.argv[2:]]
from shoal.router.cli import main
main()
"""


def ask(text: str, **more: Any) -> dict[str, Any]:
    """A chat request of 16 tokens at most."""
    return {"model": "shoal", "messages": [{"role": "user", "content": text}], "max_tokens": 16, **more}


def percentile(seconds: Sequence[float], share: float) -> float:
    """In milliseconds; 0 of nothing."""
    return round(sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))] * 1000, 2) if seconds else 0.0


class Served:
    """`shoal serve` in a folder of its own with the demo's FAQ; `settings` are SHOAL_* variables, `options` limits;
    `spans`: with OpenTelemetry."""

    def __init__(
        self,
        *words: str,
        options: dict[str, Any] | None = None,
        keys: bool = False,
        spans: bool = False,
        **settings: str,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.home = Path(self._folder.name)
        for name in ("models", "native"):  # what was made once
            (self.home / name).symlink_to(home_folder() / name)
        own = {"home": str(self.home), "service": json.dumps(options or {}), "cold_log": "false", **settings}
        self.env = {**os.environ, **{f"SHOAL_{name.upper()}": value for name, value in own.items()}}
        for name in [name for name in ("SHOAL_KB", "SHOAL_FAQ") if name in self.env]:
            del self.env[name]
        self._shoal("faq", "import", str(ROOT / "examples" / "demo" / "faq.jsonl"))
        self.secrets = (
            [self._shoal("keys", "create", name, "--tenant", name) for name in ("acme", "other")] if keys else []
        )
        self.log, self.spans = self.home / "log.txt", self.home / "spans.txt"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        launch = [sys.executable, "-c", LAUNCH, str(self.spans)] if spans else [SHOAL]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*launch, "serve", "--port", str(self.port), *words],
                env=self.env, stdout=log, stderr=log, cwd=self.home,
            )  # fmt: skip

    def _shoal(self, *words: str) -> str:
        done = subprocess.run([SHOAL, *words], env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"shoal {' '.join(words)}: {done.stderr}")
        return done.stdout.strip()

    def __enter__(self) -> "Served":
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text()[-2000:])
            try:
                with self.http() as http:
                    if http.get("/readyz").status_code == 200:
                        return
            except httpx.TransportError:
                time.sleep(0.1)
        raise RuntimeError(f"the server did not come up: {self.log.read_text()[-1000:]}")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self._folder.cleanup()

    def http(self, key: str | None = None) -> httpx.Client:
        secret = key or (self.secrets[0] if self.secrets else "")
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return httpx.Client(base_url=self.url, timeout=180, trust_env=False, headers=headers)

    @property
    def rss_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)

    @property
    def cpu_s(self) -> float:
        """Processor time so far, which other work on the machine hardly changes."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def metrics(self) -> dict[str, float]:
        with self.http() as http:
            lines = http.get("/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (ln.rpartition(" ") for ln in lines if not ln.startswith("#"))}

    def in_flight(self) -> int:
        """Requests admitted, waiting or in the engine."""
        now = self.metrics()
        return int(sum(now.get(f"shoal_{name}", 0) for name in ("in_flight", "queued", "engine_requests")))

    def quiet(self, seconds: float = 30) -> int:
        """Waits until nothing is in flight; what still is when `seconds` are over."""
        end = time.monotonic() + seconds
        while (left := self.in_flight()) and time.monotonic() < end:
            time.sleep(0.1)
        return left


def save(name: str, title: str, note: str, part: str, rows: list[dict[str, Any]]) -> None:
    """Puts the part beside those that are there: one that fails or is run again leaves the others alone."""
    path = OUT / f"{name}.json"
    there = json.loads(path.read_text()) if path.exists() else {}
    load = os.getloadavg()[0]
    parts = {key: value for key, value in there.items() if isinstance(value, list)}
    loads = {**there.get("load average at the end of each part", {}), part: round(load, 1)}
    write(name, title, {"note": note, **parts, part: rows, "load average at the end of each part": loads})
