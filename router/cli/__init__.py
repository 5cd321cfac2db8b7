"""The `shoal` command. Each command is a thin shell over the Python face: no logic of its own.

With `--json` a command prints one JSON value on standard output and nothing else; messages go to standard error.
Exit codes: 0 done, 1 failed, 2 wrong use.
"""

import sys

import typer

from . import (
    ask,
    baseline,
    cache,
    depth,
    doctor,
    faq,
    kb,
    kb_audit,
    kb_depth,
    keys,
    layers,
    mcp,
    models,
    read,
    serve,
    trace,
    training,
    usage,
)

app = typer.Typer(
    name="shoal",
    help="Spend only as much thinking on a request as the request needs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for commands in (
    ask,
    read,
    serve,
    mcp,
    models,
    kb,
    kb_audit,
    kb_depth,
    faq,
    cache,
    training,
    layers,
    depth,
    trace,
    baseline,
    usage,
    keys,
    doctor,
):
    commands.register(app)


def main() -> None:
    """Entry point: known errors become one line on standard error and an exit code, never a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if not _known(error):
            raise
        sys.stderr.write(f"shoal: {_said(error)}\n")
        sys.exit(2 if isinstance(error, ValueError) else 1)


def _said(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "a file or standard input is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return (
            f"{where}{error.strerror[:1].lower()}{error.strerror[1:]}; check that it is there and that you may use it"
        )
    return str(error)


def _known(error: Exception) -> bool:
    from ...cache.errors import CacheError
    from ...gated_llm.errors import GatedError
    from ...rag.errors import RagError
    from ..errors import RouterError

    return isinstance(error, RouterError | CacheError | GatedError | RagError | OSError | UnicodeDecodeError)
