"""Every fault of ingest, in turn: what the caller sees, what is in the index after, how to go on (A1).

    python -m benchmarks.ingest_faults [--kills N]

Each fault stands in a folder beside three good documents, which must all be in and be found afterwards. Disk full is a
tmpfs of 1 MB where that may be mounted, else a limit on file size. kill -9 comes at N random points of an ingest.
"""

import argparse
import io
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from shoal import KnowledgeBase

OUT = Path(__file__).parent / "out"
GOOD = {
    "hours.md": "# Opening hours\n\nThe shop opens at 9 am on weekdays.",
    "pump.txt": "离心泵的额定功率为15千瓦。",
    "whale.html": "<h1>Whales</h1><p>The blue whale eats krill.</p>",
}
ASKED = {
    "When does the shop open?": "hours.md",
    "离心泵的功率是多少？": "pump.txt",
    "What do whales eat?": "whale.html",
}
CHINESE = "公司成立于1998年，总部设在上海。公司现有员工三千二百人。"
Case = Callable[[Path], object]


def write(name: str, data: bytes | str) -> Case:
    return lambda folder: (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)


def pdf(folder: Path) -> None:
    from pypdf import PdfWriter

    writer = PdfWriter()
    writer.add_blank_page(200, 200)
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(folder / "locked.pdf")


def word(folder: Path, *, macros: bool) -> None:
    import docx

    document, out = docx.Document(), io.BytesIO()
    document.add_paragraph("Fine.")
    document.save(out)
    if not macros:
        with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("word/media/bomb.bin", b"\0" * 300_000_000)
        (folder / "bomb.docx").write_bytes(out.getvalue())
        return
    plain = zipfile.ZipFile(out)
    with zipfile.ZipFile(folder / "macros.docm", "w") as packed:
        for name in plain.namelist():
            kind = b"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
            with_macros = b"application/vnd.ms-word.document.macroEnabled.main+xml"
            packed.writestr(name, plain.read(name).replace(kind, with_macros))
        packed.writestr("word/vbaProject.bin", b"\xd0\xcf\x11\xe0")


def same_names(folder: Path) -> None:
    rows = [{"id": 1, "text": "First."}, {"id": 1, "text": "Last of that id."}]
    (folder / "same.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")


def loop(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "self.txt").symlink_to(folder / "self.txt")


def shut(folder: Path) -> None:
    (folder / "shut.txt").write_text("secret", "utf-8")
    (folder / "shut.txt").chmod(0)


def large_rows(folder: Path) -> None:
    """52 MB of rows: a few that say something, and what is not text."""
    with (folder / "large.jsonl").open("w", encoding="utf-8") as file:
        for i in range(50):
            file.write(json.dumps({"id": i, "text": f"Device {i} weighs {i} kg.", "blob": [0] * 350_000}) + "\n")


CASES: dict[str, tuple[Case, str]] = {
    "corrupt PDF": (write("a.pdf", b"%PDF-1.4 broken"), "mend it, add again"),
    "encrypted PDF": (pdf, "take the password off, add again"),
    "binary file as text": (write("a.txt", b"\x7fELF\0\1\2" * 99), "nothing to do"),
    "binary file as PDF": (write("b.pdf", bytes(range(256)) * 9), "nothing to do"),
    "empty file": (write("a.md", b""), "nothing to do"),
    "50 MB text": (write("a.txt", "word " * 10_400_000), "split it"),
    "52 MB of rows": (large_rows, "nothing: it is in"),
    "GBK": (write("gbk.txt", CHINESE.encode("gbk")), "nothing: it is in"),
    "UTF-16 with mark": (write("utf16.txt", CHINESE.encode("utf-16")), "nothing: it is in"),
    "UTF-16 without mark": (write("utf16le.txt", "plain words".encode("utf-16-le")), "save it as UTF-8"),
    "latin-1": (write("latin.txt", "naïve café, 5 über".encode("latin-1")), "nothing: it is in"),
    "half of a UTF-8 letter": (write("half.txt", CHINESE.encode()[:-1]), "save it as UTF-8"),
    "same id twice in a file": (same_names, "the last one counts; give ids of their own"),
    "links in a circle": (loop, "nothing to do"),
    "no permission": (shut, "chmod, add again"),
    "Word file with macros": (lambda folder: word(folder, macros=True), "save it as .docx"),
    "Word file, zip bomb": (lambda folder: word(folder, macros=False), "nothing to do"),
    "old Word file": (write("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1" + b"\0" * 99), "save it as .docx"),
    "lone surrogates": (write("s.jsonl", '{"text": "half \\ud800 a pair"}'), "nothing: U+FFFD in their place"),
    "CSV, quote gone wrong": (write("q.csv", 'a,b\n1,"x" y\n2,"open\n3,fine\n'), "mend lines 2 and 3, add again"),
    "JSONL, one bad line": (
        write("r.jsonl", '{"text": "A."}\n{"text: "B."}\n{"text": "C."}'),
        "mend line 2, add again",
    ),
    "a pipe": (lambda folder: os.mkfifo(folder / "pipe"), "nothing to do"),
}


def found_again(kb: Path) -> tuple[int, int]:
    """(good documents that are found by their questions, documents in the index)."""
    with KnowledgeBase.open(kb) as base:
        found = sum(base.search(question, 1)[0].doc_id.endswith(name) for question, name in ASKED.items())
        assert base._store._read("PRAGMA integrity_check") == [("ok",)]
        return found, len(base.doc_ids())


