"""Word and PDF files, whole, damaged, locked and hostile."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shoal.rag.document import read_file
from shoal.rag.errors import DocumentError


def word(change: Any = None) -> bytes:
    """A Word file made by the library that reads it."""
    import docx

    document = docx.Document()
    document.core_properties.title = "泵的说明"
    document.add_heading("Pump 泵", 1)
    document.add_paragraph("The pump weighs 40 kg. 泵重四十公斤。")
    document.add_paragraph("Oil it every month.", style="List Bullet")
    table = document.add_table(rows=2, cols=2)
    for cell, text in zip((*table.rows[0].cells, *table.rows[1].cells), ("Part", "kW", "Motor", "15"), strict=True):
        cell.text = text
    document.add_paragraph("After the table.")
    if change:
        change(document)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def packed(**files: bytes) -> bytes:
    """A zip with these files; two underscores stand for a slash, one for a point."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), data)
    return out.getvalue()


def read(path: Path, data: bytes) -> Any:
    path.write_bytes(data)
    (document,) = read_file(path, path.name)
    return document


def test_word_keeps_headings_lists_and_rows_in_order(tmp_path: Path) -> None:
    document = read(tmp_path / "a.docx", word())
    assert document.title == "泵的说明"
    assert document.text.split("\n\n") == [
        "# Pump 泵", "The pump weighs 40 kg. 泵重四十公斤。", "- Oil it every month.",
        "| Part | kW |\n| Motor | 15 |", "After the table.",
    ]  # fmt: skip


def test_word_reads_what_was_inserted_and_not_what_was_deleted(tmp_path: Path) -> None:
    from docx.oxml import parse_xml

    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'

    def track(document: Any) -> None:
        body = document.add_paragraph("Price: ")._p
        for tag, text in (("ins", "<w:t>12</w:t>"), ("del", "<w:delText>10</w:delText>")):
            body.append(parse_xml(f"<w:{tag} {space}><w:r>{text}</w:r></w:{tag}>"))

    assert read(tmp_path / "a.docx", word(track)).text.endswith("Price: 12")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.docx", b"PK\x03\x04 broken", "not a whole zip"),
        ("a.docx", b"not even a zip", "not a whole zip"),
        ("a.txt", packed(a_txt=b"x"), "no Word document"),
        ("a.docx", packed(word__document_xml=b"<broken"), "damaged Word file|not a Word"),
        ("a.docx", packed(word__document_xml=b"0" * 30_000_000), "unpack to 30,000,000: too much"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600, "old Word file"),
        ("a.pdf", b"plain text", "does not begin as a PDF"),
        ("a.pdf", b"%PDF-1.4 broken", "damaged PDF"),
    ],
)
def test_bad_office_files_say_why(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        read(tmp_path / name, data)


def test_macros_are_not_read(tmp_path: Path) -> None:
    plain, macros = zipfile.ZipFile(io.BytesIO(word())), io.BytesIO()
    with zipfile.ZipFile(macros, "w") as archive:
        for name in plain.namelist():
            data = plain.read(name)
            if name == "[Content_Types].xml":
                kind = b"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
                data = data.replace(kind, b"application/vnd.ms-word.document.macroEnabled.main+xml")
            archive.writestr(name, data)
        archive.writestr("word/vbaProject.bin", b"\xd0\xcf\x11\xe0")
    with pytest.raises(DocumentError, match=r"macros.*save it as \.docx"):
        read(tmp_path / "a.docm", macros.getvalue())


def test_a_locked_pdf_says_so_and_one_without_a_password_is_read(tmp_path: Path) -> None:
    from pypdf import PdfReader, PdfWriter

    from .test_document import pdf

    for password, user in (("secret", "secret"), ("", "owner")):
        writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf("The pump delivers 40 litres."))))
        writer.encrypt(password, owner_password=user, algorithm="RC4-128")
        out = io.BytesIO()
        writer.write(out)
        if password:
            with pytest.raises(DocumentError, match="locked by a password"):
                read(tmp_path / "a.pdf", out.getvalue())
        else:
            assert "40 litres" in read(tmp_path / "a.pdf", out.getvalue()).text


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from shoal.rag import MissingExtraError

    data = word()
    monkeypatch.setitem(sys.modules, "docx", None)
    with pytest.raises(MissingExtraError, match=r"shoal\[rag\]"):
        read(tmp_path / "a.docx", data)
