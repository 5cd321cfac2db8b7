"""A real server on a free port, over a small router that answers by script: what the HTTP layer is tested against."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from shoal.gated_llm.errors import BudgetError
from shoal.router.decision import Answer, Decision, Piece, Request, Route
from shoal.router.errors import NoModel, Refused
from shoal.router.journal import Journal, no_depth
from shoal.router.service.app import create_app
from shoal.router.service.options import ServiceOptions
from shoal.router.service.server import server

TOTAL = 30
# left out: positive_data_acceptance, since fields of OpenAI's that Shoal does not do are valid and refused
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,ignored_auth"
)


class ScriptedRouter:
    """Answers by the first word of the question, through the router's own data classes.

    `slow N` gives N tokens, 5 ms each; `faq` an FAQ answer; `cached` a cache hit; `refuse`, `nomodel`, `crash` and
    `break` (mid-stream) fail; `hang` says nothing until it is cancelled, `stall` so after one word; all else is echoed
    as words at depth 21.5.
    """

    total = TOTAL
    model_name = "scripted"
    model_fingerprint = "abc"
    cache = None
    faq: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.llm = SimpleNamespace(name="scripted", total=TOTAL, min_depth=15.0, get_layer_health=self._health)
        self.kb: Any = None
        self.running = 0
        self.made = 0
        self.layer_tokens = 0.0
        self.requests: list[Request] = []
        self._lock = threading.Lock()

    def embed(self, texts: list[str]) -> np.ndarray:
        return np.stack([np.full(4, 0.5, np.float32) * (1 if len(text) % 2 else -1) for text in texts])

    def usual_tokens(self, profile: str | None = None) -> int:
        return 256

    def decide(self, prompt: Any, **fields: Any) -> Decision:
        request = Request.of(prompt, **fields)
        if request.text.startswith("refuse"):
            raise Refused("This topic needs more thought than that.", "depth_attack")
        if request.max_depth in (0, 999):
            raise BudgetError("max_depth must be between 15 and 30 layers")
        route = {"faq": Route.FAQ, "cached": Route.DIRECT}.get(request.text.split()[0], Route.DEEP)
        return Decision(route=route, budget=24.0, total=TOTAL, bucket="16-26", confidence=0.9, cacheable=True)

    def ask_stream(
        self, prompt: Any, *, cancel: threading.Event | None = None, live: bool = True, **fields: Any
    ) -> Iterator[Piece]:
        request = Request.of(prompt, **fields)
        cancel = cancel or threading.Event()
        with self._lock:
            self.running += 1
            self.requests.append(request)
        try:
            yield from self._answer(request, cancel)
        finally:
            with self._lock:
                self.running -= 1

    def feedback(self, answer_id: str, *, up: bool, tenant: str = "default") -> bool:
        return any(r.request_id == answer_id and r.tenant == tenant for r in self.requests)

    def _answer(self, request: Request, cancel: threading.Event) -> Iterator[Piece]:
        decision, journal = self.decide(request), Journal(request.request_id)
        word = request.text.split()[0]
        if word == "nomodel":
            raise NoModel("this router has no language model")
        if word == "crash":
            raise KeyError(request.text)
        if word in ("faq", "cached"):
            route, tier = (Route.FAQ, None) if word == "faq" else (Route.CACHE, "l1")
            yield Piece(text="ready answer", depth=0.0)
            trace = journal.trace(route, decision, no_depth(TOTAL, 24.0), tier=tier)
            yield Piece(text="", depth=0.0, answer=Answer(text="ready answer", trace=trace))
            return
        if word == "stall":
            yield Piece(text="one ", depth=21.5)
        words, pause = (["tok "] * int(request.text.split()[1]), 0.005) if word == "slow" else (request.text.split(), 0)
        if word in ("hang", "stall"):
            while not cancel.wait(0.005):
                pass
        words, made = words[: request.max_tokens or 10_000], 0
        for each in words:
            if cancel.is_set():
                break
            if pause:
                time.sleep(pause)
            made += 1
            if word == "break" and made == 2:
                raise KeyError(request.text)
            yield Piece(text=each + ("" if pause else " "), depth=21.5)
        with self._lock:
            self.made += made
            self.layer_tokens += 21.5 * made
        depth = {
            **no_depth(TOTAL, 24.0),
            "prefill": 30.0, "max": 21.5, "mean": 21.5, "per_token": [21.5] * made,
            "layers": {f"layer_{i}": "pruned" if i in (3, 9, 10, 11) else "active" for i in range(TOTAL)},
            "branch_runs": [[0, 0] if i in (3, 9, 10, 11) else [made, made] for i in range(TOTAL)],
        }  # fmt: skip
        text = "".join(each + ("" if pause else " ") for each in words[:made])
        answer = Answer(
            text=text,
            trace=journal.trace(Route.DEEP, decision, depth, layer_tokens=21.5 * made),
            finish_reason="cancelled" if cancel.is_set() else "stop",
            prompt_tokens=len(request.text.split()),
            completion_tokens=made,
        )
        yield Piece(text="", depth=21.5, answer=answer)

    def _health(self) -> dict[str, Any]:
        layers = {f"layer_{i}": {"run_rate": 1.0, "attention": 1.0, "mlp": 1.0} for i in range(TOTAL)}
        return {"requests": 1, "tokens": self.made, "layers": layers}


class Served:
    """A service at an address, and clients of it. `key` is what they send when no other is given."""

    def __init__(self, url: str, key: str = "none") -> None:
        self.url, self.key = url, key

    def http(self, **kwargs: Any) -> httpx.Client:
        given = {"headers": {"Authorization": f"Bearer {self.key}"}} if self.key != "none" else {}
        return httpx.Client(base_url=self.url, timeout=20, trust_env=False, **given, **kwargs)

    @contextmanager
    def client(self, key: str | None = None) -> Iterator[openai.OpenAI]:
        with self.http() as http, openai.OpenAI(
            base_url=self.url + "/v1", api_key=key or self.key, max_retries=0, http_client=http
        ) as client:  # fmt: skip
            yield client


class Live(Served):
    """A running server: its address, its inside, and clients of it."""

    def __init__(self, router: Any, options: ServiceOptions) -> None:
        super().__init__("")
        self.router = router
        self.app = create_app(router, options)
        self.service = self.app.state.service
        self.server = server(self.app, options, host="127.0.0.1", port=0)
        self._thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> "Live":
        self._thread.start()
        wait_for(lambda: self.server.started)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture(scope="session")
def start_live() -> type[Live]:
    return Live


@pytest.fixture(name="wait_for", scope="session")
def wait_for_fixture() -> Any:
    return wait_for


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def router() -> ScriptedRouter:
    return ScriptedRouter()


@pytest.fixture(scope="module")
def live(router: ScriptedRouter) -> Iterator[Served]:
    """One of its own, or the one over a `ScriptedRouter` that SHOAL_SERVICE_URL and SHOAL_SERVICE_KEY name."""
    if url := os.environ.get("SHOAL_SERVICE_URL"):
        yield Served(url, os.environ["SHOAL_SERVICE_KEY"])
        return
    with Live(router, ServiceOptions()) as running:
        yield running


@pytest.fixture
def serving(router: ScriptedRouter) -> Any:
    """`with serving(concurrent=1) as live:` a server with other options."""

    @contextmanager
    def start(**options: Any) -> Iterator[Live]:
        with Live(router, ServiceOptions(**options)) as running:
            yield running

    return start


@pytest.fixture(scope="session")
def schemathesis() -> Any:
    """`schemathesis(url, secret, folder, examples)` fails where a service does not do as its OpenAPI page says."""
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("schemathesis is not installed")

    def run(url: str, secret: str, folder: Path, examples: int, phases: str = "coverage,fuzzing") -> None:
        command = [
            program, "run", "--checks", CHECKS, "--max-examples", str(examples), "--phases", phases,
            "--workers", "1", "--generation-database", "none", "--seed", "1", "--no-color",
            "--header", f"Authorization: Bearer {secret}",
        ]  # fmt: skip
        found = subprocess.run([*command, f"{url}/openapi.json"], cwd=folder, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]

    return run
