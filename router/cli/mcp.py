"""`shoal mcp`: the same router for MCP clients."""

from typing import Annotated

import typer

from ..settings import load_settings
from .ask import Model, router_for
from .output import note


def register(app: typer.Typer) -> None:
    app.command()(mcp)


def mcp(
    http: Annotated[
        bool, typer.Option("--http", help="Serve streamable HTTP instead of standard input and output.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on, with --http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --http.")] = 8001,
    model: Model = None,
    router_only: Annotated[bool | None, typer.Option("--router-only", help="No language model.")] = None,
) -> None:
    """Offer ask, route, search and feedback as tools to any MCP client."""
    from ..mcp_server import serve

    router = router_for(load_settings(model=model, router_only=router_only))
    if http:
        note(f"MCP at http://{host}:{port}/mcp (Ctrl-C stops)")
    try:
        serve(router, transport="http" if http else "stdio", host=host, port=port)
    finally:
        router.close()
