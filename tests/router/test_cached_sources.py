"""An answer from the cache names the passages that it was made of (R8), as the first one did."""

from pathlib import Path

from shoal import KnowledgeBase
from shoal.router import CognitiveRouter, Route

from .conftest import ScriptedModel
from .test_pipeline import LAMP


def test_sources_come_back_with_the_answer(tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path / "kb") as kb:
        kb.add_text(LAMP, "lumen.md")
        router = CognitiveRouter(llm=ScriptedModel(), kb=kb)
        first, again = (router.ask("How long does the battery of the Lumen Go last?") for _ in range(2))
        assert (first.route, again.route) == (Route.EXTRACT, Route.CACHE)
        assert [passage["doc_id"] for passage in first.trace.kept] == ["lumen.md"]
        assert list(again.trace.kept) == list(first.trace.kept)
        plain = CognitiveRouter(llm=ScriptedModel())
        assert [plain.ask("Hello there, how are you?").trace.kept for _ in range(2)] == [(), ()]
