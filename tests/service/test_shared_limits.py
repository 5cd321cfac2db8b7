"""Limits and keys of several processes over one real Redis: never more than one process would allow, and what happens
when a process or Redis goes."""

import concurrent.futures
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from secrets import token_hex

import openai
import pytest

from shoal.cache.redis_link import RedisLink
from shoal.router.accounting import Balance, Ledger, QuotaExceeded
from shoal.router.decision import Answer, Decision, Request, Route
from shoal.router.journal import Journal, no_depth
from shoal.router.service.keys import LOCAL, KeyRing, change_key, create_key, list_keys, revoke_key, sync_keys
from shoal.router.service.metering import Meter
from shoal.router.service.server import options_of
from shoal.router.service.shared_limits import SharedLimits
from shoal.router.settings import load_settings

ASK = {"model": "shoal", "messages": [{"role": "user", "content": "hello you"}]}
OTHER = """
import sys
from shoal.router.service.keys import LOCAL
from shoal.router.service.shared_limits import SharedLimits
from dataclasses import replace
limits = SharedLimits(sys.argv[1], namespace=sys.argv[2], lease_s=1.0, deadline_s=20)
key = replace(LOCAL, id="k", rpm=40, concurrent=5)
for line in sys.stdin:
    if line.strip() == "rate":
        print(sum(limits.rate(key) == 0 for _ in range(60)), flush=True)
    else:
        print(sum(limits.enter(key, f"other-{n}") for n in range(9)), flush=True)
"""


@pytest.fixture
def limits(redis_url):
    made = SharedLimits(redis_url, namespace=token_hex(4), lease_s=1.0, deadline_s=20)
    yield made
    made.close()


def answer(spent):
    decision = Decision(route=Route.DEEP, budget=24, total=30, bucket="16-26", confidence=1, cacheable=True)
    trace = Journal().trace(Route.DEEP, decision, {**no_depth(30, 24), "max": 21.5}, layer_tokens=spent)
    return Answer(text="", trace=trace, prompt_tokens=3, completion_tokens=4)


def test_two_processes_together_keep_a_keys_limits_and_a_killed_one_gives_its_places_back(limits, redis_url, wait_for):
    key = replace(LOCAL, id="k", rpm=40, concurrent=5)
    command = [sys.executable, "-c", OTHER, redis_url, limits.namespace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        other.stdin.write("rate\n")
        other.stdin.flush()
        mine = sum(limits.rate(key) == 0 for _ in range(60))
        theirs, began = int(other.stdout.readline()), time.monotonic()
        assert 40 <= mine + theirs <= 50  # and what came free during the second or so
        assert time.monotonic() - began < 15
        assert 0 < limits.rate(key) <= 1.6
        assert [limits.enter(key, name) for name in "ab"] == [True, True]
        other.stdin.write("enter\n")
        other.stdin.flush()
        limits.renew()
        taken = int(other.stdout.readline())
        assert taken >= 3  # all that were free; a slow machine may have let mine run out
        other.kill()
    limits.renew()
    assert limits.enter(key, "c") is (taken > 3)

    def free():
        limits.renew()
        return limits.enter(key, "d")

    wait_for(free, 10)
    for name in "abcd":
        limits.leave(key, name)
    assert [limits.enter(key, str(n)) for n in range(6)] == [True] * 5 + [False]


def test_a_place_that_was_left_while_it_was_being_taken_is_not_kept(limits):
    key = replace(LOCAL, id="k", concurrent=1)
    enter = limits._run

    def slow(script, names, *values):
        limits.leave(key, "gone")
        return enter(script, names, *values)

    limits._run = slow
    assert limits.enter(key, "gone")
    limits._run = enter
    limits.renew()
    assert limits.enter(key, "next") is True


def test_two_ledgers_never_spend_more_than_was_granted(limits, tmp_path):
    """Sixteen workers on two machines; what each really used is less than it had reserved."""
    key = replace(LOCAL, id="prepaid", quota=400_000.0)
    ledgers = [Ledger(tmp_path / name) for name in ("a", "b")]

    def spend(worker):
        refused, used = 0, 0.0
        for number in range(6):
            request = Request.of("x", request_id=f"{worker}.{number}", max_tokens=20)
            meter = Meter(ledgers[worker % 2], key, request, total=30, max_tokens=20, shared=limits)
            try:
                meter.open()
            except QuotaExceeded:
                refused += 1
                continue
            meter.close(answer(9_000) if number % 3 else None)
            used += 9_000 if number % 3 else 0
        return refused, used

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(spend, range(16)))
    spent = sum(used for _, used in found)
    assert sum(refused for refused, _ in found) > 0
    assert spent <= 400_000
    assert sum(ledger.balance("prepaid").spent for ledger in ledgers) == spent
    own = ledgers[0].balance("prepaid")
    balance = limits.balance("prepaid", granted=key.quota, ledger=ledgers[0].id, spent=own.spent)
    assert balance == Balance(granted=400_000, spent=spent, reserved=0)
    for ledger in ledgers:
        ledger.close()


