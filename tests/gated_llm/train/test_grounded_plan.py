"""A depth plan for an adapter: its own fingerprint, the search's order, losses on answers held out."""

import json
import random
from pathlib import Path

import pytest

from shoal.gated_llm import GatedError, PlanError
from shoal.gated_llm.lora import Adapter
from shoal.gated_llm.policy import Plan
from shoal.gated_llm.train.adapter import train_adapter
from shoal.gated_llm.train.grounded_plan import plan_for
from shoal.gated_llm.train.recipe import Recipe, Source


def squad(path: Path, title: str) -> None:
    draw = random.Random(title)
    paragraphs = [
        {"context": f"Box {n} is {colour}.", "qas": [{"question": f"Box {n}?", "answers": [{"text": colour}]}]}
        for n in range(6)
        for colour in [draw.choice(["red", "blue"])]
    ]
    path.write_text(json.dumps({"data": [{"title": title, "paragraphs": paragraphs}]}), "utf-8")


def test_a_plan_of_the_adapter_itself(make_model, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = make_model(max_position_embeddings=1024)
    squad(tmp_path / "one.json", "one")
    squad(tmp_path / "two.json", "two")
    recipe = Recipe(
        sources=(
            Source(kind="squad", path="one.json"),
            Source(kind="squad", path="two.json", validation=True),
        ),
        model=str(folder), rank=2, steps=2, tokens=400, sizes=(400,), longest=400, full=1, min_share=0.5,
        compiled=False, half=False,
    )  # fmt: skip
    path = train_adapter(recipe, tmp_path, tmp_path / "run", say=lambda line: None).adapter
    assert path is not None
    plan = plan_for(path, recipe, tmp_path, min_depth=4.0, search=6, held_out=6, say=lambda line: None)
    adapter = Adapter.read(path)
    assert plan.min_depth <= 4.0
    assert plan.about is not None
    assert plan.about["answers"] == {"search": 6, "held_out": 6}
    plan.write(tmp_path / "own.plan.json")
    assert Plan.read(tmp_path / "own.plan.json", model_fingerprint=adapter.merged_fingerprint).points
    with pytest.raises(PlanError, match="was made for model"):
        Plan.read(tmp_path / "own.plan.json", model_fingerprint=adapter.model_fingerprint)
    with pytest.raises(GatedError, match="no short answers"):
        plan_for(path, recipe, tmp_path, search=0, say=lambda line: None)
