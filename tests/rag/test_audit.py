"""The audit: splits, quarantine and restore, both languages, stopped at any point, and what it reports."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.rag import KnowledgeBase, RagError
from shoal.rag.audit import read_report
from shoal.rag.audit_recall import Asked, answered, fold, holes, read_questions
from shoal.rag.audit_scenarios import scenarios
from shoal.rag.embed import default_embedder
from shoal.rag.errors import DocumentError

MIXED = (
    "# Pump\n\nThe pump weighs 40 kilograms and stands in the cellar of the house, next to the old boiler.\n\n"
    "## Code\n\nzxq 7719 qqrw zzkk 0x88 zxq vvbn ffgh 1190 zxq ttyp wwqx 4417 zxq zxq zxq zxq zxq.\n"
)
CHINESE = "水泵的重量是四十公斤，它放在房子的地下室里，旁边是一个旧锅炉，每年检查一次。"
QUESTIONS = [
    Asked(question="How heavy is the pump?", answers=("40 kilograms",)),
    Asked(question="水泵有多重？", answers=("四十公斤",)),
    Asked(question="What is zxq 7719 qqrw?", answers=("zzkk",)),
]


class Plain:
    """Texts with `zxq` are hard; half of that in a text makes it half hard."""

    fingerprint = "plain:1"

    def __init__(self, ends_after: int = 10**9) -> None:
        self.asked, self._left = 0, ends_after

    def __call__(self, texts: Sequence[str]) -> list[float]:
        self.asked += len(texts)
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return [0.9 if "zxq" not in text else 0.5 if "cellar" in text else 0.1 for text in texts]


def fill(base: KnowledgeBase) -> KnowledgeBase:
    base.add_text(MIXED, "manuals/mixed.md", title="Pump")
    base.add_text(CHINESE, "手册/水泵.md")
    base.add_text("zxq zxq 1178 zxq zxq 77 zxq.", "logs#1")
    return base


@pytest.fixture
def base(empty: KnowledgeBase) -> KnowledgeBase:
    return fill(empty)


def comparable(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key not in ("made", "seconds")}


def test_hard_units_go_aside_and_the_rest_stays(base: KnowledgeBase) -> None:
    before = base.fingerprint
    report = base.audit(Plain(), QUESTIONS, limit=0.65, allowed=1)
    assert report["documents"] | {"units": 0, "hard_units": 0} == {
        "all": 3, "easy": 1, "not_scored": 0, "split": 2, "split_wholly_hard": 1, "units": 0, "hard_units": 0,
    }  # fmt: skip
    assert {one.doc_id for one in base.quarantined()} == {"manuals/mixed.md", "logs#1"}
    assert all("zxq" in one.text for one in base.quarantined())
    for one in base.quarantined():
        document = base.document(one.doc_id)
        assert document is not None
        assert document.text[one.start : one.end] == one.text
    hits = base.search("What is zxq 7719?", 10)
    assert hits
    assert not any("zxq" in hit.text for hit in hits)
    assert base.search("How heavy is the pump?", 1)[0].heading == "Pump"
    assert base.fingerprint != before
    assert (report["recall"]["before"], report["recall"]["after"]) == (1.0, pytest.approx(2 / 3, abs=1e-4))
    assert [one["question"] for one in report["recall"]["lost"]] == ["What is zxq 7719 qqrw?"]
    size = report["size"]
    assert size["after"]["characters"] + size["quarantined"]["characters"] <= size["before"]["characters"]
    assert {row["name"] for row in report["depth"]["by_source"]} == {"manuals/", "手册/", "logs"}
    assert sum(row["documents"] for row in report["depth"]["by_scenario"]) == 3
    assert read_report(base.path / "audit") == json.loads(json.dumps(report))


def test_twice_changes_nothing_and_costs_no_scores(base: KnowledgeBase) -> None:
    base.audit(Plain(), QUESTIONS, limit=0.65, allowed=1)
    state, again = (base.fingerprint, base._store.generation()), Plain()
    second = base.audit(again, QUESTIONS, limit=0.65, allowed=1)
    assert (base.fingerprint, base._store.generation(), again.asked) == (*state, 0)
    assert second["recall"]["before"] == second["recall"]["after"]


def test_what_was_brought_back_stays_until_its_text_changes(base: KnowledgeBase) -> None:
    base.audit(Plain(), QUESTIONS, limit=0.65, allowed=1)
    total = len(base) + len(base.quarantined())
    assert len(base.restore(["logs#1"])) == 1
    assert base.search("zxq 1178", 1)[0].doc_id == "logs#1"
    assert len(base.restore()) == 1
    assert (len(base), base.quarantined(), base.restore(["nothing"])) == (total, [], [])
    base.audit(Plain(), QUESTIONS, limit=0.65, allowed=1)
    assert base.quarantined() == []
    base.add_text("zxq zxq another text zxq zxq 12.", "logs#1")
    base.audit(Plain(), QUESTIONS, limit=0.65, allowed=1)
    assert [one.doc_id for one in base.quarantined()] == ["logs#1"]
    base.delete("logs#1")
    assert base.quarantined() == []


def test_adding_a_file_again_does_not_bring_back_what_was_set_aside(empty: KnowledgeBase, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(MIXED, "utf-8")
    empty.add(tmp_path / "a.md")
    empty.audit(Plain(), [], limit=0.65)
    aside, size = empty.quarantined(), len(empty)
    assert empty.add(tmp_path / "a.md").unchanged == 1
    assert (empty.quarantined(), len(empty)) == (aside, size)


def test_a_higher_limit_and_back_again(base: KnowledgeBase) -> None:
    plain = base.fingerprint
    base.audit(Plain(), [], limit=0.95)
    assert len(base) == 0
    assert base.search("How heavy is the pump?") == []
    base.audit(Plain(), [], limit=0.0)
    assert base.quarantined() == []
    assert [hit.text for hit in base.search("水泵有多重？", 1)] == [CHINESE]
    assert base.fingerprint != plain  # scenarios are labels


def test_a_dry_run_changes_nothing(base: KnowledgeBase) -> None:
    before = (base.fingerprint, base._store.generation(), len(base))
    report = base.audit(Plain(), QUESTIONS, limit=0.65, allowed=1, dry_run=True)
    assert (base.fingerprint, base._store.generation(), len(base)) == before
    assert report["documents"]["hard_units"] == 2
    assert "after" not in report["recall"]


def test_stopped_and_run_again_it_is_the_same_audit(tmp_path: Path) -> None:
    with fill(KnowledgeBase.open(tmp_path / "one")) as one, fill(KnowledgeBase.open(tmp_path / "two")) as two:
        whole = one.audit(Plain(), QUESTIONS, limit=0.65, allowed=1)
        with pytest.raises(KeyboardInterrupt):
            two.audit(Plain(ends_after=0), QUESTIONS, limit=0.65, allowed=1)
        rest = Plain()
        assert comparable(two.audit(rest, QUESTIONS, limit=0.65, allowed=1)) == comparable(whole)
        assert two.fingerprint == one.fingerprint


class Elsewhere(Plain):
    """Several batches at a time, answered last first."""

    wave = 3

    def many(self, batches: Sequence[Sequence[str]]) -> Iterator[tuple[int, Sequence[float]]]:
        for place in reversed(range(len(batches))):
            yield place, self(batches[place])


def test_scored_elsewhere_it_is_the_same_audit_also_when_that_was_killed(tmp_path: Path) -> None:
    names = ("here", "there")
    here, there = (fill(KnowledgeBase.open(tmp_path / name)) for name in names)
    for base in (here, there):
        for number in range(150):  # of three groups; every text of the last is in the first too
            base.add_text(f"zxq {number % 60} {'cellar' if number % 2 else ''}", f"logs#{number + 2:03}")
    local = Plain()
    whole = here.audit(local, QUESTIONS, limit=0.65, allowed=1)
    with pytest.raises(KeyboardInterrupt):
        there.audit(Elsewhere(ends_after=1), QUESTIONS, limit=0.65, allowed=1)
    rest = Elsewhere()
    assert comparable(there.audit(rest, QUESTIONS, limit=0.65, allowed=1)) == comparable(whole)
    assert 0 < rest.asked < local.asked
    assert there.fingerprint == here.fingerprint
    here.close()
    there.close()


AUDITOR = """
import sys
sys.path.insert(0, sys.argv[2])
from test_audit import Plain, QUESTIONS
from shoal.rag import KnowledgeBase
base = KnowledgeBase.open(sys.argv[1])
place = base._store.replace
def slow(*args, **more):
    place(*args, **more)
    print("written", flush=True)
    import time; time.sleep(30)
