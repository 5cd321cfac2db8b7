"""Traces shown: reasons in words, one safe page, a PDF, and a terminal that no text can drive."""

import html.parser
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.gated_llm.trace import BEFORE, DepthTrace, Reason, TokenTrace, letter
from shoal.router.errors import MissingExtra
from shoal.router.traces import Record, TraceStore, pdf
from shoal.router.traces.page import page
from shoal.router.traces.record import encoded
from shoal.router.traces.words import lines, why

from .records import answer_of, record_of, request_of, tokens_of

HOSTILE = "<script>alert(1)</script>\x1b]0;owned\x07\x1b[2J\u202e</td>[bold]x[/bold]"


def test_reasons_in_words() -> None:
    said = [str(line) for line in lines(tokens_of("It", " is"))]
    assert said == [
        "layer 7 attention skipped: "
        "the plan leaves it out from depth 29 down (measured loss there 0.25 nats per token)",
        "layer 12 MLP skipped: the plan leaves it out from depth 29.25 down (measured loss there 0.11 nats per token)",
        "layer 17 attention skipped for 1 of 2 tokens: "
        "entropy 0.72 at layer 16 below 1.00, attention KL 0.031 at layer 16 below 0.05",
    ]


@pytest.mark.parametrize(
    ("ran", "reason", "words"),
    [
        (False, Reason.SIGNALS, "entropy 0.72 below 1.00, attention KL 0.03 below 0.05"),
        (False, Reason.CONFIDENCE, "confidence 0.97 of the token before above 0.90"),
        (True, Reason.ENTROPY, "entropy 0.72 below 1.00"),
        (False, Reason.RESIDUAL, "residual change 0.01"),
        (False, Reason.GATE, "its gate is closed (0.04)"),
        (True, Reason.GATE, "its gate is open (0.04)"),
        (False, Reason.RANDOM, "drawn at random to be skipped"),
        (False, Reason.BUDGET, "running it would have gone over the budget"),
        (True, Reason.WHOLE, "the first tokens run as whole as the budget allows"),
        (False, Reason.PLAN, "the plan leaves it out at this budget"),
    ],
)
def test_the_words_of_each_reason(ran: bool, reason: Reason, words: str) -> None:
    signals = {0: {"entropy": 0.72, "attention_kl": 0.03, "residual": 0.01}, BEFORE: {"confidence": 0.97}}
    token = TokenTrace(
        index=0, token="x", depth=3.0, branches=letter(ran, reason) * 2 + "S" * 6, gates=(0.04,) * 8, signals=signals
    )
    bounds = {0: {"entropy": 1.0, "attention_kl": 0.05}, BEFORE: {"confidence": 0.9}}
    if reason is Reason.SIGNALS:
        bounds.pop(BEFORE)
    trace = DepthTrace(
        total=4, policy="signals", budget=4.0, prefill=4.0, gate_fingerprint="", tokens=(token,), thresholds=bounds
    )
    assert why(trace, token, 0, "mlp") == words
    both = [line for line in lines(trace, skipped_only=False) if line.layer == 0]
    assert [line.kind for line in both] == [None]
    assert str(both[0]) == f"layer 0 {'ran' if ran else 'skipped'}: {words}"


