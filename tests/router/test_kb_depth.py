import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from shoal import GatedLLM, KnowledgeBase
from shoal.router.wiring import depth_scorer, with_depths


@pytest.mark.model
def test_the_default_model_reads_passages_once_and_searches_know(
    shoal: Callable[..., tuple[int, str, str]], llm: GatedLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kb"
    with KnowledgeBase.open(folder) as base:
        base.add_text("The Lumen weighs 320 grams. Its lamp lasts for ten years.", "lamp.md")
        base.add_text("台灯的保修期是三年。灯泡可以更换。", "guarantee.md")
        assert with_depths(base, llm) is base
        monkeypatch.setattr("shoal.router.wiring.load_local", lambda *_, **__: nullcontext(llm))
        code, out, _ = shoal("kb", "depth", "--kb", str(folder), "--json")
        assert code == 0
        found = json.loads(out)
        assert found["passages"] == found["easy"] + found["hard"] == 2
        for question in ("How heavy is the Lumen?", "保修期是多久？"):
            for hit in base.search(question):
                assert hit.depth_raw is not None
                assert hit.depth_score is not None
                assert 0.3 < hit.depth_raw < 1
                assert 0 <= hit.depth_score <= 1


def test_without_a_model_there_are_predicted_depths_only(tmp_path: Path) -> None:
    assert depth_scorer(None) is None
    with KnowledgeBase.open(tmp_path / "kb") as base:
        base.add_text("The Lumen weighs 320 grams. Its lamp lasts for ten years.", "lamp.md")
        with_depths(base, None)
        (hit,) = base.search("How heavy is the Lumen?")
        assert hit.depth_score is not None
    assert with_depths(None, None) is None
