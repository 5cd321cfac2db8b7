"""`shoal models`: fetch, convert and list local models."""

from typing import Annotated

import typer

from ..settings import load_settings
from .ask import Json
from .output import note, out, print_json, progress_bar

models = typer.Typer(help="Local models: fetch, convert, list.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(models, name="models")


@models.command()
def pull(
    source: Annotated[str, typer.Argument(help="smollm2-135m, a folder, a GGUF file, or a hub id.")],
    json: Json = False,
) -> None:
    """Fetch a model and convert it once; a second call does nothing."""
    from ...gated_llm.weights import pull as pull_model

    settings = load_settings()
    with progress_bar() as progress:
        path = pull_model(source, home=settings.home, progress=lambda what, share: progress(what, share, 1.0))
    if json:
        print_json({"model": source, "path": str(path)})
    else:
        note(f"{source} is ready in {path}")


@models.command("list")
def list_(json: Json = False) -> None:
    """The models on this machine."""
    from ...gated_llm.weights import list_models

    rows = list_models(load_settings().home)
    if json:
        print_json([{"name": m.name, "path": str(m.path), "source": m.source, "bytes": m.size} for m in rows])
    elif not rows:
        note("no models yet; run: shoal models pull smollm2-135m")
    for model in [] if json else rows:
        out.print(f"{model.name}  {model.size / 1e6:.0f} MB  {model.path}", markup=False, highlight=False)
