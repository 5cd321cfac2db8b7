"""The service over the real router, embedder, cache, knowledge base and model, through the `openai` client."""

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time

import httpx
import numpy as np
import openai
import pytest

from shoal import CognitiveRouter, DepthCache, KnowledgeBase, default_embedder
from shoal.router.service.keys import create_key
from shoal.router.service.options import ServiceOptions

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def real(llm, tmp_path_factory, start_live):
    embed = default_embedder()
    kb = KnowledgeBase.open(tmp_path_factory.mktemp("kb"))
    router = CognitiveRouter(llm=llm, kb=kb, cache=DepthCache(embed=embed, total=llm.total), embed=embed)
    with start_live(router, ServiceOptions()) as running:
        yield running
    kb.close()


def ask(client, text, **more):
    return client.chat.completions.with_raw_response.create(
        model="smollm2-135m", messages=[{"role": "user", "content": text}], max_tokens=12, **more
    )


def test_the_model_answers_and_the_second_time_the_cache_does(real):
    with real.client() as client:
        first, second = (ask(client, "Name the capital of France, please.") for _ in range(2))
    assert re.fullmatch(r"\d+/30", first.headers["x-compute-depth"])
    assert first.headers["x-cache"] == "miss"
    assert first.parse().usage.completion_tokens > 0
    assert (second.headers["x-cache"], second.headers["x-compute-depth"]) == ("hit-l1", "0/30")
    assert second.parse().choices[0].message.content == first.parse().choices[0].message.content


def test_a_thumb_down_takes_the_answer_out_of_the_cache(real):
    with real.client() as client:
        first = ask(client, "Name the capital of Italy, please.")
        body = {"request_id": first.headers["x-request-id"], "up": False}
        assert client.post("/feedback", body=body, cast_to=dict[str, object])["up"] is False
        assert ask(client, "Name the capital of Italy, please.").headers["x-cache"] == "miss"


def test_stream_and_whole_say_the_same(real):
    with real.client() as client:
        no = {"cache": False}
        whole = ask(client, "Write one line about rivers.", extra_body=no).parse()
        chunks = list(ask(client, "Write one line about rivers.", extra_body=no, stream=True).parse())
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    depths = [c.model_extra["shoal"]["depth"] for c in chunks]
    assert all(0 < d["max"] <= 30 for d in depths)
    assert depths[-1]["per_token"]


def test_budgets(real):
    with real.client() as client:
        assert ask(client, "Hello!", extra_body={"max_depth": 30, "cache": False}).status_code == 200
        for wrong in (0, -3, 31, "0%", "fast"):
            with pytest.raises(openai.BadRequestError) as caught:
                ask(client, "Hello!", extra_body={"max_depth": wrong})
            assert caught.value.param == "max_depth"
    with real.http() as http:
        assert http.post("/v1/route", json={"input": "Prove it.", "max_depth": 30}).json()["total"] == 30


def test_knowledge_base(real):
    text = "The Heron lamp weighs 740 grams. Its cable is two metres long."
    with real.http() as http:
        added = http.post("/v1/kb/documents", json={"documents": [{"id": "notes/heron.md", "text": text}]})
        assert added.json() == {"documents": 1, "chunks": 1}
        hit = http.post("/v1/kb/search", json={"query": "How heavy is the Heron lamp?"}).json()["hits"][0]
        assert hit["doc_id"] == "notes/heron.md"
        assert text[slice(*hit["span"])] == hit["text"]
        both = [{"id": "good", "text": "A good one."}, {"id": "bad", "text": "   "}]
        assert http.post("/v1/kb/documents", json={"documents": both}).status_code == 400
        assert http.get("/v1/kb").json()["documents"] == ["notes/heron.md"]
        assert http.delete("/v1/kb/documents/notes/heron.md").json()["deleted"]
        assert http.delete("/v1/kb/documents/notes/heron.md").json()["error"]["code"] == "document_not_found"