base._store.replace = slow
base.audit(Plain(), QUESTIONS, limit=0.65, allowed=1)
"""


def test_kill_9_in_mid_audit(tmp_path: Path) -> None:
    with fill(KnowledgeBase.open(tmp_path / "kb")):
        pass
    command = [sys.executable, "-c", AUDITOR, str(tmp_path / "kb"), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as auditor:
        assert auditor.stdout is not None
        assert auditor.stdout.readline().strip() == b"written"
        os.kill(auditor.pid, signal.SIGKILL)
    with KnowledgeBase.open(tmp_path / "kb") as base:
        assert (base.path / "audit" / "state.json").exists()
        report = base.audit(Plain(), QUESTIONS, limit=0.65, allowed=1)
        assert report["recall"]["before"] == 1.0  # as before the first one began
        assert not (base.path / "audit" / "state.json").exists()


def test_an_audit_that_was_broken_off_forgets_what_other_documents_gave(tmp_path: Path) -> None:
    class Stops(Plain):
        def __call__(self, texts: Sequence[str]) -> Sequence[float]:
            raise KeyboardInterrupt

    with fill(KnowledgeBase.open(tmp_path / "kb")) as base:
        with pytest.raises(KeyboardInterrupt):
            base.audit(Stops(), QUESTIONS, limit=0.65)
        for name in base.doc_ids()[1:]:
            base.delete(name)
        size = base.audit(Plain(), QUESTIONS, limit=0.65, allowed=1)["size"]
        assert size["before"]["documents"] == 1


def test_a_dry_run_leaves_the_last_report(base: KnowledgeBase) -> None:
    base.audit(Plain(), QUESTIONS, limit=0.0)
    kept = (base.path / "audit" / "report.json").read_bytes()
    assert base.audit(Plain(), QUESTIONS, limit=0.65, dry_run=True)["dry_run"]
    assert (base.path / "audit" / "report.json").read_bytes() == kept
    assert (base.path / "audit" / "dry-run.json").exists()


def test_scenarios_are_labels_to_search_by(empty: KnowledgeBase) -> None:
    for i in range(6):
        empty.add_text(f"Goods are returned within {i} days; the refund is paid by the shop.", f"returns-{i}")
        empty.add_text(f"第{i}号水泵放在地下室，水泵每年检查一次。", f"pumps-{i}")
    empty.audit(Plain(), [], limit=0.65)
    labels = {hit.labels for hit in empty.search("refund of goods", 12)}
    named = sorted({label for own in labels for label in own})
    assert len(named) >= 2
    for label in named:
        found = empty.search("水泵 goods", 12, labels=[label])
        assert found
        assert {hit.labels for hit in found} == {(label,)}


def test_scenario_names_tell_groups_apart() -> None:
    texts = [f"The refund for returned goods is paid within {i} days." for i in range(10)]
    texts += [f"水泵的电机功率是{i}千瓦，电机在地下室。" for i in range(10)]
    found = scenarios(texts, default_embedder()(texts))
    assert not set(found[:10]) & set(found[10:])
    assert all("功率" in name for name in found[10:])
    assert scenarios([], default_embedder()([])) == []


def test_questions_made_of_the_text_and_of_a_file(base: KnowledgeBase, tmp_path: Path) -> None:
    documents = [base.document(name) for name in base.doc_ids()]
    made = holes([one for one in documents if one], base._store.rarity)
    assert made
    assert all(fold(one.answers[0]) not in one.question.split() for one in made)
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "Q?", "answer": "A"}\n\n{"question": "问？", "answers": ["甲", "乙"]}\n', "utf-8")
    assert [one.answers for one in read_questions(file)] == [("A",), ("甲", "乙")]
    file.write_text('{"question": "Q?", "answers": "abc"}', "utf-8")
    assert read_questions(file) == [Asked(question="Q?", answers=("abc",))]
    file.write_text('{"question": "问？", "answer": ["甲", 5]}', "utf-8-sig")
    assert read_questions(file) == [Asked(question="问？", answers=("甲", "5"))]
    odd = (
        '{"question": "Q", "answers": []}', '{"question": "Q", "answer": ""}', '{"question": null, "answer": "A"}',
        '{"question": "Q", "answer": null}', '{"question": " ", "answer": "A"}',
        '{"question": "Q", "answers": {"text": ["A"]}}', '{"question": "Q", "answers": [null]}',
    )  # fmt: skip
    for text, said in (
        *((one, "line 1") for one in odd),
        ("", "no question"),
        ("{]", "line 1"),
        ('{"question": "Q"}', "line 1"),
        ("[1]", "line 1"),
    ):
        file.write_text(text, "utf-8")
        with pytest.raises(DocumentError, match=said):
            read_questions(file)
    with pytest.raises(DocumentError, match="cannot be read"):
        read_questions(tmp_path / "none.jsonl")
    assert answered(QUESTIONS[:1], lambda _: ["It is ４０  Kilograms."]) == [True]


@pytest.mark.parametrize("given", [[2.0], [-0.5], []])
def test_what_is_no_score_is_refused(base: KnowledgeBase, given: list[float]) -> None:
    class Wrong:
        fingerprint = "wrong"

        def __call__(self, texts: Sequence[str]) -> Sequence[float]:
            return given * len(texts)

    with pytest.raises(RagError, match="does not fit this audit"):
        base.audit(Wrong(), [])


def test_an_audit_that_loses_answers_is_undone(base: KnowledgeBase) -> None:
    size, before = base._store.size(), {hit.text for hit in base.search("zxq 7719 pump", 10)}
    report = base.audit(Plain(), QUESTIONS, limit=0.65)
    assert report["undone"]
    assert report["recall"]["after"] < report["recall"]["before"]
    assert (base.quarantined(), base._store.size()) == ([], size)
    assert {hit.text for hit in base.search("zxq 7719 pump", 10)} == before
    assert not base.audit(Plain(), QUESTIONS[:2], limit=0.65)["undone"]
    assert base.quarantined() != []


def test_what_cannot_be_judged_stays(base: KnowledgeBase) -> None:
    class English(Plain):
        def __call__(self, texts: Sequence[str]) -> list[float]:
            scores = zip(texts, super().__call__(texts), strict=True)
            return [float("nan") if not text.isascii() else score for text, score in scores]

    report = base.audit(English(), [], limit=0.95)
    assert [hit.doc_id for hit in base.search("水泵有多重？")] == ["手册/水泵.md"]
    assert (report["documents"]["not_scored"], report["documents"]["easy"]) == (1, 0)
    assert [row["mean"] for row in report["depth"]["by_source"] if row["name"] == "手册/"] == [None]
    assert json.loads(json.dumps(report, allow_nan=False)) == read_report(base.path / "audit")


def test_nothing_to_audit(empty: KnowledgeBase) -> None:
    with pytest.raises(RagError, match="empty"):
        empty.audit(Plain())
    with pytest.raises(RagError, match="between 0 and 1"):
        empty.audit(Plain(), limit=2)
    assert read_report(empty.path / "audit") is None
