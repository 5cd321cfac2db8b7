"""`shoal keys`: who may call the service."""

from typing import Annotated, Any

import typer

from ..settings import load_settings
from .ask import Json
from .output import note, out, print_json

keys = typer.Typer(help="API keys of the service: create, list, revoke.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(keys, name="keys")


Rpm = Annotated[int | None, typer.Option(min=0, help="Requests a minute; 0 for no limit of its own.")]
Concurrent = Annotated[int | None, typer.Option(min=0, help="Requests at once; 0 for no limit of its own.")]
MaxTokens = Annotated[int | None, typer.Option(min=0, help="Most max_tokens; 0 for the server's own limit.")]
Quota = Annotated[float | None, typer.Option(min=0, help="Layer-tokens paid for in all; 0 for no such limit.")]


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    tenant: Annotated[str, typer.Option(help="Whose requests these are; tenants share nothing.")] = "default",
    admin: Annotated[bool, typer.Option(help="May change the knowledge base and see every tenant's usage.")] = False,
    rpm: Rpm = None,
    concurrent: Concurrent = None,
    max_tokens: MaxTokens = None,
    quota: Quota = None,
    json: Json = False,
) -> None:
    """Make a key. Its secret is shown this once and kept nowhere; only its hash is stored."""
    from ..service.keys import create_key

    limits = _given(rpm=rpm, concurrent=concurrent, max_tokens=max_tokens, quota=quota)
    secret, key = create_key(load_settings().key_path, name=name, tenant=tenant, admin=admin, **limits)
    _share()
    if json:
        print_json({**key.public(), "secret": secret})
    else:
        out.print(secret, markup=False, highlight=False)
        note(f"key {key.id} for tenant {key.tenant}; send it as: Authorization: Bearer <key>")


@keys.command()
def change(
    key_id: Annotated[str, typer.Argument(help="Id or name.")],
    rpm: Rpm = None,
    concurrent: Concurrent = None,
    max_tokens: MaxTokens = None,
    quota: Quota = None,
    json: Json = False,
) -> None:
    """Set a key's limits, such as a larger quota; a running service sees it at the next request."""
    from ..service.keys import change_key

    limits = _given(rpm=rpm, concurrent=concurrent, max_tokens=max_tokens, quota=quota)
    _share()
    key = change_key(load_settings().key_path, key_id, **limits)
    _share()
    if json:
        print_json(key.public())
    else:
        note(f"changed {key.id} ({key.name})")


@keys.command("list")
def list_(json: Json = False) -> None:
    """Every key, without its secret."""
    from ..service.keys import list_keys

    _share()
    rows = [key.public() for key in list_keys(load_settings().key_path)]
    if json:
        print_json(rows)
    for row in [] if json else rows:
        out.print(f"{row['id']}  {row['name']}  tenant {row['tenant']}", markup=False, highlight=False)


@keys.command()
def revoke(key_id: str, json: Json = False) -> None:
    """Take a key's rights away; a running service sees it within seconds."""
    from ..service.keys import revoke_key

    _share()
    key = revoke_key(load_settings().key_path, key_id)
    _share()
    if json:
        print_json(key.public())
    else:
        note(f"revoked {key.id} ({key.name})")


def _share() -> None:
    """Keys of all machines that use this home's Redis, where there is one."""
    from ..service.keys import share_keys

    settings = load_settings()
    if not share_keys(settings.key_path, settings.redis_url):
        note("Redis does not answer: other machines learn of this once a service of this home reaches it")


def _given(**limits: float | None) -> dict[str, Any]:
    return {name: value for name, value in limits.items() if value is not None}
