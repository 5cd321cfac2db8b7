import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.rag import IndexMismatchError, KnowledgeBase, RagError
from shoal.rag.chunk import Splitter
from shoal.rag.embed import default_embedder
from shoal.rag.errors import DocumentError
from shoal.rag.ingest import EncodeHere
from shoal.rag.reading import default_reader

Fill = Callable[[KnowledgeBase], KnowledgeBase]


class OtherEmbedder:
    """Other vectors of another width."""

    fingerprint, dim = "other:1", 64

    def __call__(self, texts: list[str]) -> np.ndarray:
        return default_embedder()(texts)[:, :64] / np.linalg.norm(
            default_embedder()(texts)[:, :64], axis=1, keepdims=True
        )


@pytest.fixture
def docs(tmp_path: Path, documents: dict[str, str]) -> Path:
    """The documents as files of a folder."""
    (tmp_path / "docs").mkdir()
    for name, text in documents.items():
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    return tmp_path / "docs"


def test_adding_a_folder_twice_changes_nothing(empty: KnowledgeBase, docs: Path, documents: dict[str, str]) -> None:
    seen: list[tuple[int, int]] = []
    (docs / "broken.pdf").write_bytes(b"%PDF-1.4 broken")
    first = empty.add(docs, progress=lambda done, total, name: seen.append((done, total)))
    size, fingerprint = len(empty), empty.fingerprint
    assert (first.added, [Path(one.path).name for one in first.skipped]) == (len(documents), ["broken.pdf"])
    assert seen[-1] == (len(documents) + 1,) * 2
    again = empty.add(docs)
    assert (again.added, again.updated, again.unchanged) == (0, 0, len(documents))
    assert (len(empty), empty.fingerprint) == (size, fingerprint)


def test_a_changed_file_replaces_its_chunks(empty: KnowledgeBase, docs: Path) -> None:
    empty.add(docs)
    before = empty.fingerprint
    (docs / "pump.txt").write_text("离心泵的额定功率为22千瓦。", encoding="utf-8")
    assert empty.add(docs).updated == 1
    assert empty.fingerprint != before
    hits = empty.search("离心泵的额定功率是多少？", 10)
    assert [hit.text for hit in hits if hit.doc_id == "pump.txt"] == ["离心泵的额定功率为22千瓦。"]