def test_redis_gone_is_the_own_limit_at_once_and_redis_empty_again_hears_what_is_held(redis_server, wait_for):
    limits = SharedLimits(redis_server.url, lease_s=30, deadline_s=5)
    key = replace(LOCAL, id="k", rpm=9, concurrent=2)
    assert limits.enter(key, "a")
    assert limits.hold("k", "r", 70, granted=100, ledger="one", spent=10)
    redis_server.kill()
    began = time.monotonic()
    assert limits.rate(key) is limits.enter(key, "b") is None
    assert limits.balance("k", granted=1, ledger="one", spent=0) is None
    assert limits.hold("k", "s", 1, granted=100, ledger="one", spent=10) is None
    assert time.monotonic() - began < 5
    redis_server.restart()
    wait_for(lambda: limits.rate(key) == 0)
    limits.renew()
    assert limits.enter(key, "c") is False  # a and b are there again
    limits.settle("k", "s", 1, ledger="one", spent=10)
    assert limits.balance("k", granted=100, ledger="one", spent=10) == Balance(granted=100, spent=10, reserved=70)
    assert limits.hold("k", "t", 30, granted=100, ledger="two", spent=5) is False
    limits.settle("k", "r", 70, ledger="one", spent=50)
    assert limits.hold("k", "t", 30, granted=100, ledger="two", spent=5) is True
    limits.close()


def test_keys_made_changed_and_revoked_on_one_machine_reach_another(redis_url, tmp_path):
    link, space = RedisLink(redis_url, deadline_s=20), token_hex(4)
    here, there = tmp_path / "a.json", tmp_path / "b.json"

    def meet():
        assert all(sync_keys(path, link, namespace=space) for path in (here, there, here))
        assert sorted(list_keys(here), key=lambda key: key.id) == sorted(list_keys(there), key=lambda key: key.id)
        return {key.name: key.rpm for key in list_keys(there)}

    create_key(here, name="one", rpm=1)
    create_key(there, name="two", rpm=2)
    assert meet() == {"one": 1, "two": 2}
    change_key(there, "one", rpm=7)
    assert meet() == {"one": 7, "two": 2}
    change_key(here, "two", rpm=8)
    revoke_key(there, "two")  # a revocation counts, whatever comes after it
    assert meet() == {"one": 7}
    link.call(lambda client: client.delete(f"{space}:{{keys}}:records", f"{space}:{{keys}}:revoked"))
    assert meet() == {"one": 7}  # an empty Redis is filled again, and brings nobody back
    link.call(lambda client: client.hset(f"{space}:{{keys}}:records", "x", b"no key"))
    assert meet() == {"one": 7}
    link.close()
    assert sync_keys(here, RedisLink("redis://127.0.0.1:1/0")) is False


