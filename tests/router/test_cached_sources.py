"""An answer from the cache names the passages that it was made of (R8), and a thumb finds it from any process (C5)."""

from pathlib import Path

from shoal import DepthCache, KnowledgeBase
from shoal.router import CognitiveRouter, Route
from shoal.router.traces import Recorder, TraceStore

from .conftest import HARD, TOTAL, ScriptedModel
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


def test_a_thumb_reaches_an_answer_of_another_process(tmp_path: Path, redis_url: str) -> None:
    """Two routers over one Redis and one folder of traces, as replicas of a service are."""
    made = [
        CognitiveRouter(
            llm=ScriptedModel(),
            cache=DepthCache(redis_url, total=TOTAL),
            recorder=Recorder(TraceStore(tmp_path / "traces.sqlite"), mode="light"),
        )
        for _ in range(2)
    ]
    one, other = made
    answer = one.ask(HARD)
    assert not other.feedback(answer.trace.id, up=False, tenant="umbrella")
    assert other.feedback(answer.trace.id, up=False)
    assert other.ask(HARD).route is not Route.CACHE
    assert not other.feedback("req-none", up=False)
    for router in made:
        router.close()
