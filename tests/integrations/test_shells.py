"""From the outside: missing extras, `shoal mcp`, `shoal serve --deep`."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from shoal.router.errors import RouterError
from shoal.router.integrations.langchain.remote import connect

SHOAL = str(Path(sys.executable).with_name("shoal"))


@pytest.mark.parametrize(
    ("missing", "module", "extra"),
    [
        ("langchain_core", "shoal.router.integrations.langchain", "langchain"),
        ("llama_index.core", "shoal.router.integrations.llama_index", "llama-index"),
        ("mcp", "shoal.router.mcp_server", "mcp"),
    ],
)
def test_a_missing_extra_is_named(missing: str, module: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f'pip install "shoal[{extra}]"' in done.stderr.splitlines()[-1]


async def test_the_command_serves_mcp_over_stdio(tmp_path: Path) -> None:
    env = {"SHOAL_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    parameters = StdioServerParameters(command=SHOAL, args=["mcp", "--router-only"], env=env)
    async with Client(stdio_client(parameters)) as client:
        result = await client.call_tool("route", {"question": "What is 17 times 23 plus 9?"})
        assert result.structured_content is not None
        assert result.structured_content["route"] in {"direct", "deep"}


def test_a_deep_model_that_cannot_be_set_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RouterError, match="nobody:nothing"):
        connect("nobody:nothing")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert connect("openai:far-1", url="http://127.0.0.1:9/v1").name == "openai:far-1"


async def test_the_command_serves_mcp_over_http(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {"SHOAL_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    server = subprocess.Popen(
        [SHOAL, "mcp", "--http", "--port", str(port), "--router-only"], env=env, stderr=subprocess.DEVNULL
    )
    try:
        while server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            await asyncio.sleep(0.1)
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            result = await client.call_tool("ask", {"question": " "})
            assert result.is_error
            assert "empty" in result.content[0].text  # type: ignore[union-attr]
    finally:
        server.terminate()
        server.wait(30)
