import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.cache import CacheInputError, DepthCache, MissingExtraError
from shoal.cache.cold import ColdLog
from shoal.cache.tier import Selector

Make = Callable[..., Any]

WRITER = """
import sys, itertools
from shoal.cache.cold import ColdLog
from shoal.cache.entry import Entry
log = ColdLog(sys.argv[1], segment_bytes=20_000, max_bytes=10**8)
for n in itertools.count():
    log.put(Entry(id=f"k{n}.2.x", key=f"k{n}", scope="s", tenant="t", kb="", text="x" * 200, prompt="q", budget=30.0,
                  depth=30.0,
                  rank=2, bucket="27+", created=1.0, expires=1e12))
    print(n, flush=True)
"""


def test_kill_in_mid_write_loses_at_most_the_last_record(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = -1
    for line in process.stdout:
        last = int(line)
        if last >= 400:
            os.kill(process.pid, signal.SIGKILL)
            break
    rest = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    last = max([last, *(int(n) for n in rest if n.isdigit())])
    log = ColdLog(tmp_path)
    assert len(log.segments()) > 3
    assert all(log.get("t", f"k{n}", rank=2) is not None for n in range(last + 1))
    assert log.skipped <= 1
    log.close()


def test_a_torn_tail_is_skipped_told_of_and_written_past(tmp_path: Path, make_entry: Make, caplog: Any) -> None:
    log = ColdLog(tmp_path)
    log.put(make_entry("a"))
    log.put(make_entry("b"))
    log.close()
    (segment,) = log.segments()
    segment.write_bytes(segment.read_bytes()[:-20])
    again = ColdLog(tmp_path)
    assert again.skipped == 1
    assert "skipped 1 damaged" in caplog.text
    assert again.get("t", "a", rank=0) is not None
    assert again.get("t", "b", rank=0) is None
    again.put(make_entry("b"))
    again.close()
    assert ColdLog(tmp_path).get("t", "b", rank=0) is not None


def test_a_flipped_bit_costs_one_record(tmp_path: Path, make_entry: Make) -> None:
    log = ColdLog(tmp_path)
    for key in "abc":
        log.put(make_entry(key))
    log.close()
    (segment,) = log.segments()
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"answer", b"onswer")
    segment.write_bytes(b"".join(lines))
    again = ColdLog(tmp_path)
    assert [again.get("t", key, rank=0) is not None for key in "abc"] == [True, False, True]


def test_segments_rotate_and_the_oldest_go(tmp_path: Path, make_entry: Make) -> None:
    log = ColdLog(tmp_path, segment_bytes=5_000, max_bytes=20_000)
    for n in range(100):
        log.put(make_entry(f"k{n}", text="x" * 300))
    assert sum(p.stat().st_size for p in log.segments()) <= 20_000
    assert all(p.stat().st_size <= 5_000 for p in log.segments())
    assert log.get("t", "k0", rank=0) is None
    assert log.get("t", "k99", rank=0) is not None
    log.close()


def test_tombstones_reach_the_segments_of_other_processes(tmp_path: Path, make_entry: Make, clock: Any) -> None:
    one, other = ColdLog(tmp_path, clock=clock), ColdLog(tmp_path, clock=clock)
    one.put(make_entry("a"))
    clock.pass_(1)
    other.drop(Selector(tenant="t", key="a"))
    clock.pass_(1)
    one.put(make_entry("b"))
    one.close()
    other.close()
    assert [e.key for e in ColdLog(tmp_path, clock=clock).entries()] == ["b"]


@pytest.mark.parametrize(
    ("privacy", "prompt", "request_text"),
    [
        ("plain", "card 4111 1111 1111 1111 of ann@example.org", "card 4111 1111 1111 1111 of ann@example.org"),
        ("redacted", "card <number> of <mail>", "card <number> of <mail>"),
        ("hashed", "", None),
    ],
)
def test_what_is_kept_of_prompts(tmp_path: Path, privacy: Any, prompt: str, request_text: str | None) -> None:
    cache = DepthCache(cold_path=tmp_path, privacy=privacy)
    cache.put("card 4111 1111 1111 1111 of ann@example.org", "ok", budget=30, depth=30)
    log = cache.cold()
    assert log is not None
    (row,) = log.requests()
    assert row["prompt"] == prompt
    assert (row["request"]["messages"][0]["content"] if row["request"] else None) == request_text
    if privacy != "plain":
        assert all(b"4111" not in p.read_bytes() and b"ann@" not in p.read_bytes() for p in log.segments())
    cache.close()


