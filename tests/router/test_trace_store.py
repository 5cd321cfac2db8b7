"""Traces kept: round trip, tenants apart, bounded in age and size, and never in the way of an answer."""

import base64
import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gated_llm import Chunk
from shoal.gated_llm.errors import TraceError
from shoal.router import CacheControl, CognitiveRouter, InvalidRequest
from shoal.router.traces import Mode, Record, Recorder, TraceStore
from shoal.router.traces.record import encoded

from .conftest import HARD, ScriptedModel
from .records import answer_of, record_of, request_of, tokens_of


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[TraceStore]:
    kept = TraceStore(tmp_path / "deep" / "traces.sqlite", max_age_s=100.0, max_bytes=20_000, clock=clock)
    yield kept
    kept.close()


@pytest.fixture
def planned(model: ScriptedModel) -> ScriptedModel:
    """The model gives a trace when it is asked for one."""
    plain = model.stream

    def stream(prompt: Any, *, trace: bool, **settings: Any) -> Iterator[Chunk]:
        chunks = list(plain(prompt, **settings))
        yield from chunks[:-1]
        yield replace(chunks[-1], trace=tokens_of(*(chunk.text for chunk in chunks[:-1])) if trace else None)

    model.stream = stream  # type: ignore[method-assign]
    return model


@given(st.lists(st.text(max_size=6), max_size=4), st.text(max_size=20), st.floats(0, 2e9))
def test_a_record_survives_its_packing(pieces: list[str], tenant: str, at: float) -> None:
    record = record_of(*pieces, tenant=tenant or "default", at=at)
    assert Record.unpack(record.pack(), tenant=record.tenant) == record
    for text in (json.dumps(record.to_dict()), encoded(record.to_dict())):
        assert Record.read(text).to_dict() == record.to_dict()


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '"x"', "%%%", base64.b64encode(b"junk").decode(), "null"])
def test_what_is_no_record_is_a_clear_error(text: str) -> None:
    with pytest.raises(TraceError):
        Record.read(text)


@pytest.mark.parametrize("change", [{"form": 2}, {"trace": {}}, {"trace": None}, {"id": None, "at": "soon"}])
def test_another_form_or_a_damaged_record_is_a_clear_error(change: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=r"form 2|damaged"):
        Record.from_dict({**record_of("a").to_dict(), **change})
    raw = record_of("a").to_dict()
    with pytest.raises(TraceError, match="form 9"):
        Record.from_dict({**raw, "tokens": {**raw["tokens"], "form": 9}})
    with pytest.raises(TraceError, match="unpacked"):
        Record.unpack(b"junk", tenant="t")


def test_prompt_and_passages_are_kept_as_text_only_when_asked() -> None:
    answer = answer_of("No.")
    plain = json.dumps(Record.of(request_of(), answer, at=0.0).to_dict())
    assert "SECRET" not in plain
    assert "a.md" in plain
    kept = Record.of(request_of(), answer, at=0.0, keep_text=True).to_dict()
    assert kept["prompt"]["messages"] == [{"role": "user", "content": "What is SECRET?"}]
    assert kept["trace"]["passages"]["kept"][0]["text"] == "SECRET passage"
    assert "SECRET" in json.dumps(answer.trace.to_dict())  # the caller's own copy is whole


def test_tenants_are_apart_even_with_the_same_id(store: TraceStore) -> None:
    store.put(record_of("a", tenant="acme", at=1000.0))
    store.put(record_of("b", tenant="other", at=1000.0))
    mine = store.get("req-1", tenant="acme")
    assert mine is not None
    assert mine.tokens is not None
    assert mine.tokens.tokens[0].token == "a"
    assert mine.mode is Mode.FULL
    assert store.get("req-1", tenant="third") is None
    assert store.get("req-2", tenant="acme") is None
    assert [row["tenant"] for row in store.newest(tenant="acme")] == ["acme"]
    assert len(store.newest()) == 2
    assert store.get("req-1", tenant=None) is not None


def test_the_old_go_and_the_oldest_make_room(store: TraceStore, clock: Clock) -> None:
    store.put(record_of(trace_id="old", at=clock.now))
    clock.now += 101
    for i in range(60):
        store.put(record_of(trace_id=f"new-{i}", at=clock.now + i))
    store.prune()
    rows = store.newest(limit=1000)
    assert store.get("old", tenant=None) is None
    assert rows[0]["id"] == "new-59"
    assert 15_000 < sum(row["bytes"] for row in rows) <= 20_000


def test_a_store_nobody_writes_to_is_not_made(store: TraceStore, tmp_path: Path) -> None:
    store.close()
    assert not (tmp_path / "deep").exists()
    store.put(record_of(at=1000.0))
    assert (tmp_path / "deep" / "traces.sqlite").stat().st_mode & 0o777 == 0o600


