"""What the answer cache may answer over HTTP: real router, cache, embedder; a model that never says the same twice."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from shoal import default_embedder
from shoal.cache import DepthCache
from shoal.router import CognitiveRouter
from shoal.router.service.app import create_app
from tests.router.conftest import TOTAL, ScriptedModel

ASK = "Explain in two sentences how a heat pump warms a house in winter."


class Counting(ScriptedModel):
    """Says how often it was asked."""

    def stream(self, prompt: Any, **settings: Any) -> Any:
        self.says = f"Answer number {len(self.calls) + 1} to it."
        return super().stream(prompt, **settings)


@pytest.fixture(scope="module")
def model() -> Counting:
    return Counting()


@pytest.fixture(scope="module")
def cache() -> DepthCache:
    return DepthCache(embed=default_embedder(), total=TOTAL)


@pytest.fixture(scope="module")
def service(model: Counting, cache: DepthCache) -> Iterator[TestClient]:
    router = CognitiveRouter(llm=model, embed=cache.embed, cache=cache)
    with TestClient(create_app(router)) as client:
        yield client
    router.close()


@pytest.fixture
def http(service: TestClient, cache: DepthCache) -> TestClient:
    cache.invalidate()
    return service


def ask(http: TestClient, text: Any = ASK, headers: dict[str, str] | None = None, **fields: Any) -> tuple[str, str]:
    """What was said, and the `x-cache` header."""
    messages = fields.pop("messages", [{"role": "user", "content": text}])
    reply = http.post("/v1/chat/completions", json={"model": "shoal", "messages": messages, **fields}, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"], reply.headers["x-cache"]


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"stream_options": None, "user": "u", "metadata": {"a": "b"}}),
    ({}, {"seed": 7}),
    ({"temperature": 0.7, "seed": 3}, {"temperature": 0.7, "seed": 3}),
    ({"temperature": 0.7, "cache": {"sampled": True}}, {"temperature": 0.7, "cache": {"sampled": True}}),
    ({}, {"text": "  Explain in two sentences\nhow a heat pump  warms a house in winter. "}),
    ({}, {"text": ASK.replace("heat", "he\u200bat").replace("pump", "ｐｕｍｐ")}),
    ({}, {"text": [{"type": "text", "text": ASK}]}),
    ({}, {"cache": {"max_age_s": 60}}),
    ({}, {"headers": {"cache-control": "max-age=60"}}),
]
OTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.7}, {"temperature": 0.7}),
    ({"temperature": 0.7, "seed": 3}, {"temperature": 0.7, "seed": 4}),
    ({"temperature": 0.7, "seed": 3}, {"temperature": 0.8, "seed": 3}),
    ({"temperature": 0.7, "seed": 3, "top_p": 0.5}, {"temperature": 0.7, "seed": 3, "top_p": 0.9}),
    ({}, {"max_tokens": 9}),
    ({"stop": "\n"}, {"stop": "\n\n"}),
    ({"stop": [" a"]}, {"stop": ["a"]}),
    ({}, {"profile": "command"}),
    ({"max_depth": 20}, {"max_depth": 30}),
    ({}, {"cache": False}),
    ({"cache": False}, {}),
    ({}, {"cache": {"read": False}}),
    ({"cache": {"write": False}}, {}),
    ({}, {"cache": {"max_age_s": 0}}),
    ({}, {"headers": {"cache-control": "no-cache"}}),
    ({}, {"headers": {"cache-control": "max-age=0"}}),
    ({"headers": {"cache-control": "no-store"}}, {}),
    ({}, {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK}]}),
    ({"text": "What is 10² plus 1, roughly?"}, {"text": "What is 102 plus 1, roughly?"}),
    ({"text": "Explain what `ls -R` prints."}, {"text": "Explain what `ls -r` prints."}),
    ({"text": "Explain:\nif x:\n    a()\nb()"}, {"text": "Explain:\nif x:\n    a()\n    b()"}),
    ({"text": "Explain ```a  b``` to me."}, {"text": "Explain ```a b``` to me."}),
    ({"text": "三十天内可以退货的商品有哪些？"}, {"text": "十三天内可以退货的商品有哪些？"}),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_the_same_request_is_answered_once(http: TestClient, first: Any, second: Any) -> None:
    said, cache = ask(http, **first)
    assert cache == "miss"
    again, tier = ask(http, **second)
    assert (again, tier) == (said, "hit-l1")


@pytest.mark.parametrize(("first", "second"), OTHER)
def test_another_request_is_answered_anew(http: TestClient, first: Any, second: Any) -> None:
    said, _ = ask(http, **first)
    again, cache = ask(http, **second)
    assert again != said
    assert cache == "miss"


def test_an_age_that_is_no_number_is_refused(http: TestClient) -> None:
    asked = {"model": "shoal", "messages": [{"role": "user", "content": ASK}]}
    reply = http.post("/v1/chat/completions", json=asked, headers={"cache-control": "max-age=soon"})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "cache-control")
    assert "whole number of seconds" in error["message"]


def test_a_deeper_answer_serves_a_shallower_request(http: TestClient) -> None:
    said, _ = ask(http, max_depth=30)
    assert ask(http, max_depth=20) == (said, "hit-l1")


def test_full_width_digits_and_chinese_numerals_say_the_same(http: TestClient) -> None:
    said, _ = ask(http, "30天内可以退货的商品有哪些？")
    assert ask(http, "３０天内可以退货的商品有哪些？") == (said, "hit-l1")
    assert ask(http, "三十天内可以退货的商品有哪些？") == (said, "hit-semantic")


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_an_answer_that_was_cut_is_not_kept(http: TestClient, model: Counting, finish: str) -> None:
    model.finish = finish
    ask(http)
    model.finish = "stop"
    assert ask(http)[1] == "miss"


def test_an_answer_that_failed_is_not_kept(http: TestClient, model: Counting) -> None:
    model.fails = True
    assert (
        http.post(
            "/v1/chat/completions", json={"model": "shoal", "messages": [{"role": "user", "content": ASK}]}
        ).status_code
        == 500
    )
    model.fails = False
    assert ask(http)[1] == "miss"


def test_a_cached_answer_streams_as_a_stream(http: TestClient) -> None:
    ask(http)
    body = {"model": "shoal", "messages": [{"role": "user", "content": ASK}], "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"
    assert sum('"content":"' in line for line in lines) >= 1
    assert "".join(lines).count('"finish_reason":"stop"') == 1


def test_long_prompts_hit_exactly_only(http: TestClient) -> None:
    long = ASK + " It stands beside the house." * 60
    said, _ = ask(http, long)
    assert ask(http, long) == (said, "hit-l1")
    assert ask(http, long.replace("house", "home"))[0] != said
