"""MkDocs hook: the page `reference/commands.md` ends with the help of every `shoal` command, as the program prints it.

Knows nothing of the other pages. Imports the command line, which imports no heavy library.
"""

from typing import Any

import typer
from typer.cli import get_docs_for_click

from shoal.router.cli import app


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page as it is, with the commands below it where it is theirs."""
    if page.file.src_uri != "reference/commands.md":
        return markdown
    command = typer.main.get_command(app)
    commands = get_docs_for_click(obj=command, ctx=typer.Context(command), name="shoal", indent=1)
    return f"{markdown}\n{commands.replace('{text}', 'TEXT')}"
