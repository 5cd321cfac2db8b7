import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.rag.document import Document, decode, find_files, html_text, read_bytes, read_file
from shoal.rag.errors import DocumentError


def only(path: Path) -> Document:
    (document,) = read_file(path, path.name)
    return document


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def pdf(text: str) -> bytes:
    """A one-page PDF with a line of text, written by hand."""
    stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 200] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length " + str(len(stream)).encode() + b" >>\nstream\n" + stream + b"\nendstream",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    table = b"".join(f"{place:010d} 00000 n \n".encode() for place in places)
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode() + table
    return out + f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()


def test_text_is_kept_character_for_character(tmp_path: Path) -> None:
    text = "# 标题\r\n\r\nLine one.\r\n第二行。\n"
    document = only(write(tmp_path / "a.md", text))
    assert (document.text, document.title, document.doc_id) == (text, "标题", "a.md")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_chinese_encodings(tmp_path: Path, encoding: str) -> None:
    text = "公司成立于1998年，总部设在上海。The pump runs."
    assert only(write(tmp_path / "a.txt", text.encode(encoding))).text == text


@pytest.mark.parametrize(
    "text", ["naïve café costs 5 €", "événement", "Größe über Straße", "señor mañana", "Ångström blåbær", "Müller"]
)
def test_western_encoding(text: str) -> None:
    assert decode(text.encode("cp1252")) == text


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("e.txt", b"", "empty"),
        ("s.txt", b"  \n\n ", "empty"),
        ("b.txt", b"\x7fELF\0\0\0\1\2", "zero bytes"),
        ("c.txt", bytes(range(1, 32)) * 20, "control characters"),
        ("d.pdf", b"%PDF-1.4 broken", "damaged"),
        ("n.jsonl", b'{"text": "ok"}\nnot json\n', "line 2 is not JSON"),
        ("q.csv", b'a,b\n"x,y\n', "not a table row"),
        ("z.jsonl", b'{"n": 1}\n', "no row with text"),
        ("h.html", b"<script>x</script>", "no text"),
    ],
)
def test_bad_files_say_why(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        list(read_file(write(tmp_path / name, data), name))


def test_a_missing_and_a_huge_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        list(read_file(tmp_path / "none.txt", "none.txt"))
    monkeypatch.setattr("shoal.rag.document.MAX_BYTES", 10)
    with pytest.raises(DocumentError, match="limit is 10"):
        list(read_file(write(tmp_path / "big.txt", "more than ten bytes"), "big.txt"))


def test_html_keeps_headings_lists_and_rows_and_drops_scripts() -> None:
    page = (
        "<html><head><title>Pump &amp; Motor</title><style>p{}</style></head><body><nav>Home</nav><h1>泵</h1>"
        "<p>First <b>part</b>.</p><script>alert(1)</script><ul><li>one<li>two</ul>"
        "<table><tr><th>kW</th><td>15</td></tr></table></body></html>"
    )
    text, title = html_text(page)
    assert title == "Pump & Motor"
    assert "# 泵" in text.splitlines()
    assert "First part." in text
    assert "- one" in text
    assert "| kW | 15" in text
    assert "alert" not in text
    assert "Home" not in text


def test_html_leaves_out_what_a_reader_does_not_see() -> None:
    page = (
        "<p>shown</p><div hidden>secret <div>inner</div> still</div><p style='color:red; display: none'>gone"
        "<p>next</p><input hidden><span STYLE='VISIBILITY:hidden'>away</span><noscript><p>no</p></noscript><p>end</p>"
    )
    text, _ = html_text(page)
    assert text.split() == ["shown", "next", "end"]


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("<ul><li hidden>no<b>x<li>one</ul><p>end", "- one end"),
        ("<ul><li hidden>no<ul><li>no</ul>no</li><li>壹</ul>end", "- 壹 end"),
        ("<table><tr hidden><td>no<tr><td>15</table>end", "| 15 end"),
        ("<table><tr><td style='display:none'>no<td>千瓦</tr></table>end", "| 千瓦 end"),
        ("<table><tr><td>1<td hidden>no</table>end", "| 1 end"),
        ("<dl><dd hidden>no<dt>one</dl>end", "one end"),
        ("<select><option hidden>no<option>one</select>", "one"),
        ("<section><p hidden>no</section>end", "end"),
        ("<p hidden>no<h2>Head</h2>end", "## Head end"),
        ("<div hidden>no</span><div>no</div><p>no</div>end", "end"),
        ("<svg><title>no</title><path/></svg>end", "end"),
    ],
)
def test_html_shows_what_comes_after_a_hidden_part_that_nobody_closed(page: str, shown: str) -> None:
    assert html_text(page)[0].split() == shown.split()


def test_html_parts_end_where_their_blocks_do() -> None:
    page = (
        "<header>甲</header><div><div>one</div></div> two<ul><li>a</li><li>b</li></ul>three<div>x</div>\n<div>y</div>"
    )
    table = "<table><tr><td>1</td></tr>\n<tr><td>2</td></tr></table>"
    assert html_text(page + table)[0] == "甲\n\none\ntwo\n\n- a\n- b\nthree\nx\ny\n\n| 1\n| 2"