def test_two_services_share_a_keys_limits_and_its_quota(serving, redis_server, tmp_path):
    secret, _ = create_key(tmp_path / "a.json", name="one", rpm=3)
    paid, _ = create_key(tmp_path / "a.json", name="paid", quota=58_100)
    (tmp_path / "b.json").write_text('{"version": 1, "keys": []}')
    shared = {"redis_url": redis_server.url}
    with (
        serving(keys_path=tmp_path / "a.json", ledger_path=tmp_path / "a.sqlite", **shared) as a,
        serving(keys_path=tmp_path / "b.json", ledger_path=tmp_path / "b.sqlite", **shared) as b,
    ):
        for live in (a, b, a):
            live.service.shared.link._deadline_s = 5
            live.service._beat()
        with a.client(secret) as one, b.client(secret) as other:
            for client in (one, other, one):
                client.models.list()
            with pytest.raises(openai.RateLimitError) as fast:
                other.models.list()
            assert 0 < int(fast.value.response.headers["retry-after"]) <= 20
        with a.client(paid) as one, b.client(paid) as other:
            for client in (one, other, one):  # 2 tokens each; what is left does not cover the most a fourth may need
                client.chat.completions.create(**ASK, max_tokens=900)
            for client in (other, one):
                with pytest.raises(openai.RateLimitError) as poor:
                    client.chat.completions.create(**ASK, max_tokens=900)
                assert poor.value.code == "insufficient_quota"
                assert client.get("/usage", cast_to=dict)["quota"] == {"granted": 58_100, "spent": 129, "left": 57_971}
        redis_server.kill()
        with a.client(paid) as one:
            assert one.models.list().data


def test_where_redis_does_not_tell_of_keys_only_this_machine_is_let_in(redis_server, tmp_path):
    here = load_settings(home=tmp_path / "new", redis_url=redis_server.url)
    assert options_of(here, host="0.0.0.0").keys_path is None  # it tells that there are none
    create_key(tmp_path / "old.json", name="one")
    link = RedisLink(redis_server.url)
    assert sync_keys(tmp_path / "old.json", link)
    link.close()
    assert options_of(here).keys_path == here.key_path
    redis_server.kill()
    blind = load_settings(home=tmp_path / "blind", redis_url=redis_server.url)
    assert options_of(blind, host="0.0.0.0").keys_path == blind.key_path
    assert KeyRing(blind.key_path).find("sk-shoal-x") is None
    assert options_of(blind, host="127.0.0.1").keys_path is None


def test_a_place_that_was_left_while_it_was_prolonged_is_not_kept(limits):
    key = replace(LOCAL, id="k", concurrent=1)
    assert limits.enter(key, "one")
    run = limits._run

    def after_leaving(*args):
        limits.leave(key, "one")
        return run(*args)

    limits._run = after_leaving
    limits.renew()
    limits._run = run
    assert limits.enter(key, "two")


def test_the_newest_word_on_a_key_counts_where_clocks_differ(redis_url, tmp_path, monkeypatch):
    link, space = RedisLink(redis_url, deadline_s=20), token_hex(4)
    ahead, right = tmp_path / "a.json", tmp_path / "b.json"
    create_key(ahead, name="one")
    with monkeypatch.context() as patched:
        now = time.time()
        patched.setattr("time.time", lambda: now + 3600)
        change_key(ahead, "one", rpm=5)
    assert all(sync_keys(path, link, namespace=space) for path in (ahead, right))
    change_key(right, "one", rpm=9)
    assert all(sync_keys(path, link, namespace=space) for path in (right, ahead))
    assert [key.rpm for key in list_keys(ahead)] == [9]
    link.close()


@pytest.mark.parametrize("wrong", [{"created": None}, {"rpm": "7"}, {"tenant": ""}, {"sha256": 1}, {"quota": -1}])
def test_a_record_that_is_no_key_is_left_out(redis_url, tmp_path, wrong):
    link, space = RedisLink(redis_url, deadline_s=20), token_hex(4)
    create_key(tmp_path / "a.json", name="one")
    record = json.dumps({**asdict(LOCAL), "id": "x", "sha256": "0", **wrong})
    link.call(lambda client: client.hset(f"{space}:{{keys}}:records", "x", record))
    link.call(lambda client: client.sadd(f"{space}:{{keys}}:revoked", b"\xff"))
    assert sync_keys(tmp_path / "a.json", link, namespace=space)
    assert [key.name for key in list_keys(tmp_path / "a.json")] == ["one"]
    link.close()
