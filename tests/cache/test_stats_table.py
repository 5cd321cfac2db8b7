"""`shoal cache stats` with a real Redis: a table of depths and latency per prompt."""

import json
import sys
from pathlib import Path

import pytest

from shoal.cache import DepthCache, key_of
from shoal.router.cli import main


def test_stats_show_depths_and_latency(
    redis_server: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = redis_server.url  # type: ignore[attr-defined]
    with DepthCache(url) as cache:
        cache._l2.link._deadline_s = 5  # type: ignore[union-attr]
        cache.put("a question", "x", budget=10, depth=7.5, latency_ms=100)
        cache.put("a question", "x", budget=30, depth=28, latency_ms=300)
    monkeypatch.setenv("SHOAL_REDIS_URL", url)
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    printed = []
    for words in (["--json"], []):
        monkeypatch.setattr(sys, "argv", ["shoal", "cache", "stats", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        printed.append(capsys.readouterr().out)
    key = key_of("a question").hash
    assert json.loads(printed[0])["prompts"] == {
        key: {"min_depth": 7.5, "max_depth": 28, "avg_latency": 200, "count": 2}
    }
    head, row = (line.split() for line in printed[1].strip().splitlines())
    assert head == ["prompt", "min_depth", "max_depth", "avg_latency", "count"]
    assert row == [key[:16], "7.5", "28", "200", "2"]
