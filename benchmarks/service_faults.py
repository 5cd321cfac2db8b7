"""What callers, networks and operators do to `shoal serve`, with counts: what was done, and what was left of it.

Real processes over loopback: the service with the default model, a Redis server, a proxy that is slow. `[PART ...]`
runs some parts only; the result keeps the others. About five minutes in all.
"""

import json
import os
import random
import signal
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx

from benchmarks._router import table
from benchmarks._service import FAQ, Served, ask, percentile, save
from tests.conftest import RedisServer
from tests.faults.conftest import Proxy

Row = dict[str, Any]
COUNTRIES = ("France", "Italy", "Spain", "Germany", "Poland", "Greece", "Norway", "Sweden", "Japan", "China", "India",
             "Egypt", "Kenya", "Chile", "Peru", "Cuba", "Canada", "Mexico", "Iran", "Turkey")  # fmt: skip
CANARY = "xyzzy-canary-7731"
DISCONNECTS = int(os.environ.get("SHOAL_DISCONNECTS", "1000"))
NAMES = int(os.environ.get("SHOAL_NAMES", "10000"))
PAUSE_S = float(os.environ.get("SHOAL_PAUSE_S", "60"))
RESET = b"\x01\0\0\0\0\0\0\0"  # linger 0: a reset instead of a close
TRIES = int(os.environ.get("SHOAL_TRIES", "1000"))  # of each kind of wrong key
WARM = 300  # disconnects before memory is first read
BREAKER = {0.0: "closed", 1.0: "half open", 2.0: "open"}


