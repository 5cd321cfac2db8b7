"""What callers, networks and operators do to a service, and that nothing of it stays behind."""

import concurrent.futures
import json
import random
import signal
import socket
import threading
import time

import httpx
import openai
import pytest

from shoal import KnowledgeBase


def ask(text, **more):
    return {"model": "shoal", "messages": [{"role": "user", "content": text}], **more}


def head_of(body):
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\nContent-Type: application/json\r\n\r\n"


def raw_post(live, body):
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=10)
    data = json.dumps(body).encode()
    connection.sendall(head_of(data) + data)
    return connection


def idle(live):
    return lambda: (live.service.admission.in_flight, live.service.admission.queued, live.router.running) == (0, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_stops_the_generation_at_the_next_token(serving, router, stream, wait_for):
    with serving() as live:
        before = router.made
        connection = raw_post(live, ask("slow 2000", stream=stream))
        wait_for(lambda: router.running == 1)
        time.sleep(0.05)
        connection.close()
        wait_for(idle(live), 5)
    assert router.made - before < 500


def test_two_hundred_disconnects_leave_nothing_behind(serving, router, wait_for):
    """Before the head is sent, in the body, in the queue, before and amid the tokens."""
    chance = random.Random(1)
    with serving(concurrent=3, queue=5) as live:
        for index in range(200):
            body = json.dumps(ask("slow 40", stream=bool(index % 2))).encode()
            head = head_of(body)
            request = head + body
            connection = socket.create_connection(("127.0.0.1", live.port), timeout=10)
            cut = chance.choice([0, 20, len(head), len(head) + 10, len(request), len(request), len(request)])
            connection.sendall(request[:cut])
            time.sleep(chance.choice([0, 0.001, 0.01, 0.03]))
            if chance.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # reset, not close
            connection.close()
        wait_for(idle(live))
        wait_for(lambda: not live.service.runs)
        assert live.service.admission._by_key == {}
        with live.client() as client:
            assert client.chat.completions.create(**ask("still here")).choices[0].message.content == "still here "


def test_one_callers_leaving_does_not_touch_anothers_stream(serving, router):
    with serving() as live, live.client() as client:
        stream = client.chat.completions.create(**ask("slow 60", stream=True))
        texts = [next(stream).choices[0].delta.content]
        leaver = raw_post(live, ask("slow 60", stream=True))
        leaver.recv(10)
        leaver.close()
        texts += [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(texts) == "tok " * 60


def test_a_full_server_says_so_and_its_queue_is_bounded(serving, router, wait_for):
    with serving(concurrent=2, queue=2, queue_s=20) as live, concurrent.futures.ThreadPoolExecutor(8) as pool:

        def one():
            with live.http() as http:
                return http.post("/v1/chat/completions", json=ask("slow 60"))

        answers = [future.result() for future in [pool.submit(one) for _ in range(8)]]
        full = [a for a in answers if a.status_code == 503]
        wait_for(idle(live))
    assert len(full) >= 3
    assert {a.status_code for a in answers} == {200, 503}
    assert all(int(a.headers["retry-after"]) >= 1 and a.json()["error"]["code"] == "overloaded" for a in full)


@pytest.mark.parametrize("limits", [{"first_token_s": 0.1}, {"total_s": 0.1}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_hangs_is_given_up(serving, limits, stream, wait_for):
    with serving(**limits) as live, live.client() as client:
        with pytest.raises(openai.APIError) as caught:
            client.chat.completions.create(**ask("hang x", stream=stream))
        assert caught.value.code == "timeout"
        wait_for(idle(live))


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_stops_amid_an_answer_is_given_up(serving, stream, wait_for):
    with serving(between_s=0.1) as live, live.client() as client:
        with pytest.raises(openai.APIError) as caught:
            list(client.chat.completions.create(**ask("stall x", stream=stream)))
        assert caught.value.code == "timeout"
        wait_for(idle(live))


def test_no_url_of_a_caller_is_ever_opened(serving, router, tmp_path, monkeypatch):
    """Pictures, schemas, documents and redirects may name addresses; nobody is called there."""
    monkeypatch.setattr(router, "kb", KnowledgeBase.open(tmp_path / "kb"))
    with socket.create_server(("127.0.0.1", 0)) as trap, serving() as live, live.http() as http:
        trap.setblocking(False)
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/x"
        picture = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is this"}]
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": url}}}
        said = {"model": "shoal", "messages": [{"role": "user", "content": picture}]}
        answers = [
            http.post("/v1/chat/completions", json=said),
            http.post("/v1/chat/completions", json={**ask(f"read {url}"), "response_format": form}),
            http.post("/v1/kb/documents", json={"documents": [{"id": url, "text": f'<img src="{url}"> {url}'}]}),
            http.post("/v1/kb/search", json={"query": url}),
            http.post("/v1/embeddings", json={"model": "shoal", "input": url}),
            http.get(f"/v1/models/{url}", headers={"Host": url[7:-2], "X-Forwarded-Host": url[7:-2]}),
        ]
        with pytest.raises(BlockingIOError):
            trap.accept()
        router.kb.close()
    assert all(answer.status_code < 500 for answer in answers)


def test_a_stream_over_its_time_ends_with_an_error(serving, wait_for):
    with serving(total_s=0.15) as live, live.client() as client:
        texts = []
        with pytest.raises(openai.APIError) as caught:
            texts.extend(
                c.choices[0].delta.content for c in client.chat.completions.create(**ask("slow 900", stream=True))
            )
        assert caught.value.code == "timeout"
        wait_for(idle(live))


def test_a_reader_who_reads_nothing_is_given_up(serving, wait_for):
    with serving(total_s=0.5) as live:
        connection = raw_post(live, ask("y " * 60_000, stream=True))
        wait_for(lambda: live.router.running == 1)
        wait_for(idle(live), 8)
        connection.close()


def test_slow_heads_are_closed(serving, wait_for):
    with serving(head_s=0.3) as live:
        slow = [socket.create_connection(("127.0.0.1", live.port), timeout=5) for _ in range(30)]
        for connection in slow:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nX-A: ")
        end = time.monotonic() + 5
        while slow and time.monotonic() < end:
            for connection in list(slow):
                try:
                    connection.sendall(b"a")
                    connection.settimeout(0.01)
                    if b"408" in connection.recv(1000):
                        slow.remove(connection)
                        connection.close()
                except TimeoutError:
                    continue
                except OSError:
                    slow.remove(connection)
                    connection.close()
        assert not slow
        wait_for(lambda: not live.server.server_state.connections)
        with live.http() as http:  # a live connection may rest between requests
            assert http.get("/healthz").status_code == 200
            time.sleep(0.5)
            assert http.get("/healthz").status_code == 200


def test_connections_are_bounded(serving, wait_for):
    with serving(max_connections=5) as live:
        held = [socket.create_connection(("127.0.0.1", live.port), timeout=5) for _ in range(5)]
        wait_for(lambda: len(live.server.server_state.connections) == 5)
        with live.http() as http:
            response = http.get("/healthz")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "overloaded"
        for connection in held:
            connection.close()
        wait_for(lambda: not live.server.server_state.connections)
        with live.http() as http:
            assert http.get("/healthz").status_code == 200


def test_a_hundred_megabytes_are_refused_without_being_kept(live):
    def rss():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = rss()

    def body():
        block = b"x" * (1 << 20)
        for _ in range(100):
            yield block

    with live.http() as http:
        declared = http.post(
            "/v1/chat/completions",
            content=body(),
            headers={"Content-Type": "application/json", "Content-Length": str(100 << 20)},
        )
        chunked = http.post("/v1/chat/completions", content=body(), headers={"Content-Type": "application/json"})
    assert (declared.status_code, chunked.status_code) == (413, 413)
    assert rss() - before < 40 << 20


class Streams:
    """Twenty callers reading streams at once; what each got, and how it ended."""

    def __init__(self, live, count, tokens):
        self.live, self.tokens = live, tokens
        self.ends = []
        self.threads = [threading.Thread(target=self.read) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def read(self):
        with self.live.client() as client:
            try:
                chunks = list(client.chat.completions.create(**ask(f"slow {self.tokens}", stream=True)))
                self.ends.append(chunks[-1].choices[0].finish_reason)
            except (openai.APIError, httpx.HTTPError) as error:
                self.ends.append(getattr(error, "code", None) or type(error).__name__)

    def join(self):
        for thread in self.threads:
            thread.join(20)
        return sorted(self.ends)


def test_sigterm_lets_streams_finish(serving, router, wait_for):
    with serving(concurrent=20) as live:
        streams = Streams(live, 20, 600)
        wait_for(lambda: router.running == 20)
        live.server.handle_exit(signal.SIGTERM, None)
        assert streams.join() == ["stop"] * 20
        wait_for(idle(live))


def test_sigterm_ends_what_takes_too_long_with_an_error(serving, router, wait_for):
    with serving(concurrent=10, queue=10, drain_s=0.3) as live:
        streams = Streams(live, 20, 5000)
        wait_for(lambda: router.running == 10 and live.service.admission.queued == 10)
        live.server.handle_exit(signal.SIGTERM, None)
        ends = streams.join()
        wait_for(idle(live))
    assert ends == ["shutting_down"] * 20


def test_draining_is_not_ready_and_admits_nothing(serving):
    with serving() as live, live.http() as http:
        live.service.drain()
        assert http.get("/readyz").status_code == 503
        assert http.get("/healthz").status_code == 200
        refused = http.post("/v1/chat/completions", json=ask("a"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"]
