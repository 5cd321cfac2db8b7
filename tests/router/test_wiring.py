"""What the settings make of the parts that may be missing."""

import sys
from pathlib import Path

import pytest

from shoal.router.settings import Settings
from shoal.router.wiring import build_router


def test_without_faiss_answers_are_still_found_by_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)  # as where it is not installed
    router = build_router(Settings(home=tmp_path, router_only=True))
    router.cache.put("How do I reset my password?", "Open Settings.", budget=30, depth=30)
    found = router.cache.get("how can I reset my password", budget=30)
    router.close()
    assert found is not None
    assert found.tier == "semantic"
