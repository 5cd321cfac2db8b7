"""A disk that fills up while documents come in: a clear error, and what was there before stays readable."""

import subprocess
import sys
from pathlib import Path

from shoal.rag import KnowledgeBase

WRITER = """
import resource, signal, sys
from shoal.rag import KnowledgeBase, RagError
base = KnowledgeBase.open(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))  # what a full disk does to writes
try:
    for number in range(400):
        base.add_text(f"Device {number} weighs {number} kg. 第{number}号设备。" * 20, f"device-{number}")
except RagError as error:
    assert "free space" in str(error), error
    print("refused", flush=True)
"""


def test_ingest_into_a_full_disk(tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path) as base:
        base.add_text("多瑙河发源于黑森林。The Danube rises in the Black Forest.", "danube")
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path)], capture_output=True, text=True, timeout=200, check=False
    )
    assert "refused" in done.stdout, done.stderr[-2000:]
    with KnowledgeBase.open(tmp_path) as base:
        assert base.search("多瑙河发源于哪里？", 1)[0].doc_id == "danube"
        base.add_text("It fits again.", "later")
        assert "later" in base.doc_ids()
