"""The unmodified `openai` client of npm against a real server: stream and errors. Needs node and the package."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from shoal.router.service.keys import create_key

SCRIPT = Path(__file__).with_name("openai_client.cjs")
MODULES = Path(os.environ.get("SHOAL_NODE_MODULES", Path(__file__).parents[2] / "build" / "node" / "node_modules"))

pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and (MODULES / "openai").is_dir()),
    reason="needs node and `npm install --prefix build/node openai` (SHOAL_NODE_MODULES names another folder)",
)


def test_the_node_client_streams_and_raises_its_own_errors(serving, router, tmp_path, wait_for):
    secret, _ = create_key(tmp_path / "keys.json", name="node")
    with serving(keys_path=tmp_path / "keys.json") as live:
        run = subprocess.run(
            ["node", str(SCRIPT), str(MODULES / "openai"), live.url, secret], capture_output=True, text=True, timeout=60
        )
        assert run.returncode == 0, run.stderr
        made = router.made
        wait_for(lambda: router.running == 0, 2)
        assert router.made - made < 100  # leaving the loop ended the generation
    found = json.loads(run.stdout)
    assert found["whole"] == {"text": "one two ", "depth": "22/30"}
    stream = found["stream"]
    assert (stream["text"], stream["finish"], stream["roles"]) == ("why is the sky blue ", "stop", 1)
    assert (stream["usage"]["total_tokens"], stream["route"], set(stream["depths"])) == (10, "deep", {21.5})
    assert found["models"] == ["scripted", "shoal", "shoal-embed"]
    assert len(found["embedding"]) == 4
    assert {name: tuple(error.values()) for name, error in found["errors"].items()} == {
        "key": ("AuthenticationError", 401, "invalid_api_key", None),
        "model": ("NotFoundError", 404, "model_not_found", "model"),
        "type": ("BadRequestError", 400, "invalid_type", "temperature"),
        "tools": ("BadRequestError", 400, "unsupported_parameter", "tools"),
        "guard": ("UnprocessableEntityError", 422, "depth_attack", None),
        "crash": ("InternalServerError", 500, "internal_error", None),
        "forbidden": ("PermissionDeniedError", 403, "forbidden", None),
        "broken": ("APIError", None, "internal_error", None),
    }
