"""Calls with the wrong things: the error says what was wrong, and nothing is taken for what it is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.rag import KnowledgeBase, RagError


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda b: b.search(None), TypeError, "a question is a text, not NoneType"),
        (lambda b: b.search(b"pump"), TypeError, "not bytes"),
        (lambda b: b.extract(["水泵？"]), TypeError, "not list"),
        (lambda b: b.context(5), TypeError, "not int"),
        (lambda b: b.search("pump", "3"), RagError, "k is '3'"),
        (lambda b: b.search("pump", 1.5), RagError, "whole number"),
        (lambda b: b.search("pump", None), RagError, "k is None"),
        (lambda b: b.search("pump", labels="水泵"), TypeError, "labels are a list"),
        (lambda b: b.search("pump", labels=[1]), TypeError, "labels are a list"),
        (lambda b: b.search("pump", labels=["\ud800"]), RagError, "surrogates"),
        (lambda b: b.search("pump", where="lang=zh"), TypeError, "a filter is a dict"),
        (lambda b: b.search("pump", where={"lang": ["zh"]}), TypeError, "a filter is a dict"),
        (lambda b: b.search("pump", where={"n": 2**70}), RagError, "too large"),
        (lambda b: b.add_text("text", "new", labels="faq"), TypeError, "labels are a list"),
        (lambda b: b.add_text(None, "new"), TypeError, "a document's text is text, not NoneType"),
        (lambda b: b.add_text("text", 7), TypeError, "a document's doc_id is text, not int"),
        (lambda b: b.add_text("text", "new", title=None), TypeError, "title"),
        (lambda b: b.add(""), RagError, "current folder"),
        (lambda b: b.add(b"docs"), RagError, "name files or folders"),
        (lambda b: b.add("docs", labels="faq"), TypeError, "labels are a list"),
        (lambda b: b.add_data("text", "stdin"), TypeError, "bytes, not str"),
        (lambda b: b.add_data(b"text", "stdin", kind="word"), RagError, "'word' is no kind"),
        (lambda b: b.delete("\ud800"), RagError, "surrogates"),
        (lambda b: b.restore("hours.md"), TypeError, "a list of ids"),
    ],
)
def test_wrong_things_are_told(
    base: KnowledgeBase, call: Callable[[Any], Any], kind: type[Exception], said: str
) -> None:
    before = base.doc_ids()
    with pytest.raises(kind, match=said):
        call(base)
    assert base.doc_ids() == before


def test_a_question_of_any_length_is_searched(base: KnowledgeBase) -> None:
    words = " ".join(f"w{number}" for number in range(251_000))  # more than SQLite takes values
    assert base._store.document_frequencies(words.split())["w1"] == 0


def test_closing_twice_does_no_harm(tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path) as base:
        base.close()