class Reader(html.parser.HTMLParser):
    """Counts elements and collects attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in ("meta", "!doctype"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def hostile(text: str) -> Record:
    """The text wherever a caller, a document or a model can put text."""
    record = Record.of(
        request_of("x" + text),
        answer_of(text, reasons=(text,), tokens=tokens_of(text, text)),
        at=0.0,
        keep_text=True,
    )
    trace = json.loads(json.dumps(record.trace))
    trace["steps"] = [{"name": text, "ms": 1.0, "detail": {text: text}}]
    for passage in trace["passages"]["kept"]:
        passage.update(doc_id=text, text=text)
    return replace(record, id=text, trace=trace)


def test_hostile_text_is_inert_on_the_page() -> None:
    text = page(hostile(HOSTILE))
    read = Reader(text)
    assert (read.tags["script"], read.tags["style"], read.open) == (1, 1, [])
    assert not any(name.startswith("on") or name in ("src", "href", "style") for name, _ in read.attributes)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    assert "url(" not in text
    assert "http://" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in dict(read.attributes)["content"] or "default-src" in text


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=30))
def test_any_text_leaves_the_page_s_structure_alone(text: str) -> None:
    whole = "".join(c for c in text if not "\ud800" <= c <= "\udfff")
    plain, odd = Reader(page(hostile("a"))), Reader(page(hostile("a" + whole)))
    plain.tags.pop("span"), odd.tags.pop("span")
    assert odd.tags == plain.tags
    assert odd.open == []


def test_the_page_shows_every_token_and_every_branch() -> None:
    text = page(record_of("It", " is", "\n", "三年", "", " "))
    read = Reader(text)
    cells = re.findall(r'<td class="([ramof])" title="([^"]*)">', text)
    assert len(cells) == 6 * 30
    assert Counter(kind for kind, _ in cells) == {"r": 149, "m": 7, "a": 6, "f": 18}
    assert [title for _, title in cells if "layer 17 attention skipped" in title] == [
        "layer 17 attention skipped: entropy 0.72 at layer 16 below 1.00, attention KL 0.031 at layer 16 below 0.05; "
        "layer 17 MLP ran: the plan keeps it at this budget"
    ]
    for said in ("三年", "⏎", "␣", "deep", "looks like deep (0.91)", "29 of 30 layers, bucket 27+", "1 of 6"):
        assert said in read.said
    assert 'lang="en"' in text
    assert 'name="viewport"' in text


def test_a_light_trace_shows_which_layers_ran() -> None:
    record = record_of()
    assert "No layer ran" in page(record)
    depth = {**record.trace["depth"], "per_token": [29.0] * 4, "branch_runs": [[4, 4]] * 29 + [[0, 2]]}
    text = page(replace(record, trace={**record.trace, "depth": depth}))
    assert "<td>29</td><td>0%</td><td>50%</td><td>active</td>" in text
    assert "<td>28</td>" not in text


@pytest.mark.skipif(not any(map(shutil.which, pdf._BROWSERS)), reason="no Chromium on this machine")
def test_a_pdf_by_the_browser(tmp_path: Path) -> None:
    pdf.write_pdf(page(record_of("三年", " is")), tmp_path / "a.pdf")
    _check_pdf(tmp_path / "a.pdf")


def test_a_pdf_by_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "_BROWSERS", ())
    try:
        pdf.write_pdf(page(record_of("three", " is")), tmp_path / "a.pdf")
    except MissingExtra:
        pytest.skip("no WeasyPrint, or no Pango under it, on this machine")
    _check_pdf(tmp_path / "a.pdf")


def test_without_both_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "_BROWSERS", ())
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(MissingExtra, match=r"Chromium.*shoal\[pdf\]"):
        pdf.write_pdf("", tmp_path / "b.pdf")


def _check_pdf(path: Path) -> None:
    from pypdf import PdfReader

    text = " ".join(leaf.extract_text() for leaf in PdfReader(path).pages)
    assert "entropy 0.72" in re.sub(r"\s+", " ", text)


# the command line

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(shoal: Run) -> Run:
    return shoal


@pytest.fixture
def kept(run: Run, tmp_path: Path) -> Run:
    import time

    store = TraceStore(tmp_path / "home" / "traces.sqlite")
    store.put(record_of(trace_id="req-old", at=time.time() - 60))
    store.put(record_of("It", " is", " so", trace_id="req-new", tenant="acme", at=time.time()))
    store.close()
    return run


def test_kept_requests_are_listed_and_shown(kept: Run) -> None:
    code, out, _ = kept("trace", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["req-new", "req-old"]
    assert [row["id"] for row in json.loads(kept("trace", "list", "--tenant", "default", "--json")[1])] == ["req-old"]
    code, out, _ = kept("trace", "show", "last")
    assert code == 0
    assert max(map(len, out.splitlines())) > 80  # a pipe gets a line each, however long
    said = re.sub(r"\s+", " ", out)
    for part in (
        "looks like deep (0.91)",
        "It is",
        "2 tokens",
        "▀",
        "▄",
        "layer 17 attention skipped for 1 of 3 tokens",
    ):
        assert part in said
    assert "SHOAL_TRACE=full" in kept("trace", "show", "req-old")[2]


def test_a_trace_as_json_base64_and_file(kept: Run, tmp_path: Path) -> None:
    record = json.loads(kept("trace", "show", "req-new", "--json")[1])
    assert (record["form"], record["mode"], record["tokens"]["form"]) == (1, "full", 1)
    coded = kept("trace", "show", "req-new", "--base64")[1]
    assert coded.strip() == encoded(record)
    (tmp_path / "saved").write_text(coded, "utf-8")
    assert json.loads(kept("trace", "show", "saved", "--json")[1]) == record
    code, out, err = kept("trace", "show", "saved", "--html", "page.html")
    assert (code, out) == (0, "")
    assert "page.html" in err
    assert (tmp_path / "page.html").read_text("utf-8") == page(Record.from_dict(record))


def test_what_cannot_be_shown_is_said(kept: Run, tmp_path: Path) -> None:
    code, out, err = kept("trace", "show", "req-none")
    assert (code, out) == (1, "")
    assert "shoal trace list" in err
    (tmp_path / "newer.json").write_text(json.dumps({**record_of("a").to_dict(), "form": 2}), "utf-8")
    code, _, err = kept("trace", "show", "newer.json")
    assert code == 1
    assert "form 2" in err
    for words in (("--html", "none/page.html"), ("--pdf", "none/page.pdf"), ("--html", ".")):
        code, out, err = kept("trace", "show", "req-new", *words)
        assert (code, out) == (1, "")
        assert "name a file in" in err
        assert "Errno" not in err
    (tmp_path / "junk").write_bytes(b"\xff\x00junk")
    assert kept("trace", "show", "junk")[0] == 1


def test_an_empty_home_lists_nothing_and_makes_nothing(run: Run, tmp_path: Path) -> None:
    assert run("trace", "list", "--json")[:2] == (0, "[]\n")
    assert run("trace", "show", "last")[0] == 1
    assert not (tmp_path / "home").exists()


def test_hostile_text_cannot_drive_the_terminal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "evil.json").write_text(json.dumps(hostile(HOSTILE).to_dict()), "utf-8")
    code, out, _ = run("trace", "show", "evil.json")
    assert code == 0
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", out)
    assert "[bold]x" in out