def test_embeddings_are_bilingual_unit_vectors(real):
    with real.client() as client:
        rows = client.embeddings.create(
            model="shoal-embed", input=["Where is the station?", "车站在哪里？", "I like tea."]
        )
    vectors = np.array([row.embedding for row in rows.data])
    assert vectors.shape == (3, 512)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    assert vectors[0] @ vectors[1] > 0.6 > vectors[0] @ vectors[2]


def test_a_prompt_longer_than_the_context_is_the_callers_error(real):
    with real.client() as client, pytest.raises(openai.BadRequestError) as caught:
        ask(client, "river " * 20_000, extra_body={"cache": False})
    assert "river river" not in str(caught.value)


def test_disconnects_stop_the_real_model(real, wait_for):
    for _ in range(10):
        with real.http() as http, http.stream("POST", "/v1/chat/completions", json={
            "model": "shoal", "stream": True, "max_tokens": 400, "cache": False, "temperature": 0.7, "seed": 1,
            "messages": [{"role": "user", "content": "Tell me a long story about a heron."}],
        }) as response:  # fmt: skip
            next(response.iter_lines())
    wait_for(lambda: real.service.admission.in_flight == 0, 20)
    assert (real.service.llm.scheduler.open, real.service.llm.scheduler.kv_bytes) == (0, 0)


def test_the_ledger_is_what_the_engine_counted_for_16_callers_with_one_quota(
    llm, tmp_path, start_live, wait_for, monkeypatch
):
    """Some read to the end, some leave; what the engine says at the end of each generation is booked and charged."""
    counted, stream = [], llm.stream

    def counting(*args, **kwargs):
        for chunk in stream(*args, **kwargs):
            if chunk.usage is not None:
                counted.append(chunk.usage.layer_tokens)
            yield chunk

    monkeypatch.setattr(llm, "stream", counting)
    secret, key = create_key(tmp_path / "keys.json", name="prepaid", quota=500_000, admin=True)
    options = ServiceOptions(keys_path=tmp_path / "keys.json", ledger_path=tmp_path / "l.sqlite", queue=64, queue_s=60)
    with start_live(CognitiveRouter(llm=llm), options) as live, live.http() as http:
        http.headers["Authorization"] = f"Bearer {secret}"

        def visit(index):
            body = {"model": "shoal", "max_tokens": 6, "cache": False, "stream": index % 3 == 0,
                    "messages": [{"role": "user", "content": f"Say {index}."}]}  # fmt: skip
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                if index % 3:
                    response.read()
                return response.status_code, live.service.ledger.balance(key.id).left

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            seen = list(pool.map(visit, range(32)))
        wait_for(lambda: not live.service.runs, 30)
        rows = http.get("/v1/usage").json()["rows"]
        balance = live.service.ledger.balance(key.id)
    assert {status for status, _ in seen} <= {200, 429}
    assert min(left for _, left in seen) >= 0
    assert sum(counted) > 0
    assert sum(row["layer_tokens"] for row in rows) == pytest.approx(sum(counted))
    assert (balance.reserved, balance.spent) == (0, pytest.approx(sum(counted)))


def test_layer_health(real):
    with real.http() as http:
        health = http.get("/v1/layers/health").json()
    assert len(health["layers"]) == 30


def test_router_only_without_torch_from_start_to_sigterm(tmp_path):
    code = "import sys; sys.modules['torch'] = None; from shoal.router.cli import main; sys.argv[0] = 'shoal'; main()"
    environment = {**os.environ, "SHOAL_HOME": str(tmp_path), "SHOAL_FAQ": str(tmp_path / "faq")}
    with httpx.Client(trust_env=False, timeout=20) as http:
        port = _free_port()
        process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", "--router-only", "--port", str(port)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        _until_ready(http, url, process)
        body = {"model": "shoal", "messages": [{"role": "user", "content": "Prove that 7 is prime, step by step."}]}
        refused = http.post(f"{url}/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_model")
        assert http.post(f"{url}/v1/route", json={"input": "hello"}).status_code == 200
        assert len(http.post(f"{url}/v1/embeddings", json={"model": "shoal", "input": "a"}).json()["data"]) == 1
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert "prime" not in output


def _free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _until_ready(http, url, process):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()[0]
        try:
            if http.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not come up")
