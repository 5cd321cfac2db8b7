"""The names people type: they exist, resolve lazily, and say clearly when one does not exist."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import shoal

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", [name for name in shoal.__all__ if not name.startswith("__")])
def test_every_public_name_resolves_to_a_documented_thing(name: str) -> None:
    thing = getattr(shoal, name)
    assert callable(thing)
    assert (thing.__doc__ or "").strip()
    assert thing.__module__.startswith("shoal.")


def test_the_five_names_of_the_contract_are_there() -> None:
    assert {"CognitiveRouter", "DepthCache", "GatedLLM", "KnowledgeBase", "default_embedder"} <= set(shoal.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Oracle'"):
        _ = shoal.Oracle


def test_one_version_everywhere() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert shoal.__version__ == declared == metadata.version("shoal")


def test_changelog_knows_this_version_or_is_unreleased() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    assert "dev" in shoal.__version__ or shoal.__version__ in headings


@pytest.mark.parametrize("room", ["cache", "rag", "gated_llm", "router"])
def test_every_name_a_room_offers_is_there(room: str) -> None:
    """`__all__` is a promise; a lazily imported name that was renamed breaks it only on use."""
    module = getattr(__import__(f"shoal.{room}"), room)
    assert module.__all__
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