def test_html_keeps_preformatted_text_as_it_stands() -> None:
    text, _ = html_text("<p>Run:</p><pre>if x:\n    go(1,  2)\n\n\n\n\treturn</pre><p>a   b</p>")
    assert "```\nif x:\n    go(1,  2)\n" in text
    assert "\n    return\n```" in text
    assert text.endswith("a b")
    assert html_text("<pre>open  end")[0] == "```\nopen  end\n```"


def test_a_row_s_number_is_nobody_else_s_id(tmp_path: Path) -> None:
    rows = [{"text": "first"}, {"text": "second", "id": "1"}, {"text": "third", "id": 7}, {"text": "fourth"}]
    file = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert [one.doc_id for one in read_file(file, "a")] == ["a#row-1", "a#1", "a#7", "a#4"]


def test_a_number_that_is_none_costs_no_row(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "库存", "price": NaN, "count": 3}')
    assert [one.meta for one in read_file(file, "a")] == [{"count": 3}]


@pytest.mark.parametrize(
    "table",
    [
        "id;text\n1;a, b\n2;乙\n",
        "id\ttext\n1\ta, b\n2\t乙\n",
        'id, text\n1, "a, b"\n2, 乙\n',
        'id,text\r\n1,"a, b"\r\n2,乙',
    ],
)
def test_tables_as_spreadsheets_and_people_write_them(tmp_path: Path, table: str) -> None:
    file = write(tmp_path / "t.csv", table)
    assert [(one.doc_id, one.text) for one in read_file(file, "t")] == [("t#1", "a, b"), ("t#2", "乙")]


@pytest.mark.parametrize(
    "odd", ["<![foo", "<![] &#' x>", "<![CDATA[x]]>", "<![if !ie]>", "<!", "</", "<?php", "&#xD800;"]
)
def test_odd_markup_costs_no_page(odd: str) -> None:
    text, _ = html_text(f"<p>before</p>{odd}<p>after</p>> end")
    assert "before" in text
    assert "end" in text


def test_pdf(tmp_path: Path) -> None:
    assert "The pump delivers 40 litres." in only(write(tmp_path / "a.pdf", pdf("The pump delivers 40 litres."))).text


def test_rows_are_documents_of_their_own(tmp_path: Path) -> None:
    rows = [{"id": 7, "text": "第一条。", "labels": ["hr"]}, {"question": "Open when?", "answer": "At nine."}, "plain"]
    found = list(read_file(write(tmp_path / "r.jsonl", "\n".join(json.dumps(row) for row in rows)), "r.jsonl"))
    assert [(one.doc_id, one.text) for one in found] == [
        ("r.jsonl#7", "第一条。"), ("r.jsonl#2", "question: Open when?\nanswer: At nine."), ("r.jsonl#3", "plain"),
    ]  # fmt: skip
    assert found[0].labels == ("hr",)
    table = write(tmp_path / "t.csv", "名称,功率\n泵,15千瓦\n风机,7千瓦\n")
    assert [one.text for one in read_file(table, "t.csv")] == ["名称: 泵\n功率: 15千瓦", "名称: 风机\n功率: 7千瓦"]


def test_folders_give_known_files_in_order_and_skip_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", ".git/c.txt", "sub/d.html", "sub/e.exe"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "x")
    names = [file.relative_to(root).as_posix() for file, root in find_files([tmp_path])]
    assert names == ["a.md", "b.txt", "sub/d.html"]
    assert [file.name for file, _ in find_files([tmp_path / "*.md", tmp_path / "sub" / "e.exe"])] == ["a.md", "e.exe"]


SEEDS = (
    b"<html><![CDATA[x]]><!DOCTYPE a [<!ENTITY b 'c'>]><p>Text</p><![if !x]>",
    b'{"id": 1, "text": "One.", "labels": ["a"]}\n{"text": 5}\n[1]\n',
    b'id,text\n1,"a ""b"" c"\n2,plain\n',
    "标题,正文\n一,二。\n".encode("gb18030"),
    "# 标题\n\nText。\n".encode("utf-16"),
    b"PK\x03\x04" + b"\0" * 40 + b"word/document.xml",
    pdf("Some text."),
)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 8)), max_size=4),
    kind=st.sampled_from(["text", "html", "pdf", "docx", "jsonl", "csv", "tsv"]),
)
def test_whatever_is_in_a_file_it_is_read_or_refused(
    seed: bytes, edits: list[tuple[float, bytes, int]], kind: Any
) -> None:
    data = seed
    for place, put, gone in edits:
        at = int(place * len(data))
        data = data[:at] + put + data[at + gone :]
    with suppress(DocumentError):
        for document in read_bytes(data, "n", kind, report=lambda reason: None):
            assert document.text.encode()  # no lone surrogates


def test_lone_surrogates_are_replaced_one_for_one() -> None:
    assert len(Document(doc_id="d", text="a\ud800b").text) == 3


@pytest.mark.parametrize(("doc_id", "text"), [("", "x"), ("d", " \n"), ("d" * 2000, "x")])
def test_documents_need_a_name_and_text(doc_id: str, text: str) -> None:
    with pytest.raises(DocumentError):
        Document(doc_id=doc_id, text=text)
