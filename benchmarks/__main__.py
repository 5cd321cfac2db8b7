"""`make bench`: runs every benchmark whose data are there, then rewrites docs/benchmarks.md and the pictures of
measurements in docs/pictures/ from benchmarks/results/.

`python -m benchmarks [NAME ...]` runs the named ones, `--render` none. A benchmark is a module of this folder with a
`main` guard: it prints its table and writes JSON to benchmarks/out/. What is worth keeping is copied to
benchmarks/results/NAME.json by whoever reviewed it; docs/benchmarks.md shows those, so it never holds a number that no
script printed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SHOAL_DATA", HERE.parents[1] / "shared" / "data"))
PAGE = HERE.parent / "docs" / "benchmarks.md"
ORIGIN = ("command", "machine", "threads", "seed", "date", "commit", "versions", "data")
HIDDEN = {*ORIGIN, "title", "note", "name", "drawn"}  # `drawn` is for pictures
INTRO = """# Benchmarks

What the scripts in `benchmarks/` printed. `make bench` runs them again; `python -m benchmarks --render` rewrites this
page from `benchmarks/results/*.json`. Times depend on the machine named under each heading; compare ratios.
"""


def run(names: Sequence[str]) -> int:
    """How many benchmarks failed; each runs in a process of its own and prints as it goes."""
    chosen = names or sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    if not DATA.is_dir():
        print(f"No data in {DATA}: set SHOAL_DATA (docs/data.md says where each set comes from).", file=sys.stderr)
        return len(chosen)
    failed = 0
    for name in chosen:
        print(f"\n== {name}", flush=True)
        failed += (
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=HERE.parent, check=False).returncode != 0
        )
    return failed


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page, from result name to result."""
    return "\n".join([INTRO, *(line for name in sorted(results) for line in _section(name, results[name]))])


def _section(name: str, result: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {result.get('title', name.replace('_', ' '))}\n"
    if "note" in result:
        yield f"{result['note']}\n"
    yield from _tables({key: value for key, value in result.items() if key not in HIDDEN})
    origin = [f"{key}: {_cell(result[key])}" for key in ORIGIN if result.get(key) not in (None, "")]
    if origin:
        yield f"*{'; '.join(origin)}*\n"


def _tables(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Rows become tables, plain values one table of two columns, whatever is nested is walked."""
    plain = {key: value for key, value in values.items() if not _nested(value)}
    if plain:
        yield from _table([{path or "figure": key, "value": value} for key, value in plain.items()])
    for key, value in values.items():
        title = f"{path} / {key}" if path else key
        if _rows(value):
            yield f"**{title}**\n"
            yield from _table(value)
        elif isinstance(value, Mapping) and value and all(_flat(row) for row in value.values()):
            yield f"**{title}**\n"
            yield from _table([{"": label, **row} for label, row in value.items()])
        elif isinstance(value, Mapping):
            yield from _tables(value, title)


def _rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _flat(value: object) -> bool:
    return isinstance(value, Mapping) and not any(_nested(cell) for cell in value.values())


def _nested(value: object) -> bool:
    return isinstance(value, Mapping) or _rows(value)


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    yield from (f"| {' | '.join(_cell(row.get(column, '')) for column in columns)} |" for row in rows)
    yield ""


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value).replace("|", "\\|").replace("\n", " ")


def main(arguments: Sequence[str]) -> int:
    failed = 0 if "--render" in arguments else run(arguments)
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (HERE / "results").glob("*.json")}
    PAGE.write_text(render(results), encoding="utf-8")
    from benchmarks._pictures import draw

    pictures = draw(results)
    print(f"pictures: {', '.join(pictures) or 'none, they need the extra plots'}")
    print(f"\n{PAGE.relative_to(HERE.parent)}: {len(results)} results; benchmarks that failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