def test_the_deepest_bucket_is_logged_also_what_is_not_stored(tmp_path: Path) -> None:
    cache = DepthCache(cold_path=tmp_path)
    cache.put("shallow", "a", budget=10, depth=10)
    cache.put("deep", "b", budget=30, depth=30)
    cache.put("cut off", "c", budget=30, depth=30, finish_reason="length")
    log = cache.cold()
    assert log is not None
    assert [(r["prompt"], r["stored"], r["reason"]) for r in log.requests()] == [
        ("deep", True, ""),
        ("cut off", False, "finish_reason length"),
    ]
    cache.close()
    again = DepthCache(cold_path=tmp_path)
    assert again.rehydrate() == 1
    assert again.get("deep", budget=30).text == "b"  # type: ignore[union-attr]
    assert again.get("cut off", budget=30) is None
    again.close()


def test_rehydrated_entries_keep_their_end(tmp_path: Path, clock: Any) -> None:
    cache = DepthCache(cold_path=tmp_path, clock=clock)
    cache.put("q", "a", budget=30, depth=30, ttl_s=100)
    cache.close()
    clock.pass_(99)
    again = DepthCache(cold_path=tmp_path, clock=clock)
    assert again.rehydrate() == 1
    clock.pass_(2)
    assert again.get("q", budget=30) is None
    assert again.rehydrate() == 0
    again.close()


def test_export(tmp_path: Path) -> None:
    cache = DepthCache(cold_path=tmp_path / "log")
    cache.put("q 问", "a", budget=30, depth=29.5, tags=["x"], request={"max_tokens": 9})
    log = cache.cold()
    assert log is not None
    assert log.export(tmp_path / "out.jsonl") == 1
    row = json.loads((tmp_path / "out.jsonl").read_text("utf-8"))
    assert row["request"] == {"max_tokens": 9, "messages": [{"role": "user", "content": "q 问"}], "model": ""}
    assert (row["text"], row["depth"], row["tags"]) == ("a", 29.5, ["x"])
    cache.close()


def test_export_to_parquet(tmp_path: Path) -> None:
    from pyarrow import parquet

    with DepthCache(cold_path=tmp_path / "log") as cache:
        cache.put("q 问", "a", budget=30, depth=29.5, tags=["x", "y"], meta={"n": 1}, request={"max_tokens": 9})
        cache.put("odd \ud83d", "half \udc00", budget=30, depth=30)
        cache.put("q 长", "cut", budget=30, depth=30, finish_reason="length")
        log = cache.cold()
        assert log is not None
        assert log.export(tmp_path / "out.parquet") == 3
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [(r["prompt"], r["text"], r["stored"]) for r in table] == [
        ("q 问", "a", True), ("odd \\ud83d", "half \\udc00", True), ("q 长", "cut", False),
    ]  # fmt: skip
    first = table[0]
    assert (first["depth"], first["tags"], json.loads(first["meta"])) == (29.5, ["x", "y"], {"n": 1})
    assert json.loads(first["request"])["max_tokens"] == 9
    assert table[2]["reason"] == "finish_reason length"


def test_parquet_without_pyarrow_names_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    log = ColdLog(tmp_path / "log")
    with pytest.raises(MissingExtraError, match="pip install pyarrow"):
        log.export(tmp_path / "out.parquet")
    log.close()


def test_a_full_disk_does_not_fail_the_request(tmp_path: Path, monkeypatch: Any) -> None:
    cache = DepthCache(cold_path=tmp_path)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert cache.put("q", "a", budget=30, depth=30) is not None
    monkeypatch.undo()
    assert cache.stats()["counts"]["cold log errors"] == 1
    cache.close()


def test_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(CacheInputError, match="segment"):
        ColdLog(tmp_path, segment_bytes=10, max_bytes=5)
    with pytest.raises(CacheInputError, match="privacy"):
        ColdLog(tmp_path, privacy="secret")  # type: ignore[arg-type]


def test_opening_a_large_log_is_quick(tmp_path: Path, make_entry: Make) -> None:
    log = ColdLog(tmp_path)
    for n in range(2000):
        log.put(make_entry(f"k{n}"))
    log.close()
    began = time.perf_counter()
    ColdLog(tmp_path)
    assert time.perf_counter() - began < 5


def test_a_retraction_by_a_process_whose_clock_is_behind_counts(tmp_path: Path, make_entry: Any, clock: Any) -> None:
    entry = make_entry()
    with_right, behind = ColdLog(tmp_path, clock=clock), ColdLog(tmp_path, clock=lambda: clock() - 60)
    assert with_right.put(entry)
    behind.drop(Selector(tenant="t", entry_id=entry.id))
    assert list(ColdLog(tmp_path, clock=clock).entries()) == []
