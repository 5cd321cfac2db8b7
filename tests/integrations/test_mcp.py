"""The MCP server, through the SDK's own client: in memory and over stdio."""

import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from shoal import CognitiveRouter
from shoal.router.mcp_server import build_server


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def test_four_tools_with_descriptions(router: CognitiveRouter) -> None:
    async with Client(build_server(router)) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {"ask", "route", "search_knowledge_base", "feedback"}
        assert all(tool.description for tool in tools)


async def test_ask_answers_with_sources(router: CognitiveRouter) -> None:
    async with Client(build_server(router)) as client:
        answer = await call(client, "ask", question="How much does a library card cost?")
        assert answer["text"]
        assert answer["route"] in {"extract", "rag"}
        assert answer["sources"][0]["doc_id"] == "cards.md"
        assert answer["depth"]["total"] == 30


async def test_route_decides_without_answering(router: CognitiveRouter) -> None:
    async with Client(build_server(router)) as client:
        decision = await call(client, "route", question="hello there!")
        assert decision.keys() == {"route", "budget", "bucket", "confidence", "reasons"}


async def test_search(router: CognitiveRouter) -> None:
    async with Client(build_server(router)) as client:
        found = await call(client, "search_knowledge_base", question="借期多长？", k=1)
        assert [p["doc_id"] for p in found["passages"]] == ["zh.md"]


async def test_feedback_takes_an_answer_out_of_the_cache(router: CognitiveRouter) -> None:
    async with Client(build_server(router)) as client:
        ask = {"question": "Write a short rhyme about a harbour."}
        first = await call(client, "ask", **ask)
        assert (await call(client, "ask", **ask))["route"] == "cache"
        assert await call(client, "feedback", answer_id=first["id"], up=False) == {"known": True}
        assert (await call(client, "ask", **ask))["route"] != "cache"
        assert await call(client, "feedback", answer_id="req-unknown", up=True) == {"known": False}


async def test_errors_reach_the_client_in_words(router: CognitiveRouter) -> None:
    async with Client(build_server(router)) as client:
        for arguments, words in (({"question": " "}, "empty"), ({"question": "Hi", "max_depth": 3}, "15 to 30")):
            result = await client.call_tool("ask", arguments)
            assert result.is_error
            assert words in result.content[0].text  # type: ignore[union-attr]
        assert (await client.call_tool("search_knowledge_base", {"question": "x", "k": 0})).is_error


async def test_without_a_knowledge_base_search_says_what_to_do(plain: CognitiveRouter) -> None:
    async with Client(build_server(plain)) as client:
        result = await client.call_tool("search_knowledge_base", {"question": "x"})
        assert result.is_error
        assert "shoal kb add" in result.content[0].text  # type: ignore[union-attr]


SERVER = """
from shoal import CognitiveRouter
from shoal.router.mcp_server import serve
router = CognitiveRouter(router_only=True)
serve(router)
"""


async def test_over_stdio(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    parameters = StdioServerParameters(command=sys.executable, args=[str(script)])
    async with Client(stdio_client(parameters)) as client:
        decision = await call(client, "route", question="What is 17 times 23 plus 9?")
        assert decision["route"] in {"direct", "deep"}
        result = await client.call_tool("ask", {"question": "Write a rhyme."})
        assert result.is_error
        assert "language model" in result.content[0].text  # type: ignore[union-attr]
