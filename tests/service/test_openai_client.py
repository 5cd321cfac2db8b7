"""The unmodified `openai` client against a real server: chat, stream, embeddings, models, and each class of error."""

import asyncio
import json

import openai
import pytest

ASK = {"model": "shoal", "messages": [{"role": "user", "content": "why is the sky blue"}]}
NESTED: dict = {}
for _ in range(400):
    NESTED = {"properties": {"a": NESTED}}


def test_chat_gives_text_usage_trace_and_headers(live):
    with live.client() as client:
        raw = client.chat.completions.with_raw_response.create(**ASK)
        done = raw.parse()
    assert done.choices[0].message.content == "why is the sky blue "
    assert done.choices[0].finish_reason == "stop"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (5, 5, 10)
    assert raw.headers["x-compute-depth"] == "22/30"
    assert raw.headers["x-route"] == "deep"
    assert raw.headers["x-cache"] == "miss"
    assert raw.headers["x-layer-stats"] == "mean=21.5;prefill=30;budget=24;tokens=107.5;pruned=3,9-11"
    trace = done.model_extra["shoal"]
    assert trace["id"] == raw.headers["x-request-id"].split(", ")[0]  # a proxy may add its own
    assert trace["depth"]["max"] == 21.5
    assert trace["decision"]["budget"] == 24


def test_answers_that_need_no_model_have_depth_0(live):
    with live.client() as client:
        for question, route, cache in (("faq hours", "faq", "miss"), ("cached hours", "cache", "hit-l1")):
            raw = client.chat.completions.with_raw_response.create(
                model="scripted", messages=[{"role": "user", "content": question}]
            )
            assert raw.headers["x-compute-depth"] == "0/30"
            assert (raw.headers["x-route"], raw.headers["x-cache"]) == (route, cache)


def test_stream_carries_depth_and_ends_with_report_and_usage(live):
    with live.client() as client:
        chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "why is the sky blue "
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:] if c.choices)
    assert all(c.model_extra["shoal"]["depth"]["max"] == 21.5 for c in chunks)
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 10
    assert chunks[-1].model_extra["shoal"]["route"] == "deep"
    assert len({c.id for c in chunks}) == 1


def test_a_stream_that_comes_from_the_cache_looks_the_same(live):
    with live.client() as client:
        raw = client.chat.completions.with_raw_response.create(
            model="shoal", messages=[{"role": "user", "content": "cached x"}], stream=True
        )
        chunks = list(raw.parse())
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "ready answer"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].model_extra["shoal"]["cache"] == {"tier": "l1"}


async def test_async_client(live):
    async with openai.AsyncOpenAI(base_url=live.url + "/v1", api_key=live.key, max_retries=0) as client:
        answers = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(12)))
    assert {a.choices[0].message.content for a in answers} == {"why is the sky blue "}


def test_settings_reach_the_router(live, router):
    with live.client() as client:
        client.chat.completions.create(
            model="shoal",
            messages=[
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            ],
            max_completion_tokens=7,
            temperature=0.5,
            top_p=0.9,
            seed=3,
            stop="END",
            extra_body={"max_depth": "60%", "profile": "command", "cache": {"read": False}, "made_up": 1},
        )
    asked = router.requests[-1]
    assert [m.role for m in asked.messages] == ["system", "user"]
    assert asked.text == "one\ntwo"
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.seed) == (7, 0.5, 0.9, 3)
    assert asked.stop == ("END",)
    assert (asked.max_depth, asked.profile) == ("60%", "command")
    assert (asked.cache.read, asked.cache.write) == (False, True)


def test_completions(live):
    with live.client() as client:
        done = client.completions.create(model="shoal", prompt="say this", max_tokens=1)
        assert done.choices[0].text == "say "
        parts = list(client.completions.create(model="shoal", prompt="say this", stream=True))
    assert "".join(p.choices[0].text for p in parts) == "say this "
    assert parts[-1].choices[0].finish_reason == "stop"