def test_many_threads_and_a_second_process_write_at_once(store: TraceStore) -> None:
    other = TraceStore(store.path, clock=store.clock)
    jobs = [
        threading.Thread(
            target=lambda n=n: [(store, other)[n % 2].put(record_of(trace_id=f"{n}-{i}", at=1000.0)) for i in range(5)]
        )
        for n in range(8)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert len(store.newest(limit=100)) == 40
    other.close()


def test_an_answer_is_given_though_nothing_can_be_kept(
    tmp_path: Path, planned: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "traces.sqlite").write_bytes(b"this is no database" * 100)
    recorder = Recorder(TraceStore(tmp_path / "traces.sqlite"), mode="full")
    router = CognitiveRouter(llm=planned, recorder=recorder)
    with caplog.at_level(logging.ERROR, logger="shoal.traces"):
        assert router.ask(HARD, cache=CacheControl(read=False, write=False)).text == "It is so."
        assert router.ask("Prove it again, step by step.").text == "It is so."
    assert len(caplog.records) == 1
    assert "move it away" in caplog.text
    with pytest.raises(TraceError, match="cannot be used"):
        recorder.store.newest()  # type: ignore[union-attr]
    router.close()


@pytest.mark.parametrize(
    ("setting", "asked", "kept", "tokens"),
    [
        ("off", None, None, False),
        ("off", "light", Mode.LIGHT, False),
        ("light", None, Mode.LIGHT, False),
        ("light", "off", None, False),
        ("light", "full", Mode.FULL, True),
        ("full", None, Mode.FULL, True),
        ("full", "light", Mode.LIGHT, False),
    ],
)
def test_the_request_s_mode_goes_before_the_setting(
    store: TraceStore, planned: ScriptedModel, setting: str, asked: str | None, kept: Mode | None, tokens: bool
) -> None:
    router = CognitiveRouter(llm=planned, recorder=Recorder(store, mode=setting))
    answer = router.ask(HARD, trace=asked, max_depth=20, tenant="acme")
    record = store.get(answer.trace.id, tenant="acme")
    assert (record.mode if record else None) is kept
    assert (answer.tokens is not None) is tokens
    if answer.tokens is not None:
        assert "".join(token.token for token in answer.tokens.tokens) == answer.text
        assert len(answer.tokens.tokens) == answer.completion_tokens
        assert record is not None
        assert record.tokens == answer.tokens
    router.close()


def test_an_answer_without_a_model_has_a_light_trace(store: TraceStore, planned: ScriptedModel, faq: Any) -> None:
    router = CognitiveRouter(llm=planned, faq=faq, recorder=Recorder(store, mode="full"))
    answer = router.ask("How do I turn on dark mode?")
    record = store.get(answer.trace.id, tenant="default")
    assert record is not None
    assert (record.mode, record.trace["route"]) == (Mode.LIGHT, "faq")
    made = json.loads(json.dumps(answer.trace.to_dict()))
    assert {**record.trace, "passages": None} == {**made, "passages": None}  # those are kept without their text
    router.close()


def test_an_unknown_mode_is_refused(planned: ScriptedModel) -> None:
    with pytest.raises(InvalidRequest, match="off, light, full"):
        CognitiveRouter(llm=planned).ask("hi", trace="loud")


def test_the_store_is_sqlite_in_wal_mode(store: TraceStore) -> None:
    store.put(record_of(at=1000.0))
    with sqlite3.connect(str(store.path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()


def test_thumbs_are_noted_beside_the_record_and_go_with_it(store: TraceStore, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        store.put(record_of(trace_id=name, at=clock.now))
    store.judge("a", tenant="default", up=False)
    store.judge("b", tenant="default", up=False)
    store.judge("b", tenant="default", up=True)  # the last word counts
    store.judge("c", tenant="other", up=False)  # not theirs
    store.judge("nothing", tenant="default", up=False)
    assert sorted(answer.disliked for answer in store.answers()) == [False, False, True]
    clock.now += 1000
    store.prune()
    assert list(store.answers()) == []
    assert store._run("SELECT count(*) FROM thumbs", ()) == [(0,)]


def test_a_thumb_reaches_the_record_of_its_answer(planned: ScriptedModel, store: TraceStore) -> None:
    router = CognitiveRouter(llm=planned, recorder=Recorder(store, mode="light"))
    first, second = (router.ask(f"{HARD} {word}", cache=CacheControl(read=False)) for word in ("Now.", "Then."))
    assert not router.feedback(first.trace.id, up=False, tenant="other")
    assert router.feedback(first.trace.id, up=False)
    assert router.feedback(second.trace.id, up=True)
    assert [answer.disliked for answer in store.answers()] == [False, True]
    assert len({answer.prompt for answer in store.answers()}) == 2
    assert CognitiveRouter(llm=planned).feedback(first.trace.id, up=False) is False
