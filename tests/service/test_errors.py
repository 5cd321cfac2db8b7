"""OpenAI's error shape on every path, nothing of the prompt in it, and limits that hold before any work."""

import json
import logging
import socket

import pytest

CANARY = "xyzzy-canary-7731"
ASK = {"model": "shoal", "messages": [{"role": "user", "content": CANARY}]}


def shape(response):
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"].startswith("req-")
    assert CANARY not in response.text
    return response.status_code, error["code"]


@pytest.mark.parametrize(
    ("method", "path", "kwargs", "expected"),
    [
        ("GET", "/nowhere", {}, (404, "not_found")),
        ("POST", "/v1/nowhere", {"json": ASK}, (404, "not_found")),
        ("GET", "/v1/models/", {}, (404, "model_not_found")),
        ("GET", "/v1/chat/completions", {}, (405, "method_not_allowed")),
        ("DELETE", "/v1/models", {}, (405, "method_not_allowed")),
        ("POST", "/v1/chat/completions", {"content": b"{}"}, (415, "unsupported_media_type")),
        ("POST", "/v1/chat/completions", {"data": {"a": CANARY}}, (415, "unsupported_media_type")),
        ("POST", "/v1/chat/completions", {}, (400, "invalid_type")),
        ("POST", "/v1/chat/completions", {"json": [CANARY]}, (400, "invalid_type")),
        ("POST", "/v1/chat/completions", {"json": {"model": "shoal"}}, (400, "invalid_type")),
        ("POST", "/v1/chat/completions", {"json": {**ASK, "profile": 5}}, (400, "invalid_type")),
        ("POST", "/v1/chat/completions", {"json": {**ASK, "max_depth": True}}, (400, "invalid_type")),
        ("POST", "/v1/feedback", {"json": {"request_id": "req-no", "up": True}}, (404, "answer_not_found")),
        ("POST", "/v1/kb/search", {"json": {"query": "q"}}, (503, "no_knowledge_base")),
        ("POST", "/v1/route", {"json": {"input": "refuse " + CANARY}}, (422, "depth_attack")),
    ],
)
def test_shape_on_every_path(live, method, path, kwargs, expected):
    with live.http() as http:
        response = http.request(method, path, **kwargs)
    assert shape(response) == expected
    if expected[0] == 405:
        assert response.headers["allow"]


@pytest.mark.parametrize(
    "body",
    [
        b"{" + CANARY.encode(),
        b"[" * 100_000,
        b'{"model": "shoal", "messages": ' + b'[{"a":' * 20_000,
        b'{"model": "shoal", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "shoal", "temperature": NaN, "messages": [{"role": "user", "content": "a"}]}',
        b'{"model": "shoal", "seed": ' + b"9" * 5000 + b', "messages": [{"role": "user", "content": "a"}]}',
        b"\xff\xfe\x00",
        b"",
    ],
)
def test_bodies_that_are_not_requests(live, body):
    with live.http() as http:
        response = http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
        assert shape(response)[0] == 400
        assert len(response.content) < 1000
        assert http.get("/healthz").status_code == 200


def test_unknown_fields_are_tolerated(live):
    with live.http() as http:
        response = http.post("/v1/chat/completions", json={**ASK, "made_up": {"a": [1]}, "store": True})
    assert response.status_code == 200


def test_a_large_body_is_refused_unread(serving):
    with serving(max_body=1000) as live, live.http() as http:
        response = http.post("/v1/chat/completions", json={**ASK, "user": "x" * 5000})
        assert shape(response) == (413, "request_too_large")

        def endless():
            for _ in range(100):
                yield b"x" * 100

        response = http.post("/v1/chat/completions", content=endless(), headers={"Content-Type": "application/json"})
        assert shape(response) == (413, "request_too_large")


def test_a_body_that_never_comes_is_given_up(serving):
    with serving(body_s=0.2) as live, socket.create_connection(("127.0.0.1", live.port)) as raw:
        raw.settimeout(5)
        raw.sendall(
            b"POST /v1/route HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert b"408" in raw.recv(4096).split(b"\r\n")[0]


def test_what_is_not_http_gets_the_same_shape(live):
    with socket.create_connection(("127.0.0.1", live.port)) as raw:
        raw.settimeout(5)
        raw.sendall(b"\x00\x01garbage\r\n\r\n")
        head, _, body = raw.recv(4096).partition(b"\r\n\r\n")
    assert b"400" in head.split(b"\r\n")[0]
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_limits_of_the_request(serving):
    with serving(max_prompt_chars=20, max_tokens=8, max_inputs=2) as live, live.http() as http:
        long = http.post("/v1/chat/completions", json={**ASK, "messages": [{"role": "user", "content": "x" * 21}]})
        assert shape(long) == (400, "context_length_exceeded")
        assert http.post("/v1/chat/completions", json={**ASK, "max_tokens": 9}).json()["error"]["param"] == "max_tokens"
        many = http.post("/v1/embeddings", json={"model": "shoal", "input": ["a"] * 3})
        assert shape(many) == (400, "context_length_exceeded")


def test_a_crash_says_nothing_of_the_prompt_anywhere(live, caplog):
    caplog.set_level(logging.DEBUG)
    with live.http() as http:
        for word in ("crash", "break", "refuse", "nomodel"):
            for stream in (False, True):
                body = {**ASK, "messages": [{"role": "user", "content": f"{word} {CANARY} a b"}], "stream": stream}
                try:
                    text = http.post("/v1/chat/completions", json=body).text
                except Exception as error:
                    text = str(error)
                assert word != "crash" or "internal_error" in text
                if not (word == "break" and stream):  # two tokens had been sent before it broke
                    assert CANARY not in text
        assert CANARY not in http.get("/metrics").text
    assert "unexpected KeyError" in caplog.text
    assert CANARY not in "".join(record.getMessage() for record in caplog.records if record.name != "httpx")


def test_the_openapi_document_knows_every_path_and_refusal(live):
    with live.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/route", "/v1/feedback",
            "/v1/layers/health", "/v1/kb/search", "/healthz", "/readyz", "/metrics"} <= set(paths)  # fmt: skip
    for path in paths.values():
        for operation in path.values():
            assert {"401", "413", "415", "422", "429", "503"} <= set(operation["responses"])
            assert "HTTPValidationError" not in json.dumps(operation)
