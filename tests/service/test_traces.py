"""Traces over HTTP: the id is the request's, other tenants' do not exist, base64 on request; and the layer probe."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal import default_embedder
from shoal.gated_llm import Chunk, DepthReport, Usage
from shoal.gated_llm.policy import Budget, Plan, resolve_budget
from shoal.gated_llm.trace import DepthTrace, Reason, TokenTrace, points_of, uniform
from shoal.router import CognitiveRouter
from shoal.router.service.keys import create_key
from shoal.router.service.options import ServiceOptions
from shoal.router.traces import Record, Recorder, TraceStore

CHAT = {"model": "shoal", "messages": [{"role": "user", "content": "Prove it. <LAYER_TEST:4>"}]}


class Planned:
    """Says three words under a plan that can leave out layer 4 whole, then one branch of layer 5."""

    name, total, context, fingerprint = "planned", 30, 2048, "planned-1"
    plan = Plan.from_order(
        [("mlp", 4), ("attention", 4), ("mlp", 5)], [0.1, 0.2, 0.3], total=30, attention_share=0.25,
        model_fingerprint="planned",
    )  # fmt: skip
    min_depth = plan.min_depth

    def resolve_budget(self, max_depth: int | str = "auto") -> Budget:
        return resolve_budget(max_depth, self.plan, quality=0.003)

    def count_tokens(self, prompt: Any) -> int:
        return len(str(prompt).split())

    def stream(self, prompt: Any, **settings: Any) -> Iterator[Chunk]:
        budget = self.resolve_budget(settings["max_depth"])
        mask = self.plan.mask(budget.dropped)
        for made, word in enumerate(("It ", "is ", "so.", ""), 1):
            yield Chunk(
                text=word,
                depth=DepthReport(
                    total=30, budget=budget.depth, prefill=30.0, per_token=(self.plan.depth_at(budget.dropped),) * made,
                    branch_runs=tuple((made * a, made * m) for a, m in mask), policy=budget.policy,
                    gate_fingerprint=self.plan.fingerprint,
                ),
                finish_reason=None if word else "stop",
                usage=None if word else Usage(prompt_tokens=3, completion_tokens=4, layer_tokens=100.0),
                confidence=0.9,
                trace=None if word or not settings["trace"] else self._trace(budget),
            )  # fmt: skip

    def _trace(self, budget: Budget) -> DepthTrace:
        branches = uniform(self.plan.mask(budget.dropped), Reason.PLAN)
        return DepthTrace(
            total=30, policy=budget.policy, budget=budget.depth, prefill=30.0, gate_fingerprint=self.plan.fingerprint,
            points=points_of(self.plan, budget.dropped),
            tokens=tuple(
                TokenTrace(index=i, token=word, depth=self.plan.depth_at(budget.dropped), branches=branches)
                for i, word in enumerate(("It ", "is ", "so.", ""))
            ),
        )  # fmt: skip

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, start_live: Any) -> Iterator[tuple[Any, dict[str, dict[str, str]]]]:
    """A server with a store, a layer probe, and a key for each of two tenants."""
    home: Path = tmp_path_factory.mktemp("home")
    headers = {}
    for tenant in ("acme", "other"):
        secret, _ = create_key(home / "keys.json", name=tenant, tenant=tenant, admin=tenant == "other")
        headers[tenant] = {"Authorization": f"Bearer {secret}"}
    recorder = Recorder(TraceStore(home / "traces.sqlite"), mode="light")
    router = CognitiveRouter(llm=Planned(), embed=default_embedder(), recorder=recorder, layer_probe=True)
    with start_live(router, ServiceOptions(keys_path=home / "keys.json")) as live:
        yield live, headers
    router.close()


def test_a_full_trace_is_read_by_the_request_s_id(keyed: Any) -> None:
    live, headers = keyed
    with live.http(headers=headers["acme"]) as http:
        reply = http.post("/v1/chat/completions", json={**CHAT, "trace": "full", "cache": False})
        made = reply.json()
        kept = http.get(f"/v1/traces/{reply.headers['x-request-id']}")
        coded = http.get(f"/v1/traces/{made['shoal']['id']}", params={"encoding": "base64"}).json()
    assert kept.status_code == 200
    assert kept.json()["mode"] == "full"
    assert kept.json()["trace"]["route"] == made["shoal"]["route"]
    assert "".join(kept.json()["tokens"]["tokens"]) == made["choices"][0]["message"]["content"]
    assert json.loads(base64.b64decode(coded["data"])) == kept.json()
    assert Record.read(coded["data"]).tokens is not None
    assert not any("trace" in name.lower() for name in reply.headers)
    assert "Prove it" not in kept.text


def test_a_stream_s_trace_has_the_same_id_and_mode_off_keeps_nothing(keyed: Any) -> None:
    live, headers = keyed
    with live.http(headers=headers["acme"]) as http:
        streamed = http.post("/v1/chat/completions", json={**CHAT, "stream": True, "cache": False})
        light = http.get(f"/v1/traces/{streamed.headers['x-request-id']}").json()
        off = http.post("/v1/chat/completions", json={**CHAT, "trace": "off", "cache": False})
        gone = http.get(f"/v1/traces/{off.headers['x-request-id']}")
        wrong = http.post("/v1/chat/completions", json={**CHAT, "trace": "loud"})
    assert (light["mode"], light["tokens"]) == ("light", None)
    assert gone.status_code == 404
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "trace")


def test_another_tenant_s_and_unknown_traces_do_not_exist(keyed: Any) -> None:
    live, headers = keyed
    with live.http(headers=headers["acme"]) as http:
        trace_id = http.post("/v1/chat/completions", json=CHAT).headers["x-request-id"]
        unknown = http.get("/v1/traces/req-none")
        long = http.get("/v1/traces/" + "x" * 200)
        odd = http.get(f"/v1/traces/{trace_id}", params={"encoding": "xml"})
    with live.http(headers=headers["other"]) as http:  # not even for an admin
        theirs = http.get(f"/v1/traces/{trace_id}")
    with live.http() as http:
        assert http.get(f"/v1/traces/{trace_id}").status_code == 401
    assert unknown.status_code == theirs.status_code == 404
    assert unknown.json() == theirs.json()
    assert theirs.json()["error"]["code"] == "trace_not_found"
    assert set(theirs.json()["error"]) == {"message", "type", "param", "code"}
    assert long.status_code == odd.status_code == 400


def test_a_server_without_a_store_says_so(live: Any) -> None:
    with live.http() as http:
        reply = http.get("/v1/traces/req-1")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_traces")


def test_openapi_tells_of_traces(live: Any) -> None:
    with live.http() as http:
        page = http.get("/openapi.json").json()
    assert "encoding" in json.dumps(page["paths"]["/v1/traces/{trace_id}"])
    assert "trace" in page["components"]["schemas"]["ChatBody"]["properties"]
    assert "trace" in page["components"]["schemas"]["CompletionBody"]["properties"]


def test_a_probed_layer_is_a_header(keyed: Any) -> None:
    live, headers = keyed
    with live.http(headers=headers["acme"]) as http:
        shallow = http.post("/v1/chat/completions", json={**CHAT, "cache": False, "max_depth": 29})
        deep = http.post("/v1/chat/completions", json={**CHAT, "cache": False, "max_depth": 30})
        wrong = http.post(
            "/v1/completions", json={"model": "shoal", "prompt": "Prove it. <LAYER_TEST:77>", "cache": False}
        )
    assert deep.headers["x-layer-4-status"] == "active"
    assert shallow.headers["x-layer-4-status"] == "pruned"
    assert not any(name.startswith("x-layer-5") for name in shallow.headers)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "messages")
