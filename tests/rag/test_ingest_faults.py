"""What is wrong with files is told and left out; the rest goes in, and the index stays whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.rag import KnowledgeBase
from shoal.rag.errors import DocumentError

GOOD = "The blue pump weighs 40 kg. 蓝色水泵重四十公斤。"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "good.md").write_text(GOOD, "utf-8")
    return tmp_path / "docs"


def test_a_bad_row_is_told_and_the_others_go_in(empty: KnowledgeBase, folder: Path) -> None:
    rows = folder / "rows.jsonl"
    rows.write_text('{"id": 1, "text": "One."}\n{"id": 2, "text": "Two."\n{"id": 3, "text": "三。"}\n', "utf-8")
    report = empty.add(folder)
    assert [(Path(one.path).name, one.reason) for one in report.skipped] == [
        ("rows.jsonl", "line 2 is not JSON: Expecting ',' delimiter")
    ]
    assert empty.doc_ids() == ["good.md", "rows.jsonl#1", "rows.jsonl#3"]
    rows.write_text('{"id": 1, "text": "One."}\n{"id": 3, "tex\n', "utf-8")
    assert empty.add(folder).removed == 0  # the row that cannot be read may be the one
    rows.write_text('{"id": 1, "text": "One."}\n', "utf-8")
    assert empty.add(folder).removed == 1
    assert empty.doc_ids() == ["good.md", "rows.jsonl#1"]


def test_a_quote_gone_wrong_costs_its_own_line(empty: KnowledgeBase, folder: Path) -> None:
    (folder / "t.csv").write_text(
        'id,text\n1,"Fine, with a comma."\n2,"bad" quote,\n3,"跨\n行。"\n4,"never closed\n5,last line\n', "utf-8"
    )
    report = empty.add(folder / "t.csv")
    assert [one.reason.partition(":")[0] for one in report.skipped] == [
        "line 3 is not a table row", "line 6 is not a table row",
    ]  # fmt: skip
    assert empty.doc_ids() == ["t.csv#1", "t.csv#3", "t.csv#5"]
    document = empty.document("t.csv#3")
    assert document is not None
    assert document.text == "跨\n行。"


def test_an_id_that_comes_twice_is_told_and_the_last_counts(empty: KnowledgeBase, folder: Path) -> None:
    (folder / "r.jsonl").write_text('{"id": 1, "text": "First."}\n{"id": 1, "text": "Last."}\n', "utf-8")
    report = empty.add(folder / "r.jsonl")
    assert [one.reason for one in report.skipped] == ["id 1 came 2 times: the last row counts"]
    document = empty.document("r.jsonl#1")
    assert document is not None
    assert document.text == "Last."


def test_many_bad_rows_are_told_in_short(empty: KnowledgeBase, folder: Path) -> None:
    (folder / "b.jsonl").write_text('{"text": "Kept."}\n' + "{]\n" * 50, "utf-8")
    report = empty.add(folder / "b.jsonl")
    assert len(report.skipped) == 21
    assert report.skipped[-1].reason == "and 30 more rows"


def test_links_that_go_round_are_walked_once(empty: KnowledgeBase, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").write_text("Second file.", "utf-8")
    (folder / "sub" / "round").symlink_to(folder)
    (folder / "a.txt").symlink_to(folder / "a.txt")
    report = empty.add(folder)
    assert empty.doc_ids() == ["good.md", "sub/b.txt"]
    assert [(Path(one.path).name, one.reason.partition(":")[0]) for one in report.skipped] == [
        ("a.txt", "cannot be read")
    ]
    assert empty.add(folder / "a.txt").skipped


def test_a_pipe_is_not_waited_for(empty: KnowledgeBase, folder: Path) -> None:
    os.mkfifo(folder / "pipe.txt")
    assert "not a file" in empty.add(folder / "pipe.txt").skipped[0].reason


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_told(empty: KnowledgeBase, folder: Path) -> None:
    (folder / "shut").mkdir(mode=0)
    (folder / "no.txt").write_text("x", "utf-8")
    (folder / "no.txt").chmod(0)
    assert [one.reason for one in empty.add(folder).skipped] == ["cannot be read: Permission denied"] * 2


def test_one_text_too_long_is_refused_and_many_rows_are_not(
    empty: KnowledgeBase, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.rag.document.MAX_CHARS", 100)
    (folder / "long.txt").write_text("word " * 50, "utf-8")
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"text": f"Row {i}. " * 5}) for i in range(9)), "utf-8")
    report = empty.add(folder)
    assert ["the limit is 100: split it" in one.reason for one in report.skipped] == [True]
    assert report.added == 10


def test_without_the_library_for_word_the_rest_goes_in(
    empty: KnowledgeBase, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .test_office import word

    (folder / "a.docx").write_bytes(word())
    monkeypatch.setitem(sys.modules, "docx", None)
    report = empty.add(folder)
    assert (report.added, "shoal[rag]" in report.skipped[0].reason) == (1, True)


def test_rows_from_standard_input(empty: KnowledgeBase) -> None:
    data = '{"id": "a", "text": "Eins."}\n{]\n{"text": "二。"}\n'.encode()
    report = empty.add_data(data, "in", kind="jsonl", labels=["x"])
    assert (report.added, len(report.skipped), empty.doc_ids()) == (2, 1, ["in#3", "in#a"])
    assert empty.add_data(GOOD.encode(), "note").added == 1


FULL = """
import resource, sys
from shoal.rag import KnowledgeBase, RagError
base = KnowledgeBase.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (320 * 1024,) * 2)
try:
    for i in range(400):
        base.add_text(f"Device {i} weighs {i} kg. " * 60, f"device-{i}")
except RagError as error:
    print(i, error)
"""


def test_a_full_disk_keeps_what_was_in(tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path / "kb") as base:
        base.add_text(GOOD, "good")
    ran = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "kb")], capture_output=True, text=True, check=True)
    done = int(ran.stdout.split()[0])
    assert "check free space" in ran.stdout
    with KnowledgeBase.open(tmp_path / "kb") as base:
        assert set(base.doc_ids()) == {"good", *(f"device-{i}" for i in range(done))}
        assert base._store._read("PRAGMA integrity_check") == [("ok",)]
        assert base.search("蓝色水泵多重？", 1)[0].doc_id == "good"
        base.add_text("Again.", "again")


def test_a_file_of_which_nothing_is_left_says_what_was_wrong(empty: KnowledgeBase, folder: Path) -> None:
    (folder / "p.jsonl").write_text('{\n "text": "一行"\n}\n', "utf-8")
    (told,) = empty.add(folder / "p.jsonl").skipped
    assert told.reason.startswith("no row with text in it; line 1 is not JSON")
    with pytest.raises(DocumentError, match="line 1 is not JSON"):
        empty.add_data(b"{\n", "stdin", kind="jsonl")
