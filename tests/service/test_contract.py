"""What the OpenAPI document says is what the live service does: schemathesis asks for everything, right and wrong.

`SHOAL_FUZZ` sets how many examples each operation gets; a few in every run, thousands by hand.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import KnowledgeBase
from shoal.router.service.keys import create_key
from shoal.router.traces import Recorder, TraceStore

EXAMPLES = int(os.environ.get("SHOAL_FUZZ", "2"))
# left out: positive_data_acceptance, since fields of OpenAI's that Shoal does not do are valid and refused
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,ignored_auth"
)
SCHEMATHESIS = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or ""


@pytest.mark.skipif(not SCHEMATHESIS, reason="schemathesis is not installed")
def test_no_500_and_no_undocumented_response(serving, router, tmp_path, monkeypatch):
    secret, _ = create_key(tmp_path / "keys.json", name="fuzz", admin=True, quota=1e12)
    monkeypatch.setattr(router, "kb", KnowledgeBase.open(tmp_path / "kb"))
    monkeypatch.setattr(router, "recorder", Recorder(TraceStore(tmp_path / "traces.sqlite")), raising=False)
    command = [
        SCHEMATHESIS, "run", "--checks", CHECKS, "--max-examples", str(EXAMPLES), "--phases", "coverage,fuzzing",
        "--workers", "1", "--generation-database", "none", "--seed", "1", "--no-color",
        "--header", f"Authorization: Bearer {secret}",
    ]  # fmt: skip
    with serving(keys_path=tmp_path / "keys.json", ledger_path=tmp_path / "ledger.sqlite") as live:
        found = subprocess.run([*command, f"{live.url}/openapi.json"], cwd=tmp_path, capture_output=True, text=True)
        router.kb.close()
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
