"""API keys: what the file holds, what they open, whose tenant they are."""

import openai
import pytest

from shoal.router.service.keys import KeyFileError, KeyRing, change_key, create_key, list_keys, revoke_key
from shoal.router.service.options import BadOptions, ServiceOptions
from shoal.router.service.server import NotOpen, check_open

ASK = {"model": "shoal", "messages": [{"role": "user", "content": "hello you"}]}


def test_the_secret_is_never_stored(tmp_path):
    path = tmp_path / "keys.json"
    secret, key = create_key(path, name="web", tenant="acme", rpm=5)
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert secret not in repr(key)
    assert key.sha256 not in repr(key)
    assert "sha256" not in key.public()
    assert [k.id for k in list_keys(path)] == [key.id]
    assert revoke_key(path, "web").id == key.id
    assert list_keys(path) == []


def test_wrong_use_says_what_to_do(tmp_path):
    path = tmp_path / "keys.json"
    with pytest.raises(KeyFileError, match="tenant"):
        create_key(path, name="a", tenant="no spaces")
    with pytest.raises(KeyFileError, match="limits"):
        create_key(path, name="a", rpm=-1)
    with pytest.raises(KeyFileError, match="0 keys"):
        revoke_key(path, "ghost")
    path.write_text('{"version": 2, "keys": []}')
    with pytest.raises(KeyFileError, match="has version 2; this version of Shoal reads 1"):
        list_keys(path)
    path.write_text("[]")
    with pytest.raises(KeyFileError, match="not a key file"):
        list_keys(path)


def test_a_running_ring_sees_changes(tmp_path):
    path = tmp_path / "keys.json"
    ring = KeyRing(path)
    assert ring.find("sk-shoal-x") is None
    secret, key = create_key(path, name="a")
    assert ring.find(secret) == key
    assert ring.find(secret + "x") is None
    assert change_key(path, "a", quota=500, rpm=3).id == key.id
    assert (ring.find(secret).quota, ring.find(secret).rpm, ring.find(secret).concurrent) == (500, 3, 0)
    with pytest.raises(KeyFileError, match="limits"):
        change_key(path, "a", quota=float("nan"))
    revoke_key(path, key.id)
    assert ring.find(secret) is None


def test_only_keys_open_the_service_and_bring_their_tenant(serving, router, tmp_path):
    path = tmp_path / "keys.json"
    one, _ = create_key(path, name="one", tenant="acme", max_tokens=5)
    two, _ = create_key(path, name="two", tenant="umbrella", admin=True)
    with serving(keys_path=path) as live:
        for secret, tenant in ((one, "acme"), (two, "umbrella")):
            with live.client(secret) as client:
                client.chat.completions.create(**ASK)
            assert router.requests[-1].tenant == tenant
            assert router.requests[-1].max_tokens == (5 if secret == one else None)  # the key's limit, unasked
        with live.client(one) as client, pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**ASK, max_tokens=6)
        for wrong in ("sk-shoal-wrong", "é", one + "x", one[:-1]):
            with live.http() as http:
                response = http.get("/v1/models", headers={"Authorization": f"Bearer {wrong}".encode()})
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
        with live.client("wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with live.client(one) as client, pytest.raises(openai.PermissionDeniedError):
            client.post("/kb/documents", body={"documents": [{"id": "a", "text": "b"}]}, cast_to=object)


def test_only_health_is_open_whatever_the_host_header_says(serving, tmp_path):
    path = tmp_path / "keys.json"
    create_key(path, name="one")
    with serving(keys_path=path) as live, live.http() as http:
        assert http.get("/healthz").status_code == 200
        assert http.get("/readyz").status_code == 200
        for route in ("/v1/models", "/metrics", "/openapi.json", "/v1/kb", "/healthz/", "//healthz"):
            for headers in (
                {},
                {"Host": "localhost/healthz"},
                {"X-Forwarded-For": "127.0.0.1"},
                {"Host": "x/healthz?"},
            ):
                assert http.get(route, headers=headers).status_code in (400, 401)
        assert http.get("/v1/models", headers={"Authorization": "Basic abc"}).status_code == 401


def test_feedback_is_the_tenants_own(serving, tmp_path):
    path = tmp_path / "keys.json"
    one, _ = create_key(path, name="one", tenant="acme")
    two, _ = create_key(path, name="two", tenant="umbrella")
    with serving(keys_path=path) as live, live.http() as http:
        mine = {"Authorization": f"Bearer {one}"}
        other = {"Authorization": f"Bearer {two}"}
        answer = http.post("/v1/chat/completions", json=ASK, headers=mine)
        thumb = {"request_id": answer.headers["x-request-id"], "up": False}
        assert http.post("/v1/feedback", json=thumb, headers=other).status_code == 404
        assert http.post("/v1/feedback", json=thumb, headers=mine).json() == thumb
        behind = {**thumb, "request_id": f"{thumb['request_id']}, 0bc6006b"}  # as a proxy that adds its own gives it
        assert http.post("/v1/feedback", json=behind, headers=mine).json() == thumb


def test_options_are_checked_by_name():
    made = ServiceOptions.of({"concurrent": 3, "queue": 0, "queue_s": 1, "span_text": True, "max_prompt_tokens": 99})
    assert (made.concurrent, made.queue, made.queue_s, made.span_text) == (3, 0, 1, True)
    wrong = {
        "concurrent": 2.5, "queue": -1, "queue_s": "1", "span_text": 1, "drain_s": True, "between_s": float("inf"),
        "max_prompt_tokens": 0, "keys_path": 1, "colour": 1,
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(BadOptions, match=name):
            ServiceOptions.of({name: value})


def test_it_opens_to_others_only_when_asked(tmp_path):
    options = ServiceOptions()
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        check_open(host, options, open_access=False)
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org", ""):
        with pytest.raises(NotOpen):
            check_open(host, options, open_access=False)
        check_open(host, options, open_access=True)
    keyed = ServiceOptions(keys_path=tmp_path / "keys.json")
    check_open("0.0.0.0", keyed, open_access=False)
