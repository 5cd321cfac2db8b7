"""`shoal doctor` finds what is there and says what to do about what is not."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.router.cli import app, doctor
from shoal.router.settings import Settings

ROOT = Path(__file__).parents[2]


def test_every_library_it_asks_for_is_in_the_extra_that_it_names() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for library, extra in doctor._EXTRAS.items():
        assert any(one.startswith(library) for one in extras[extra]), (library, extra)


def test_an_empty_home_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1  # no model: `shoal ask` would have to fetch it
    for said in (
        "run: shoal models pull smollm2-135m",
        "install g++",
        "GiB free",
        "the one that ships",
        "shoal kb add",
    ):
        assert said in done.stdout, said


def test_what_is_out_of_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MEMORY_GIB", 1e9)
    with pytest.raises(LookupError, match="GiB free; the default model wants"):
        doctor._memory(Settings(home=tmp_path))
    with pytest.raises(LookupError, match=r"500 on .* cores: set SHOAL_THREADS"):
        doctor._threads(Settings(home=tmp_path, threads=500))
    with pytest.raises(LookupError, match="shoal gates calibrate --model other"):
        doctor._plan(Settings(home=tmp_path, model="other"))