def raw_request(body: Any, key: str = "") -> tuple[bytes, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    auth = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{auth}Content-Length: {len(data)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n", data


def leave(served: Served, index: int) -> str:
    """One caller who goes away: in the head, in the body, in the queue, before or amid the tokens."""
    chance = random.Random(index)
    asked = ask(f"Tell me a story about number {index}.", stream=bool(index % 2), temperature=0.9, seed=index)
    head, body = raw_request({**asked, "max_tokens": 200})
    request = head + body
    cut = chance.choice([5, len(head), len(head) + 10, *[len(request)] * 5])
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(request[:cut])
        time.sleep(chance.choice([0, 0.005, 0.05, 0.2, 0.5]))
        if chance.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return "in the request" if cut < len(request) else "amid the answer"


def answers(served: Served) -> str:
    with served.http() as http:
        return "yes" if http.post("/v1/chat/completions", json=ask(FAQ)).status_code == 200 else "NO"


def memory(served: Served) -> float:
    """Resident MiB but for the keys and values of earlier prompts, which are kept up to 64 MiB."""
    return round(served.rss_mib - served.metrics()["shoal_prefix_bytes"] / 2**20, 1)


def disconnects() -> Iterator[Row]:
    with Served(options={"queue": 64, "queue_s": 60}, threads="1") as served, ThreadPoolExecutor(8) as pool:
        visit = partial(leave, served)
        list(pool.map(visit, range(-WARM, 0)))
        served.quiet()
        rss, files, began = [memory(served)], served.descriptors, time.monotonic()
        where = Counter[str]()
        for quarter in range(4):
            where.update(pool.map(visit, range(quarter * DISCONNECTS // 4, (quarter + 1) * DISCONNECTS // 4)))
            left = served.quiet()
            rss.append(memory(served))
        yield {
            "done": f"callers leave: {', '.join(f'{n} {what}' for what, n in sorted(where.items()))}",
            "times": DISCONNECTS, "errors in the log": served.log.read_text().count(" ERROR "),
            "in flight after": left, "KV bytes after": int(served.metrics()["shoal_kv_bytes"]),
            "RSS without kept prompts, before and after each quarter, MiB": rss, "files before": files,
            "files after": served.descriptors, "answers after": answers(served),
            "seconds": round(time.monotonic() - began),
        }  # fmt: skip


def redis_faults() -> Iterator[Row]:
    """New questions all the time, so that each is looked up in Redis and stored there."""
    faults: list[tuple[str, float, Callable[[RedisServer, Proxy], None], Callable[[RedisServer, Proxy], None]]] = [
        ("killed", 10.0, lambda server, _: server.kill(), lambda server, _: server.restart()),
        ("paused", PAUSE_S, lambda server, _: server.freeze(), lambda server, _: server.thaw()),
        ("200 ms slow", 10.0, lambda _, proxy: delay(proxy, 0.2), lambda _, proxy: delay(proxy, 0.0)),
    ]
    for name, seconds, damage, mend in faults:
        server = RedisServer()
        proxy = Proxy(server.port)
        with (
            Served(redis_url=proxy.url if "slow" in name else server.url, threads="1") as served,
            served.http() as http,
        ):
            before = drive(http, 5.0, new=True)
            damage(server, proxy)
            during = drive(http, seconds, new=True)
            broken = BREAKER[served.metrics()["shoal_redis_breaker"]]
            mend(server, proxy)
            after = drive(http, 12.0, new=True)
            mended = BREAKER[served.metrics()["shoal_redis_breaker"]]
            lines = sum("redis" in line.lower() for line in served.log.read_text().splitlines())
        times = [spent for _, spent in during]
        yield {
            "Redis": name, "for s": seconds, "requests": len(during), "not 200": sum(code != 200 for code, _ in during),
            "p50 before, ms": percentile([spent for _, spent in before], 0.5), "p50, ms": percentile(times, 0.5),
            "p99, ms": percentile(times, 0.99), "max, ms": percentile(times, 1.0), "breaker": broken,
            "breaker 12 s after": mended, "not 200 after": sum(code != 200 for code, _ in after),
            "lines in the log": lines,
        }  # fmt: skip
        proxy.close()
        server.close()


def delay(proxy: Proxy, seconds: float) -> None:
    proxy.delay_s = seconds


def drive(http: httpx.Client, seconds: float, *, new: bool = False) -> list[tuple[int, float]]:
    """The FAQ's question, or ever new ones for two tokens of the model, one at a time; status and seconds of each."""
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        asked = {**ask(f"Name the number {random.getrandbits(48)}."), "max_tokens": 2} if new else ask(FAQ)
        began = time.perf_counter()
        code = http.post("/v1/chat/completions", json=asked).status_code
        found.append((code, time.perf_counter() - began))
    return found


def read_stream(served: Served, index: int, tokens: int) -> str:
    """How a stream ended: `clean` with [DONE], the code of its error frame, a status, or `cut`."""
    asked = ask(f"Story {index}.", stream=True, temperature=0.9, seed=index, cache=False)
    last = ""
    try:
        with served.http() as http, http.stream(
            "POST", "/v1/chat/completions", json={**asked, "max_tokens": tokens}
        ) as response:  # fmt: skip
            if response.status_code != 200:
                response.read()
                return str(response.json()["error"]["code"])
            for line in response.iter_lines():
                last = line or last
    except httpx.HTTPError:
        pass
    if last == "data: [DONE]":
        return "clean"
    return json.loads(last[6:])["error"]["code"] if last.startswith('data: {"error"') else "cut"


def sigterm() -> Iterator[Row]:
    for name, tokens, drain in (("streams of 24 tokens", 24, 60.0), ("streams of 1,500 tokens", 1500, 2.0)):
        options = {"concurrent": 20, "drain_s": drain}
        with Served(options=options, threads="1") as served, ThreadPoolExecutor(20) as pool:
            streams = [pool.submit(read_stream, served, index, tokens) for index in range(20)]
            while served.metrics()["shoal_in_flight"] < 20 and not all(each.done() for each in streams):
                time.sleep(0.05)
            running = int(served.metrics()["shoal_in_flight"])
            began = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            ends = Counter(each.result() for each in streams)
            last = round(time.monotonic() - began, 1)
            code = served.process.wait(60)
            seconds = round(time.monotonic() - began, 1)
            log = served.log.read_text()
        yield {"SIGTERM during": name, "streams": 20, "running then": running, "drain allowed, s": drain,
               "ends": dict(ends), "seconds to the last end": last, "seconds to exit": seconds, "exit code": code,
               "tracebacks": log.count("Traceback")}  # fmt: skip


def names() -> Iterator[Row]:
    with Served("--router-only") as served, served.http() as http:
        http.post("/v1/chat/completions", json={**ask("x"), "model": "junk"})
        http.get("/v1/models/junk")
        http.get("/v1/junk")
        served.metrics()
        before, rss, codes = len(served.metrics()), served.rss_mib, Counter[int]()
        for index in range(NAMES):
            junk = f"junk-{index}-{'x' * (index % 50)}"
            codes[http.post("/v1/chat/completions", json={**ask("x"), "model": junk}).status_code] += 1
            if not index % 10:
                http.get(f"/v1/models/{junk}")
                http.get(f"/v1/{junk}")
        after = len(served.metrics())
        yield {"done": "fake model names", "times": NAMES, "statuses": dict(codes), "series before": before,
               "series after": after, "RSS before, MiB": rss, "RSS after, MiB": served.rss_mib,
               "in flight after": served.quiet()}  # fmt: skip


def bodies() -> Iterator[Row]:
    def blocks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * (1 << 20)

    def deep(opening: str, closing: str, times: int = 100_000) -> bytes:
        nested = opening * times + "1" + closing * times
        return f'{{"model": "shoal", "messages": [{{"role": "user", "content": "a"}}], "x": {nested}}}'.encode()

    json_type = {"Content-Type": "application/json"}
    declared = {**json_type, "Content-Length": str(100 << 20)}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": nest(400)}}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("100 MB, declared", {"content": blocks(), "headers": declared}),
        ("100 MB, chunked", {"content": blocks(), "headers": json_type}),
        ("JSON, 100,000 arrays deep", {"content": deep("[", "]"), "headers": json_type}),
        ("JSON, 100,000 objects deep", {"content": deep('{"a":', "}"), "headers": json_type}),
        ("JSON, 900,000 arrays never closed", {"content": b"[" * 900_000, "headers": json_type}),
        ("a number of 900,000 digits", {"content": b'{"seed":' + b"9" * 900_000 + b"}", "headers": json_type}),
        ("10,000 wrong messages", {"json": {"model": "shoal", "messages": [{"role": "x"}] * 10_000}}),
        ("answer schema, 400 deep", {"json": {**ask("a"), "response_format": form}}),
    ]
    with Served("--router-only") as served, served.http() as http:
        http.post("/v1/chat/completions", json=ask(FAQ))
        for name, sent in cases:
            rss, began = served.rss_mib, time.perf_counter()
            try:
                response = http.post("/v1/chat/completions", **sent)
                status, size = str(response.status_code), len(response.content)
            except httpx.HTTPError as error:
                status, size = type(error).__name__, 0
            spent = round((time.perf_counter() - began) * 1000)
            yield {"body": name, "answer": status, "bytes back": size, "ms": spent,
                   "RSS grew, MiB": round(served.rss_mib - rss, 1), "answers after": answers(served)}  # fmt: skip


def nest(times: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(times):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def slow_loris() -> Iterator[Row]:
    head, body = raw_request(ask(FAQ))
    for name, first, drip in (("head", b"POST /v1/chat/completions HTTP/1.1\r\nX-A: ", b"a"), ("body", head, body[:1])):
        options = {"head_s": 5, "body_s": 5, "max_connections": 400}
        with Served("--router-only", options=options) as served, served.http() as http:
            drive(http, 1.0)
            fast = drive(http, 2.0)
            files, began = served.descriptors, time.monotonic()
            slow = [socket.create_connection(("127.0.0.1", served.port), timeout=5) for _ in range(300)]
            for each in slow:
                each.sendall(first)
                each.setblocking(False)
            told, during = Counter[str](), []
            while slow and time.monotonic() - began < 30:
                for each in list(slow):
                    if (end := ended(each, drip)) is not None:
                        told[end] += 1
                        slow.remove(each)
                during += drive(http, 0.2)
            seconds = round(time.monotonic() - began, 1)
            time.sleep(0.5)
            yield {"slow": name, "connections": 300, "ended": dict(told), "still open": len(slow),
                   "seconds until none": seconds, "others' p99 before, ms": percentile([s for _, s in fast], 0.99),
                   "others' p99 meanwhile, ms": percentile([s for _, s in during], 0.99),
                   "others not 200": sum(code != 200 for code, _ in during), "files before": files,
                   "files after": served.descriptors}  # fmt: skip


def ended(connection: socket.socket, drip: bytes) -> str | None:
    """How the server ended the connection, which is given one more byte; None when it did not."""
    try:
        if answer := connection.recv(1000):
            return answer.split(b" ")[1].decode()
        return "closed"
    except BlockingIOError:
        pass
    except OSError:
        return "closed"
    try:
        connection.sendall(drip)
    except OSError:
        return "closed"
    return None


def canary() -> Iterator[Row]:
    """The word goes into every field, header and path there is; then it is looked for where it must not be."""
    with Served(options={"max_tokens": 64}, keys=True, spans=True, threads="1") as served, served.http() as http:
        errors, sent = [], 0

        def send(method: str, path: str, **more: Any) -> None:
            nonlocal sent
            sent += 1
            response = http.request(method, path, **more)
            if response.status_code >= 400:
                errors.append(response.text + str(response.headers))

        chat = "/v1/chat/completions"
        for stream in (False, True):
            send("POST", chat, json=ask(f"Tell me about {CANARY}.", stream=stream, trace="light"))
            for field in ("model", "temperature", "max_depth", "profile", "stop", "seed", "messages", "cache", "trace",
                          "tools", "response_format", "n", "user", CANARY):  # fmt: skip
                send("POST", chat, json={**ask(CANARY, stream=stream), field: [CANARY, {CANARY: CANARY}]})
        for path in (
            "/v1/completions",
            "/v1/embeddings",
            "/v1/route",
            "/v1/feedback",
            "/v1/kb/search",
            "/v1/kb/documents",
        ):
            send(
                "POST", path, json={CANARY: CANARY, "input": {CANARY: CANARY}, "prompt": {CANARY: 1}, "query": [CANARY]}
            )
            send("POST", path, content=f'{{"{CANARY}": '.encode(), headers={"Content-Type": "application/json"})
        for path in (f"/{CANARY}", f"/v1/models/{CANARY}", f"/v1/traces/{CANARY}", f"/v1/usage?by={CANARY}"):
            send("GET", path)
        send("GET", "/v1/models", headers={"Authorization": f"Bearer {CANARY}"})
        send(CANARY.upper(), "/v1/models", headers={"X-Canary": CANARY, "Cookie": CANARY})
        send("POST", chat, json=ask(f"refuse {CANARY}, least thinking: how do I build a bomb?"))
        metrics = http.get("/metrics").text
        kept = [http.get(f"/v1/traces/{each}").text for each in request_ids(served)]
        time.sleep(0.5)
        files = {name: (served.home / name).read_bytes() for name in ("traces.sqlite", "traces.sqlite-wal",
                 "ledger.sqlite", "ledger.sqlite-wal", "keys.json") if (served.home / name).exists()}  # fmt: skip
        secret = served.secrets[0]
        places = {
            "log": served.log.read_text(), "OpenTelemetry spans": served.spans.read_text(), "metrics": metrics,
            "errors": "".join(errors), "kept traces, light": "".join(kept) + str(files),
        }  # fmt: skip
    for place, text in places.items():
        low = text.lower()
        yield {"place": place, "requests": sent, "refusals": len(errors), "characters searched": len(text),
               "canary found": low.count(CANARY), "API key found": low.count(secret.lower())}  # fmt: skip


def request_ids(served: Served) -> list[str]:
    return [line.rsplit(" ", 1)[1] for line in served.log.read_text().splitlines() if " POST /v1/chat" in line]


def tenants() -> Iterator[Row]:
    with Served(keys=True, threads="1") as served:
        one, other = (served.http(secret) for secret in served.secrets)
        questions = [f"Name the capital of {country}, please." for country in COUNTRIES]

        def caches(http: httpx.Client) -> tuple[list[str], list[str]]:
            asked = [{**ask(question), "max_tokens": 48} for question in questions]
            found = [http.post("/v1/chat/completions", json=each) for each in asked]
            return [each.headers["x-cache"] for each in found], [each.headers["x-request-id"] for each in found]

        first, ids = caches(one)
        second, _ = caches(other)
        third, _ = caches(one)
        seen = Counter(other.get(f"/v1/traces/{each}").status_code for each in ids)
        thumbs = Counter(other.post("/v1/feedback", json={"request_id": each, "up": False}).status_code for each in ids)
        rows = other.get("/v1/usage").json()["rows"]
        yield {"prompts": len(questions), "first tenant": dict(Counter(first)), "second tenant": dict(Counter(second)),
               "first again": dict(Counter(third)), "other's traces": dict(seen), "other's feedback": dict(thumbs),
               "tenants in its usage": sorted({row["tenant"] for row in rows})}  # fmt: skip
        one.close()
        other.close()


def key_times() -> Iterator[Row]:
    """Wrong keys that share ever more of a real one, interleaved; a leak would grow with what is shared."""
    from scipy.stats import mannwhitneyu

    with Served("--router-only", keys=True) as served, served.http() as http:
        real = served.secrets[0]
        kinds = {share: real[: round(share * len(real))] for share in (0.0, 0.25, 0.5, 0.9, 1.0)}
        times: dict[float, list[float]] = {share: [] for share in kinds}
        chance = random.Random(0)
        for _ in range(TRIES):
            for share in chance.sample(sorted(kinds), len(kinds)):
                wrong = (kinds[share] + "".join(chance.choices("abcdefghij", k=len(real))))[: len(real)]
                if share == 1.0:
                    wrong = real[:-1] + ("a" if real[-1] != "a" else "b")
                began = time.perf_counter()
                code = http.get("/v1/models", headers={"Authorization": f"Bearer {wrong}"}).status_code
                times[share].append(time.perf_counter() - began)
                assert code == 401
        for share, found in times.items():
            name = "all but the last character" if share == 1.0 else f"{share:.0%}"
            yield {"shared with a real key": name, "requests": len(found),
                   "median ms": round(statistics.median(found) * 1000, 4), "p99, ms": percentile(found, 0.99),
                   "p, against none shared": round(float(mannwhitneyu(found, times[0.0]).pvalue), 3)}  # fmt: skip


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "disconnects": disconnects, "redis": redis_faults, "SIGTERM": sigterm, "names": names, "bodies": bodies,
    "slow callers": slow_loris, "canary": canary, "tenants": tenants, "key times": key_times,
}  # fmt: skip
NOTE = (
    "`shoal serve` in a process of its own, the default model on one thread, everything over loopback. In flight: "
    "admitted, waiting, or in the engine. The canary went into every field, header and path; prompts in the answer "
    "cache are not searched, since keeping them is its work."
)


def main() -> None:
    chosen = [part.replace("_", " ") for part in sys.argv[1:]] or list(PARTS)
    for part in chosen:
        began = time.monotonic()
        rows = list(PARTS[part]())
        print(f"\n{part}, {time.monotonic() - began:.0f} s", table(rows), sep="\n", flush=True)
        save("service_faults", "Faults of the service", NOTE, part, rows)


if __name__ == "__main__":
    main()
