"""`shoal serve`: the OpenAI-compatible service."""

from importlib.util import find_spec
from typing import Annotated

import typer

from ..errors import MissingExtra
from ..settings import load_settings
from .ask import Json, Model, router_for
from .output import note, print_json


def register(app: typer.Typer) -> None:
    app.command()(serve)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535)] = None,
    model: Model = None,
    router_only: Annotated[
        bool | None, typer.Option("--router-only", help="Decisions, FAQ, cache and extraction only; needs no torch.")
    ] = None,
    deep: Annotated[
        str | None, typer.Option(help='Chat model for hard requests, "PROVIDER:MODEL" of LangChain.')
    ] = None,
    deep_url: Annotated[str | None, typer.Option(help="Address of that model, for vLLM, Ollama and the like.")] = None,
    open_access: Annotated[bool, typer.Option("--open", help="Allow callers without a key from other hosts.")] = False,
    ray: Annotated[
        bool,
        typer.Option("--ray", help="On Ray Serve: replicas of API and model, sized by the table ray of shoal.toml."),
    ] = False,
    json: Json = False,
) -> None:
    """Serve the router over HTTP; stops cleanly on Ctrl-C or SIGTERM."""
    settings = load_settings(host=host, port=port, model=model, router_only=router_only, deep=deep, deep_url=deep_url)
    if not find_spec("fastapi") or not find_spec("uvicorn"):
        raise MissingExtra("The HTTP service's part (fastapi, uvicorn)", "serve")
    from ..service import serve as run
    from ..service.server import check_free, options_of

    options = options_of(settings)  # what is wrong is told before anything is loaded
    check_free(settings.host, settings.port)
    if ray:
        from ..service.ray_app import options_for
        from ..service.ray_app import run as run_on_ray

        run_on_ray(settings, options_for(settings, {"open": True} if open_access else {}))
        return
    router = router_for(settings)
    url = f"http://{settings.host}:{settings.port}/v1"
    if json:
        print_json({"url": url, "model": router.model_name})
    else:
        note(f"serving {router.model_name} at {url} (Ctrl-C stops)")
    try:
        run(router, settings, options=options, open_access=open_access)
    finally:
        router.close()