def good(folder: Path) -> None:
    for name, text in GOOD.items():
        (folder / name).write_text(text, "utf-8")


NOBODY = """
import json, os, sys
import encodings.utf_8_sig, encodings.gb18030, encodings.cp1252  # nobody may not read the library
from dataclasses import asdict
from shoal import KnowledgeBase
with KnowledgeBase.open(sys.argv[2]) as base:
    base.add_text("warm up", "warm")
    base.delete("warm")
    for folder, _, files in os.walk(sys.argv[2]):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            os.chown(path, 65534, 65534)
    os.chmod(os.path.dirname(sys.argv[2]), 0o755)
    os.seteuid(65534)
    print(json.dumps(asdict(base.add(sys.argv[1]))))
"""


def in_a_folder(make: Case, home: Path) -> dict[str, Any]:
    """`shoal kb add` on a folder with the fault and the three good documents; root becomes nobody."""
    docs, kb = home / "docs", home / "kb"
    docs.mkdir()
    kb.mkdir()
    good(docs)
    make(docs)
    paths = [str(docs), *map(str, docs.glob("pipe"))]
    command = [str(Path(sys.executable).with_name("shoal")), "kb", "add", *paths, "--kb", str(kb), "--json"]
    if os.geteuid() == 0 and make is shut:
        command = [sys.executable, "-c", NOBODY, str(docs), str(kb)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if ran.returncode:
        return {"caller sees": ran.stderr.strip()[-200:], "exit": ran.returncode}
    report = json.loads(ran.stdout)
    said = "; ".join(dict.fromkeys(f"{Path(one['path']).name}: {one['reason']}" for one in report["skipped"]))
    found, documents = found_again(kb)
    return {
        "caller sees": said or "no message", "exit": 0, "good found": f"{found} of 3",
        "documents": documents,
    }  # fmt: skip


WRITER = """
import sys
from shoal import KnowledgeBase
base = KnowledgeBase.open(sys.argv[1])
print("ready", flush=True)
for i in range(100_000):
    base.add_text(f"Device {i} weighs {i} kg. 第{i}号设备。" * int(sys.argv[2]), f"device-{i}")
    print(i, flush=True)
    if i % 5 == 0:
        base._save()
"""


def writer(kb: Path, size: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(kb), str(size)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def filled(home: Path) -> Path:
    docs = home / "docs"
    docs.mkdir()
    good(docs)
    with KnowledgeBase.open(home / "kb") as base:
        base.add(docs)
    return home / "kb"


def killed(home: Path, kills: int) -> dict[str, Any]:
    """kill -9 at random points; what was reported as in must be in, and everything must be found."""
    kb, draw, whole, lost = filled(home), random.Random(0), 0, 0
    for _ in range(kills):
        process = writer(kb, 3)
        time.sleep(draw.uniform(0, 1.0))
        process.send_signal(signal.SIGKILL)
        said = [int(line) for line in (process.communicate()[0] or "").split()]
        found, _ = found_again(kb)
        with KnowledgeBase.open(kb) as base:
            lost += sum(base.document(f"device-{i}") is None for i in said)
        whole += found == 3
    return {
        "caller sees": "the process is gone", "exit": -9, "good found": f"3 of 3 after {whole} of {kills} kills",
        "documents": f"{lost} reported ones lost",
    }  # fmt: skip


def full(home: Path) -> dict[str, Any]:
    mounted = home / "small"
    mounted.mkdir()
    small = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(mounted)], capture_output=True)
    try:
        kb = filled(mounted if small.returncode == 0 else home)
        process = writer(kb, 60)
        if small.returncode:
            import resource

            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (400_000, 400_000))
        out, err = process.communicate(timeout=300)
        found, documents = found_again(kb)
        kept = len(out.split())
        return {
            "caller sees": err.strip().splitlines()[-1].partition("kb.sqlite: ")[2], "exit": process.returncode,
            "good found": f"{found} of 3", "documents": f"{documents}: 3 and the {kept} reported as in",
        }  # fmt: skip
    finally:
        with suppress(OSError):
            subprocess.run(["umount", str(mounted)], capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    kills = parser.parse_args().kills
    rows = []

    def tell(fault: str, row: dict[str, Any], then: str) -> None:
        rows.append({"fault": fault, **row, "to go on": then})
        print("  ".join(f"{key}: {value}" for key, value in rows[-1].items()), flush=True)

    for fault, (make, then) in CASES.items():
        with tempfile.TemporaryDirectory() as home:
            tell(fault, in_a_folder(make, Path(home)), then)
    with tempfile.TemporaryDirectory() as home:
        tell("disk full", full(Path(home)), "make room, add again")
    with tempfile.TemporaryDirectory() as home:
        tell("kill -9", killed(Path(home), kills), "add again; what is in costs nothing")
    OUT.mkdir(exist_ok=True)
    head = {
        "title": "Faults of ingest", "command": "python -m benchmarks.ingest_faults",
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores", "seed": 0,
        "date": date.today().isoformat(),
    }  # fmt: skip
    (OUT / "ingest_faults.json").write_text(json.dumps({**head, "rows": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
