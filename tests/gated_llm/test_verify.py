"""`shoal layers`: the figures that show skipping are the kernel's own and agree with the store and the report."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from shoal.gated_llm import GatedLLM
from shoal.gated_llm.errors import GatedError
from shoal.gated_llm.native import available
from shoal.gated_llm.verify import side_by_side

from .conftest import MakeModel

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(shoal: Run) -> Run:
    return shoal


def test_side_by_side_counts_what_ran(tiny: GatedLLM) -> None:
    full, shallow = side_by_side(tiny, [6, "75%"], "Name three uses.", max_tokens=12)
    assert set(full.calls) == {(full.tokens, full.tokens)}
    assert (full.dropped, full.dropped_calls, full.depth) == (0, 0, 6.0)
    assert (shallow.dropped_calls, shallow.total, shallow.counted_by) == (0, 6, "report")
    mask = np.array(tiny.plan.mask(shallow.dropped))
    assert (np.array(shallow.calls) == mask * shallow.tokens).all()
    assert shallow.depth <= 4.5
    assert shallow.kv_bytes / shallow.tokens < full.kv_bytes / full.tokens == 6 * 2 * 2 * 16 * 4
    assert json.loads(json.dumps(shallow.to_dict()))["calls"] == [list(pair) for pair in shallow.calls]


@pytest.mark.skipif(not available(), reason="no compiler on this machine")
def test_the_kernel_counts_for_itself(make_model: MakeModel) -> None:
    with GatedLLM.load(make_model(hidden_size=64, head_dim=32), dtype="int8") as llm:
        full, shallow = side_by_side(llm, ["100%", "75%"], "Name three uses.", max_tokens=12)
        assert full.counted_by == "kernel"
        assert set(full.calls) == {(full.tokens, full.tokens)}
        assert (shallow.dropped_calls, min(min(pair) for pair in shallow.calls)) == (0, 0)
        kernel = llm.model.kernel  # type: ignore[attr-defined]
        kv = kernel.new_kv(8)
        kernel.forward([5, 6, 7], [kv] * 3, [0, 1, 2])
        assert full.kv_bytes / full.tokens * 3 == kv.bytes_used


def test_one_token_shows_nothing(tiny: GatedLLM) -> None:
    with pytest.raises(GatedError, match="2 tokens"):
        side_by_side(tiny, [6], "Hi", max_tokens=1)


def test_the_commands(run: Run, tiny_folder: Path) -> None:
    model = ("--model", str(tiny_folder))
    code, out, _ = run("layers", "verify", *model, "--max-depth", "5", "--max-tokens", "8", "--json")
    assert code == 0
    assert [row["budget"] for row in json.loads(out)] == [6.0, 5.0]
    code, out, _ = run("layers", "verify", *model, "--max-depth", "5", "--max-tokens", "8")
    assert code == 0
    assert "They ran 0 times" in out
    code, out, _ = run("layers", *model, "--max-depth", "5", "--json")
    assert code == 0
    layer = json.loads(out)["layers"]["layer_1"]
    assert (layer["attention"], layer["mlp"]) == (0.0, 1.0)
    code, out, err = run("layers", *model)
    assert code == 0
    assert "100%" in out
    assert "last 3 requests" in err
    assert run("layers", "verify", *model, "--max-depth", "2")[0] == 2


@pytest.fixture
def service() -> Iterator[str]:
    """An address where health is told to whoever has the key, and a page that is not ours elsewhere."""
    layer = {"run_rate": 1, "attention": 1, "mlp": 0.5, "gate": 0.25, "signals": {"entropy": 1.5}}
    pages = {
        "/v1/layers/health": {"requests": 2, "tokens": 9, "layers": {"layer_0": layer, "layer_\x1b[2J": layer}},
        "/other/v1/layers/health": ["not ours"],
    }

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == "Bearer sk-1"
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(json.dumps(pages[self.path]).encode() if allowed else b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_health_of_a_running_service(run: Run, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run("layers", "--url", service)
    assert code == 1
    assert "SHOAL_API_KEY" in err
    monkeypatch.setenv("SHOAL_API_KEY", "sk-1")
    assert json.loads(run("layers", "--url", f"{service}/v1", "--json")[1])["tokens"] == 9
    code, out, err = run("layers", "--url", service)
    assert code == 0
    assert all(part in out for part in ("entropy", "50%", "0.25", "1.5"))
    assert "\x1b" not in out
    code, _, err = run("layers", "--url", f"{service}/other")
    assert code == 1
    assert "no Shoal service" in err


def test_an_address_where_nothing_answers(run: Run) -> None:
    assert run("layers", "--url", "http://127.0.0.1:9")[0] == 1
    assert run("layers", "--url", "file:///etc/passwd")[0] == 2
