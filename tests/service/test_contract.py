"""What the OpenAPI document says is what the live service does: schemathesis asks for everything, right and wrong.

`SHOAL_FUZZ` sets how many examples each operation gets; a few in every run, thousands by hand.
"""

import os

from shoal import KnowledgeBase
from shoal.router.service.keys import create_key
from shoal.router.traces import Recorder, TraceStore

EXAMPLES = int(os.environ.get("SHOAL_FUZZ", "2"))


def test_no_500_and_no_undocumented_response(serving, router, schemathesis, tmp_path, monkeypatch):
    secret, _ = create_key(tmp_path / "keys.json", name="fuzz", admin=True, quota=1e12)
    monkeypatch.setattr(router, "kb", KnowledgeBase.open(tmp_path / "kb"))
    monkeypatch.setattr(router, "recorder", Recorder(TraceStore(tmp_path / "traces.sqlite")), raising=False)
    with serving(keys_path=tmp_path / "keys.json", ledger_path=tmp_path / "ledger.sqlite") as live:
        try:
            schemathesis(live.url, secret, tmp_path, EXAMPLES)
        finally:
            router.kb.close()