def test_several_answers_to_one_request(live):
    """Each is made for itself, with a seed of its own; the prompt counts once."""
    with live.client() as client:
        made = client.chat.completions.create(**ASK, n=3, seed=5)
        one = client.chat.completions.create(**ASK, seed=5)
        parts = list(client.chat.completions.create(**ASK, n=3, stream=True, stream_options={"include_usage": True}))
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    assert {choice.message.content for choice in made.choices} == {one.choices[0].message.content}
    assert made.usage.prompt_tokens == one.usage.prompt_tokens
    assert made.usage.completion_tokens == 3 * one.usage.completion_tokens
    assert sorted(r.seed for r in live.router.requests[-7:-4]) == [5, 6, 7]
    assert len({r.request_id for r in live.router.requests[-7:]}) == 7
    texts, ends = ["", "", ""], []
    for part in parts:
        for choice in part.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
    assert texts == [one.choices[0].message.content] * 3
    assert ends == [0, 1, 2]
    assert parts[-1].usage.completion_tokens == made.usage.completion_tokens


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1]}, "strict": True}}, {"enum": [1]}),
    ],
)
def test_the_form_of_an_answer_reaches_the_router(live, form, schema):
    with live.client() as client:
        client.chat.completions.create(**ASK, response_format=form)
    assert live.router.requests[-1].schema == schema


@pytest.mark.parametrize("stream", [False, True])
def test_one_of_several_answers_that_fails_fails_the_request(live, stream):
    asked = {**ASK, "messages": [{"role": "user", "content": "crash"}], "n": 3, "stream": stream}
    with live.client() as client, pytest.raises(openai.APIError):
        client.chat.completions.create(**asked)


def test_embeddings(live):
    with live.client() as client:
        found = client.embeddings.create(model="shoal-embed", input=["a", "bb"])  # asks for base64 by itself
        plain = client.embeddings.create(model="shoal", input="a", encoding_format="float")
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model="shoal", input=["a", ""])
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model="shoal", input="a", dimensions=7)
    assert [e.embedding for e in found.data] == [[0.5] * 4, [-0.5] * 4]
    assert plain.data[0].embedding == [0.5] * 4
    assert found.usage.prompt_tokens == 2


def test_models(live):
    with live.client() as client:
        assert [m.id for m in client.models.list()] == ["scripted", "shoal", "shoal-embed"]
        assert client.models.retrieve("scripted").owned_by == "shoal"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


@pytest.mark.parametrize(
    ("change", "kind", "code", "param"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": "warm"}, openai.BadRequestError, "invalid_type", "temperature"),
        ({"max_tokens": True}, openai.BadRequestError, "invalid_type", "max_tokens"),
        ({"messages": []}, openai.BadRequestError, "invalid_type", "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, openai.BadRequestError, "invalid_type", "messages.0.content"),
        ({"messages": [{"role": "user", "content": " "}]}, openai.BadRequestError, "invalid_request", "messages"),
        ({"n": 9}, openai.BadRequestError, "invalid_request", "n"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "unsupported_parameter", "tools"),
        (
            {"response_format": {"type": "json_schema"}},
            openai.BadRequestError,
            "invalid_request",
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": NESTED}}},
            openai.BadRequestError,
            "invalid_type",
            "response_format.json_schema.schema",
        ),
        ({"extra_body": {"max_depth": 999}}, openai.BadRequestError, "invalid_max_depth", "max_depth"),
        ({"extra_body": {"max_depth": 1.0}}, openai.BadRequestError, "invalid_type", "max_depth"),
        ({"max_tokens": 99_999}, openai.BadRequestError, "invalid_request", "max_tokens"),
        (
            {"messages": [{"role": "user", "content": "refuse"}]},
            openai.UnprocessableEntityError,
            "depth_attack",
            None,
        ),
        ({"messages": [{"role": "user", "content": "nomodel"}]}, openai.InternalServerError, "no_model", None),
        ({"messages": [{"role": "user", "content": "crash"}]}, openai.InternalServerError, "internal_error", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_refusal_is_the_clients_own_exception(live, change, kind, code, param, stream):
    with live.client() as client, pytest.raises(kind) as caught:
        client.chat.completions.create(**{**ASK, **change}, stream=stream)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.response.headers["x-request-id"].startswith("req-")


def test_a_stream_that_breaks_is_an_error_and_never_a_clean_end(live):
    with live.client() as client, pytest.raises(openai.APIError) as caught:
        list(
            client.chat.completions.create(
                model="shoal", messages=[{"role": "user", "content": "break a b c"}], stream=True
            )
        )
    assert caught.value.code == "internal_error"
    with live.http() as http, http.stream("POST", "/v1/chat/completions", json={
        "model": "shoal", "messages": [{"role": "user", "content": "break a b c"}], "stream": True
    }) as response:  # fmt: skip
        lines = []
        with pytest.raises(Exception, match="incomplete"):
            lines.extend(line for line in response.iter_lines() if line)
        response.close()
    assert b"[DONE]" not in json.dumps(lines).encode()
