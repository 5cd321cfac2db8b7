"""The ledger adds up to the engine's own counters; a prepaid quota never goes below zero."""

import concurrent.futures
import contextlib
import socket
import sqlite3
import threading
import time

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.router.accounting import LEASE_S, Balance, Ledger, QuotaExceeded
from shoal.router.decision import Answer, Decision, Route
from shoal.router.errors import RouterError
from shoal.router.journal import Journal, no_depth
from shoal.router.prices import Prices
from shoal.router.service.keys import create_key


def answer(layer_tokens, route=Route.DEEP):
    decision = Decision(route=route, budget=24, total=30, bucket="16-26", confidence=1, cacheable=True)
    trace = Journal().trace(route, decision, {**no_depth(30, 24), "max": 21.5}, layer_tokens=layer_tokens)
    return Answer(text="", trace=trace, prompt_tokens=3, completion_tokens=4)


def ask(text, **more):
    return {"model": "shoal", "messages": [{"role": "user", "content": text}], **more}


def test_a_ledger_of_another_form_is_refused(tmp_path):
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    Ledger(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        db.execute("PRAGMA user_version = 7")
    with pytest.raises(RouterError, match="of form 7; this version of Shoal reads form 1"):
        Ledger(path)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 500),
    st.lists(st.tuples(st.integers(1, 120), st.floats(0, 150), st.booleans(), st.booleans()), max_size=30),
)
def test_quota_and_ledger_add_up(granted, requests):
    """Reserve, then settle at once or later, more or less than was reserved, with an answer or without."""
    with Ledger(":memory:") as ledger:
        ledger.grant("k", granted)
        used, open_ = 0.0, []

        def settle(index, reserved, spent, answered):
            ledger.settle(f"r{index}", tenant="t", account="k", answer=answer(spent) if answered else None,
                          reserved=reserved)  # fmt: skip
            return spent if answered else 0.0

        for index, (reserved, spent, answered, later) in enumerate(requests):
            try:
                ledger.reserve("k", reserved, f"r{index}")
            except QuotaExceeded:
                assert ledger.balance("k").left < reserved
                continue
            if later:
                open_.append((index, reserved, spent, answered))
            else:
                used += settle(index, reserved, spent, answered)
            assert 0 <= ledger.balance("k").left <= granted
        for each in open_:
            used += settle(*each)
        balance = ledger.balance("k")
        assert balance.reserved == 0
        assert 0 <= balance.left <= granted
        assert sum(row["layer_tokens"] for row in ledger.report()) == pytest.approx(used)