def test_rows_gone_from_a_file_go(empty: KnowledgeBase, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("名称,功率\n泵,15千瓦\n风机,7千瓦\n", encoding="utf-8")
    empty.add(table)
    assert empty.doc_ids() == ["t.csv#1", "t.csv#2"]
    table.write_text("名称,功率\n泵,15千瓦\n", encoding="utf-8")
    assert empty.add(table).removed == 1
    assert empty.doc_ids() == ["t.csv#1"]


def test_equal_names_in_two_folders_are_two_documents(empty: KnowledgeBase, tmp_path: Path) -> None:
    for name, text in (("one", "The red pump."), ("two", "蓝色的泵。")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(text, encoding="utf-8")
        empty.add(tmp_path / name)
        empty.add(tmp_path / name)
    assert len(empty.doc_ids()) == 2
    assert empty.doc_ids()[0] == "a.txt"
    assert empty.doc_ids()[1].startswith("a.txt~")


def test_fingerprint_follows_the_content_only(tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path / "a") as one, KnowledgeBase.open(tmp_path / "b") as two:
        nothing = one.fingerprint
        one.add_text("甲。", "x")
        one.add_text("Second.", "y")
        two.add_text("Second.", "y")
        two.add_text("甲。", "x")
        assert one.fingerprint == two.fingerprint != nothing
        full = one.fingerprint
        assert one.delete("x")
        assert one.fingerprint != full
        assert not one.delete("x")
        one.add_text("甲。", "x")
        assert one.fingerprint == full
        one.delete("x")
        one.delete("y")
        assert one.fingerprint == nothing


def test_spans_point_into_the_document(base: KnowledgeBase) -> None:
    for question in ("When does the shop open?", "公司的总部在哪里？", "How heavy is a blue whale?"):
        for hit in base.search(question, 10):
            document = base.document(hit.doc_id)
            assert document is not None
            assert document.text[hit.span.start : hit.span.end] == hit.text
            assert 0 <= hit.score <= 1
            assert hit.depth_score is None


@pytest.mark.parametrize(
    ("question", "doc_id"),
    [
        ("When does the shop open on weekdays?", "hours.md"),
        ("公司的总部在哪里？", "company.txt"),
        ("Where does the Danube rise?", "rivers.txt"),
        ("离心泵多久维护一次？", "pump.txt"),
        ("商店几点开门？", "hours.md"),
        ("Who founded the company Hailan?", "company.txt"),
        ("蓝鲸吃什么？", "whales.txt"),
    ],
)
def test_finds_in_and_across_languages(base: KnowledgeBase, question: str, doc_id: str) -> None:
    assert base.search(question, 1)[0].doc_id == doc_id


def test_a_passage_knows_its_neighbours(empty: KnowledgeBase) -> None:
    empty.add_text("\n\n".join(f"# Part {i}\n\nDevice {i} weighs {i} kg. 第{i}号设备。" for i in range(5)), "manual")
    empty.add_text("Device 9 weighs 9 kg.", "other")
    hit = empty.search("How heavy is device 2?", 1)[0]
    assert [one.heading for one in empty.around(hit)] == ["Part 1", "Part 2", "Part 3"]
    assert [one.heading for one in empty.around(hit, before=0, after=9)] == ["Part 2", "Part 3", "Part 4"]
    document = empty.document("manual")
    assert document is not None
    assert all(document.text[one.span.start : one.span.end] == one.text for one in empty.around(hit))


def test_odd_questions(base: KnowledgeBase) -> None:
    assert base.search("   ") == []
    assert base.search("\ud800 \0 ???", 2) is not None
    assert base.search('AND OR NOT "quoted" (NEAR) *', 2) is not None
    assert base.search("word " * 5000, 2) is not None
    with pytest.raises(RagError, match="at least one"):
        base.search("x", 0)


def test_an_empty_base_answers_nothing(empty: KnowledgeBase) -> None:
    assert empty.search("anything") == []
    assert empty.extract("Who is it?") is None
    assert empty.context("Who is it?").text == ""
    assert len(empty) == 0


def test_labels_narrow_the_search(empty: KnowledgeBase) -> None:
    empty.add_text("The pump weighs 40 kg.", "one", labels=["pumps"])
    empty.add_text("泵重四十公斤。", "two", labels=["水泵", "pumps"])
    empty.add_text("The fan weighs 9 kg.", "three", labels=["fans"])
    assert {hit.doc_id for hit in empty.search("How heavy is the pump?", labels=["pumps"])} == {"one", "two"}
    assert {hit.doc_id for hit in empty.search("How heavy is the pump?", labels=["水泵"])} == {"two"}


def test_reopened_it_is_the_same(tmp_path: Path, fill: Fill, documents: dict[str, str]) -> None:
    with KnowledgeBase.open(tmp_path) as one:
        fill(one)
        hits, fingerprint = one.search("Where does the Danube rise?"), one.fingerprint
    assert json.loads((tmp_path / "manifest.json").read_text())["documents"] == len(documents)
    with KnowledgeBase.open(tmp_path) as two:
        assert two.search("Where does the Danube rise?") == hits
        assert two.fingerprint == fingerprint


@pytest.mark.parametrize("damage", ["remove", "garbage", "manifest", "generation", "format"])
def test_a_lost_or_damaged_faiss_file_is_built_again(tmp_path: Path, damage: str, fill: Fill) -> None:
    with KnowledgeBase.open(tmp_path) as one:
        fill(one)
        hits = one.search("蓝鲸有多重？")
    (file,) = tmp_path.glob("dense-*.faiss")
    if damage == "remove":
        file.unlink()
    elif damage == "garbage":
        file.write_bytes(b"garbage" * 100)
    elif damage == "manifest":
        (tmp_path / "manifest.json").write_text("{]")
    else:
        record = json.loads((tmp_path / "manifest.json").read_text())
        (tmp_path / "manifest.json").write_text(json.dumps({**record, damage: 999}))
    with KnowledgeBase.open(tmp_path) as two:
        assert two.search("蓝鲸有多重？") == hits


def test_another_embedder_is_refused_and_rebuild_takes_it(tmp_path: Path, fill: Fill) -> None:
    with KnowledgeBase.open(tmp_path) as one:
        fill(one)
        fingerprint = one.fingerprint
    with pytest.raises(IndexMismatchError, match="shoal kb rebuild"):
        KnowledgeBase.open(tmp_path, embed=OtherEmbedder())
    with KnowledgeBase.rebuild(tmp_path, embed=OtherEmbedder(), splitter=Splitter(size=64)) as two:
        assert two.search("Where does the Danube rise?", 1)[0].doc_id == "rivers.txt"
        assert two.fingerprint == fingerprint
    with pytest.raises(IndexMismatchError):
        KnowledgeBase.open(tmp_path)


def test_two_handles_see_each_other(tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path) as one, KnowledgeBase.open(tmp_path) as two:
        assert two.search("泵") == []
        one.add_text("泵的功率为15千瓦。", "p")
        assert [hit.doc_id for hit in two.search("泵的功率")] == ["p"]
        two.delete("p")
        assert one.search("泵的功率") == []


def test_reads_go_on_while_documents_come_in(empty: KnowledgeBase, fill: Fill, documents: dict[str, str]) -> None:
    fill(empty)
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                hits = empty.search("Where does the Danube rise?", 3)
                if not hits or hits[0].doc_id != "rivers.txt":
                    wrong.append(hits)
            except Exception as error:
                wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in readers:
        thread.start()
    for number in range(15):
        empty.add_text(f"Note {number}: 第{number}号设备运行正常。", f"note-{number}")
        if number % 3 == 0:
            empty.delete(f"note-{number}")
    stop.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    assert len(empty.doc_ids()) == len(documents) + 10


def test_closed_is_an_error_that_says_so(tmp_path: Path) -> None:
    base = KnowledgeBase.open(tmp_path)
    base.close()
    with pytest.raises(RagError, match="closed"):
        base.search("x")


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "kb").write_text("x")
    with pytest.raises(RagError, match="choose a folder"):
        KnowledgeBase.open(tmp_path / "kb")


WRITER = """
import sys
from shoal.rag import KnowledgeBase
base = KnowledgeBase.open(sys.argv[1])
print("ready", flush=True)
for number in range(10_000):
    base.add_text(f"Device {number} weighs {number} kg. 第{number}号设备。", f"device-{number % 50}")
    base._save()
"""


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_kill_9_leaves_a_whole_index(tmp_path: Path, delay: float, fill: Fill, documents: dict[str, str]) -> None:
    with KnowledgeBase.open(tmp_path) as base:
        fill(base)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(delay)
        os.kill(writer.pid, signal.SIGKILL)
    with KnowledgeBase.open(tmp_path) as base:
        assert set(documents) <= set(base.doc_ids())
        assert base.search("Where does the Danube rise?", 1)[0].doc_id == "rivers.txt"
        rows = base._store.rows(base._store.row_numbers().tolist())
        assert len(rows) == len(base)
        assert base._store._read("PRAGMA integrity_check") == [("ok",)]
        for hit in base.search("Device weighs kg", 10):
            document = base.document(hit.doc_id)
            assert document is not None
            assert document.text[hit.span.start : hit.span.end] == hit.text
        base.add_text("再次写入。", "again")


def test_filters_by_metadata(empty: KnowledgeBase) -> None:
    empty.add_text("The pump weighs 40 kg.", "one", labels=["pumps"], meta={"lang": "en", "year": 2020, "public": True})
    empty.add_text("泵重四十公斤,The pump.", "two", labels=["pumps"], meta={"lang": "zh", "year": 2021})
    empty.add_text("The pump weighs 9 kg.", "three", meta={"lang": "en", "year": 2021, 'a"b': "x"})

    def found(**only: Any) -> set[str]:
        hits = empty.search("How heavy is the pump?", 9, **only)
        assert {hit.doc_id for hit in empty.context("How heavy is the pump?", k=9, min_score=0, **only).kept} <= {
            hit.doc_id for hit in hits
        }
        return {hit.doc_id for hit in hits}

    assert found() == {"one", "two", "three"}
    assert found(where={"lang": "en"}) == {"one", "three"}
    assert found(where={"year": 2021}) == {"two", "three"}
    assert found(where={"lang": "en", "year": 2021}) == {"three"}
    assert found(labels=["pumps"], where={"lang": "en"}) == {"one"}
    assert found(where={"public": True}) == {"one"}
    assert found(where={'a"b': "x"}) == {"three"}
    assert found(where={"lang": "fr"}) == found(where={"year": "2021"}) == found(where={"x' OR 1=1 --": "y"}) == set()


def test_a_hash_in_a_name_is_part_of_it(empty: KnowledgeBase, tmp_path: Path) -> None:
    folder = tmp_path / "in" / "C#"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text("The first lamp is red.")
    (folder / "issue#1.md").write_text("The second lamp is blue.")
    (folder / "issue#2.md").write_text("The third lamp is green.")
    (folder / "r#x.jsonl").write_text('{"id": "k#1", "text": "Row one."}\n{"id": "j#1", "text": "Row two."}\n')
    first = empty.add(tmp_path / "in")
    assert (first.added, first.skipped) == (5, ())
    names = set(empty.doc_ids())
    assert names == {"C#/a.md", "C#/issue#1.md", "C#/issue#2.md", "C#/r#x.jsonl#k#1", "C#/r#x.jsonl#j#1"}
    for _ in range(2):
        again = empty.add(tmp_path / "in")
        assert (again.unchanged, again.added, again.removed, again.skipped) == (5, 0, 0, ())
    assert set(empty.doc_ids()) == names


def test_rows_describe_their_documents_and_a_bad_one_is_told(empty: KnowledgeBase, tmp_path: Path) -> None:
    rows = [
        {"id": 1, "text": "The lamp is red.", "lang": "en", "year": 2020, "labels": ["a", "b"]},
        {"id": 2, "text": "灯是红的。The lamp.", "lang": "zh", "note": "x" * 300, "deep": {"a": 1}},
        {"id": 3, "text": "bad", "labels": 3},
        {"id": 4, "text": "bad", "labels": [1, None]},
        {"id": "5" * 2000, "text": "bad"},
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = empty.add(tmp_path / "r.jsonl")
    assert report.added == 2
    assert [one.reason.partition(":")[0] for one in report.skipped] == ["row 3", "row 4", "row 5"]
    assert {hit.doc_id for hit in empty.search("lamp", where={"lang": "zh"})} == {"r.jsonl#2"}
    found = empty.document("r.jsonl#1")
    assert found is not None
    assert (found.meta, found.labels) == ({"lang": "en", "year": 2020}, ("a", "b"))
    assert empty.document("r.jsonl#2").meta == {"lang": "zh"}  # type: ignore[union-attr]


def test_metadata_that_is_no_json_is_refused(empty: KnowledgeBase) -> None:
    for value in (float("nan"), object(), {1, 2}):
        with pytest.raises(DocumentError, match="metadata"):
            empty.add_text("The lamp is red.", "x", meta={"a": value})
    assert empty.search("lamp", where={"a": 1}) == []


def test_embedding_elsewhere_that_was_killed_goes_on(tmp_path: Path) -> None:
    """What is committed is not embedded again, and what comes of it is what one process makes."""
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(f"The storm number {number} came over the sea.\n")

    class Elsewhere:
        batch, left = 2, 2

        def __call__(self, work: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return EncodeHere(embed=default_embedder(), reader=default_reader())(work)

    files = sorted(tmp_path.glob("*.txt"))
    with KnowledgeBase.open(tmp_path / "one") as one, KnowledgeBase.open(tmp_path / "two") as two:
        one.add(files)
        with pytest.raises(KeyboardInterrupt):
            two.add(files, encode_all=Elsewhere())
        report = two.add(files, encode_all=Elsewhere())
        assert (report.unchanged, report.added) == (4, 2)
        assert two.fingerprint == one.fingerprint
        assert [hit.score for hit in two.search("storm 3", 6)] == [hit.score for hit in one.search("storm 3", 6)]


def test_what_matches_nothing_is_told(empty: KnowledgeBase, docs: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    report = empty.add([docs, docs / "*.pdf", tmp_path / "bare", tmp_path / "none.md"])
    assert report.added > 1
    told = {Path(one.path).name: one.reason for one in report.skipped}
    assert told["*.pdf"] == "no file matches"
    assert told["bare"] == "no file of a kind that is read in it"
    assert "No such file" in told["none.md"]


def test_rows_that_share_an_id_are_unchanged_the_second_time(empty: KnowledgeBase, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"id": "a", "text": f"Version {n} of the row."}) for n in (1, 2)), "utf-8")
    first, second = empty.add(file), empty.add(file)
    assert (first.added, first.chunks) == (1, 1)
    assert (second.added, second.updated, second.unchanged, second.chunks) == (0, 0, 1, 0)
    assert empty.texts() == ["Version 2 of the row."]
