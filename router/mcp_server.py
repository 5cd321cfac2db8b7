"""Shoal as an MCP server, so that any MCP client can ask, route, search and give feedback (I3).

Built on the official SDK; speaks stdio or streamable HTTP. One server serves one tenant: what a client sends never
chooses whose answers it sees.
"""

import asyncio
from typing import Annotated, Any, Literal

from pydantic import Field

from .errors import MissingExtra, RouterError
from .pipeline import CognitiveRouter

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError as error:
    raise MissingExtra("mcp", "mcp") from error

_ABOUT = (
    "Shoal answers questions with as little thinking as they need: from an FAQ, a cache, a knowledge base with "
    "citations, or a local language model with a budget of layers. Use `ask` for answers, `search_knowledge_base` for "
    "passages."
)
Depth = Annotated[
    int | str | None, Field(description='Most layers a token may run: a number, a share such as "60%", or "auto".')
]


def build_server(router: CognitiveRouter, *, tenant: str = "default") -> MCPServer[Any]:
    """The server with its four tools. Errors of the router reach the client as tool errors with their message."""
    from .. import __version__

    server: MCPServer[Any] = MCPServer("shoal", instructions=_ABOUT, version=__version__, log_level="WARNING")

    @server.tool()
    async def ask(question: str, max_depth: Depth = None, profile: str = "balanced") -> dict[str, Any]:
        """Answer a question. Returns the text, the route it took, its depth, and an `id` to give feedback on."""
        try:
            answer = await router.aask(question, max_depth=max_depth, profile=profile, tenant=tenant)
        except (RouterError, ValueError) as error:
            raise ToolError(str(error)) from error
        told = answer.to_dict()
        sources = [{k: p[k] for k in ("doc_id", "span", "text")} for p in told["trace"]["passages"]["kept"]]
        return {"id": answer.trace.id, **{k: v for k, v in told.items() if k != "trace"}, "sources": sources}

    @server.tool()
    async def route(question: str, max_depth: Depth = None, profile: str = "balanced") -> dict[str, Any]:
        """Tell where a question would go and how deep, and why, without answering it."""
        try:
            fields = {"max_depth": max_depth, "profile": profile, "tenant": tenant}
            decision = await asyncio.to_thread(router.decide, question, **fields)
        except (RouterError, ValueError) as error:
            raise ToolError(str(error)) from error
        return decision.to_dict()

    @server.tool()
    async def search_knowledge_base(question: str, k: Annotated[int, Field(ge=1, le=50)] = 5) -> dict[str, Any]:
        """Find the passages that best match a question, best first, with document, character span and score."""
        if router.kb is None:
            raise ToolError("this server has no knowledge base; start it with one: shoal kb add DIR, then shoal mcp")
        hits = await asyncio.to_thread(router.kb.search, question, k)
        names = ("text", "doc_id", "score", "depth_score")
        return {"passages": [{**{n: getattr(hit, n) for n in names}, "span": list(hit.span)} for hit in hits]}

    @server.tool()
    async def feedback(answer_id: str, up: bool) -> dict[str, Any]:
        """Say whether an answer was good. A thumbs-down takes it out of the cache. `known` is false for unknown ids."""
        return {"known": await asyncio.to_thread(router.feedback, answer_id, up=up, tenant=tenant)}

    return server


def serve(
    router: CognitiveRouter,
    *,
    transport: Literal["stdio", "http"] = "stdio",
    host: str = "127.0.0.1",
    port: int = 8001,
    tenant: str = "default",
) -> None:
    """Run until the client leaves (stdio) or the process is stopped (HTTP, at `http://host:port/mcp`)."""
    server = build_server(router, tenant=tenant)
    if transport == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host=host, port=port)