def test_settling_twice_is_settling_once(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.grant("k", 100)
        ledger.reserve("k", 50, "r")
        for _ in range(2):
            ledger.settle("r", tenant="t", account="k", answer=answer(20), reserved=50)
        assert ledger.balance("k").left == 80


def test_a_reservation_ends_with_the_process_that_holds_it_and_not_with_another_that_starts(tmp_path):
    now = 1000.0
    with Ledger(tmp_path / "l.sqlite", clock=lambda: now) as alive:
        alive.grant("k", 100)
        alive.reserve("k", 40, "mine")
        killed = Ledger(tmp_path / "l.sqlite", clock=lambda: now)
        assert killed.id == alive.id
        killed.reserve("k", 30, "theirs")
        killed.close()
        with Ledger(tmp_path / "l.sqlite", clock=lambda: now) as started:
            started.recover()
            assert started.balance("k").left == 30
            now += LEASE_S - 1
            alive.renew()
            now += 2
            started.recover()
            assert started.balance("k").reserved == 40
            started.reserve("k", 60, "all that is left")
            alive.settle("mine", tenant="t", account="k", answer=answer(40), reserved=40)
            assert started.balance("k") == Balance(granted=100, spent=40, reserved=60)
            now += LEASE_S + 1  # the started one was held up for too long; what it had reserved goes to others
            alive.reserve("k", 50, "more")
            started.settle("all that is left", tenant="t", account="k", answer=answer(60), reserved=60)
            assert alive.balance("k").left == 0
            alive.release("more")
            alive.release("more")
            assert alive.balance("k") == Balance(granted=100, spent=50, reserved=0)


def test_two_processes_may_write(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as one, Ledger(tmp_path / "l.sqlite") as two:

        def write(ledger, name):
            for index in range(100):
                ledger.settle(f"{name}{index}", tenant="t", account="k", answer=answer(1.0))

        threads = [threading.Thread(target=write, args=pair) for pair in ((one, "a"), (two, "b"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert one.report(by=())[0]["requests"] == 200


def test_report_and_prices():
    with Ledger(":memory:", clock=lambda: 86_400.0) as ledger:
        ledger.settle("a", tenant="x", account="k", answer=answer(100))
        ledger.settle("b", tenant="x", account="k", answer=answer(0, Route.FAQ))
        ledger.settle("c", tenant="y", account="k", answer=None)
        assert [(r["tenant"], r["route"], r["requests"]) for r in ledger.report()] == [
            ("x", "deep", 1), ("x", "faq", 1), ("y", "none", 1)]  # fmt: skip
        (row,) = ledger.report(by=("day",), tenant="x")
        assert (row["day"], row["layer_tokens"], row["full_depth"]) == ("1970-01-02", 100, 420)
        assert ledger.report(since=86_401.0) == []
        with pytest.raises(ValueError, match="choose from"):
            ledger.report(by=("tenant; DROP TABLE requests",))
    prices = Prices(layer_tokens=0.5, prompt_tokens=1, completion_tokens=2)
    assert (prices.by_depth(row), prices.by_token(row)) == (0.05, pytest.approx(0.022))


def test_the_ledger_equals_the_engines_counters_also_when_callers_leave(serving, router, tmp_path, wait_for):
    before = router.layer_tokens
    with serving(ledger_path=tmp_path / "l.sqlite", concurrent=4) as live:

        def visit(index):
            if index % 3:
                with live.client() as client:
                    client.chat.completions.create(**ask(f"slow {index}"))
                return
            import json

            body = json.dumps(ask("slow 500", stream=bool(index % 2))).encode()
            with socket.create_connection(("127.0.0.1", live.port)) as raw:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}"
                raw.sendall(head.encode() + b"\r\nContent-Type: application/json\r\n\r\n" + body)
                time.sleep(0.1)

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(visit, range(1, 25)))
        wait_for(lambda: not live.service.runs)
        with live.http() as http:
            rows = http.get("/v1/usage").json()["rows"]
            assert http.get("/v1/usage?by=price").status_code == 400
    spent = router.layer_tokens - before
    assert spent > 0
    assert sum(row["layer_tokens"] for row in rows) == pytest.approx(spent)


def test_a_prepaid_key_with_16_callers_never_goes_below_zero(serving, router, tmp_path, wait_for):
    secret, key = create_key(tmp_path / "keys.json", name="prepaid", quota=150_000)
    with serving(keys_path=tmp_path / "keys.json", ledger_path=tmp_path / "l.sqlite", concurrent=16, queue=64) as live:
        refused, lowest = [], []

        def spend(index):
            with live.client(secret) as client:
                for _ in range(4):
                    try:
                        client.chat.completions.create(**ask("slow 20", max_tokens=20))
                    except openai.RateLimitError as error:
                        refused.append(error.code)
                    lowest.append(live.service.ledger.balance(key.id).left)

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(spend, range(16)))
        wait_for(lambda: not live.service.runs)
        balance = live.service.ledger.balance(key.id)
        with live.client(secret) as client:
            report = client.get("/usage", cast_to=dict[str, object])
    assert min(lowest) >= 0
    assert set(refused) == {"insufficient_quota"}
    assert balance.reserved == 0
    assert balance.spent == pytest.approx(sum(row["layer_tokens"] for row in report["rows"]))
    assert report["quota"]["left"] == pytest.approx(150_000 - balance.spent)
