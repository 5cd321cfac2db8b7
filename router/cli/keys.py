"""`shoal keys`: who may call the service."""

from typing import Annotated

import typer

from ..settings import load_settings
from .ask import Json
from .output import note, out, print_json

keys = typer.Typer(help="API keys of the service: create, list, revoke.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(keys, name="keys")


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    tenant: Annotated[str, typer.Option(help="Whose requests these are; tenants share nothing.")] = "default",
    admin: Annotated[bool, typer.Option(help="May change the knowledge base and see every tenant's usage.")] = False,
    rpm: Annotated[int, typer.Option(min=0, help="Requests a minute; 0 for no limit of its own.")] = 0,
    concurrent: Annotated[int, typer.Option(min=0, help="Requests at once; 0 for no limit of its own.")] = 0,
    json: Json = False,
) -> None:
    """Make a key. Its secret is shown this once and kept nowhere; only its hash is stored."""
    from ..service.keys import create_key

    secret, key = create_key(
        load_settings().key_path, name=name, tenant=tenant, admin=admin, rpm=rpm, concurrent=concurrent
    )
    if json:
        print_json({**key.public(), "secret": secret})
    else:
        out.print(secret, markup=False, highlight=False)
        note(f"key {key.id} for tenant {key.tenant}; send it as: Authorization: Bearer <key>")


@keys.command("list")
def list_(json: Json = False) -> None:
    """Every key, without its secret."""
    from ..service.keys import list_keys

    rows = [key.public() for key in list_keys(load_settings().key_path)]
    if json:
        print_json(rows)
    for row in [] if json else rows:
        out.print(f"{row['id']}  {row['name']}  tenant {row['tenant']}", markup=False, highlight=False)


@keys.command()
def revoke(key_id: str, json: Json = False) -> None:
    """Take a key's rights away; a running service sees it within seconds."""
    from ..service.keys import revoke_key

    key = revoke_key(load_settings().key_path, key_id)
    if json:
        print_json(key.public())
    else:
        note(f"revoked {key.id} ({key.name})")
