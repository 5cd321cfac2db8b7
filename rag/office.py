"""PDF and Word files to plain text. Nothing in them is run or fetched; what is too large unpacked is refused (A1).

PDF by pypdf, Word by python-docx, both in the extra `rag`. Knows nothing of documents or spans.
"""

import io
import logging
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from .errors import DocumentError, need

MAX_UNPACKED = 256 * 1024 * 1024
MAX_RATIO = 200  # of the unpacked to the packed size; text packs 3 to 10 times
_SPACE = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


def pdf_text(data: bytes) -> tuple[str, str]:
    """(text, title) of a PDF. Raises DocumentError for a damaged, locked or scanned one."""
    pypdf = need("pypdf", "rag")
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise DocumentError("locked by a password: take it off first")
        pages = [page.extract_text() or "" for page in reader.pages]
        title = str((reader.metadata or {}).get("/Title") or "")
    except DocumentError:
        raise
    except pypdf.errors.DependencyError as error:
        raise DocumentError("an encrypted PDF: pip install cryptography, or take the encryption off") from error
    except Exception as error:  # pypdf raises many kinds on damaged files
        raise DocumentError(f"a damaged PDF ({type(error).__name__})") from error
    text = "\n\n".join(page.strip() for page in pages if page.strip())
    if not text:
        raise DocumentError("a PDF without text (scanned pages?): run OCR on it first")
    return text, title.strip()


def docx_text(data: bytes) -> tuple[str, str]:
    """(text, title) of a Word file: headings as Markdown, lists, table rows, in order; notes and headers left out.

    Macros are never read. Raises DocumentError for another kind of file, a damaged one or one that unpacks to too much.
    """
    if data.startswith(b"\xd0\xcf\x11\xe0"):
        raise DocumentError("an old Word file (.doc), or one locked by a password: save it as .docx without one")
    _check_size(data)
    docx = need("docx", "rag")
    try:
        document = docx.Document(io.BytesIO(data))
        text = "\n\n".join(part for part in _blocks(document) if part.strip())
        title = str(document.core_properties.title or "")
    except ValueError as error:
        macros = "macroEnabled" in str(error)
        raise DocumentError(
            "a Word file with macros (.docm): save it as .docx" if macros else "not a Word document"
        ) from error
    except Exception as error:  # lxml and python-docx raise many kinds on damaged files
        raise DocumentError(f"a damaged Word file ({type(error).__name__})") from error
    if not text:
        raise DocumentError("a Word file without text")
    return text, title.strip()


def _check_size(data: bytes) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            names = packed.namelist()
            unpacked = sum(one.file_size for one in packed.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as error:
        raise DocumentError("a damaged Word file (not a whole zip)") from error
    if "word/document.xml" not in names:
        raise DocumentError("a zip file that is no Word document")
    if unpacked > MAX_UNPACKED or unpacked > MAX_RATIO * len(data):
        raise DocumentError(f"{len(data):,} bytes that unpack to {unpacked:,}: too much for what it is")


def _blocks(document: Any) -> Iterator[str]:
    for block in document.iter_inner_content():
        if not hasattr(block, "rows"):
            yield _paragraph(block)
            continue
        yield "\n".join(
            "| " + " | ".join(" ".join(_text(cell).split()) for cell in dict.fromkeys(row._tr.tc_lst)) + " |"
            for row in block.rows
        )


def _paragraph(paragraph: Any) -> str:
    text = _text(paragraph._p).strip()
    style = paragraph.style.name if paragraph.style is not None else ""
    level = re.fullmatch(r"[Hh]eading ([1-6])", style)
    if level or style == "Title":
        return f"{'#' * int(level[1] if level else 1)} {' '.join(text.split())}" if text else ""
    return f"- {text}" if text and style.startswith("List") else text


def _text(element: Any) -> str:
    """The text under an element as it reads now: inserted text is in, deleted text and fallbacks are not."""
    parts = []
    for node in element.iter():
        tag = node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""
        if tag == "t" and not any(above.tag.endswith("}Fallback") for above in node.iterancestors()):
            parts.append(node.text or "")
        elif tag in _SPACE and not node.getparent().tag.endswith("}tabs"):
            parts.append(_SPACE[tag])
        elif tag == "p" and parts:
            parts.append("\n")
    return "".join(parts)
