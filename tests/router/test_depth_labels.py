import json
from dataclasses import asdict
from pathlib import Path

import pytest

from shoal.router.train.answered import choices_of
from shoal.router.train.depth_labels import Judged, key_of, needed, read_labels

DEPTHS = (15, 20, 25, 30)


@pytest.mark.parametrize(
    ("lost", "depth"),
    [
        ((0.0, 0.0, 0.0, 0.0), 15),
        ((2.0, 1.0, 0.04, 0.0), 25),
        ((2.0, 1.0, 0.06, 0.0), 30),
        ((0.0, 1.0, 0.0, 0.0), 25),  # lucky at 15, but a deeper budget must not hurt
        ((-1.0, -0.5, 0.05, 0.0), 15),
    ],
)
def test_needed_depth(lost: tuple[float, ...], depth: int) -> None:
    assert needed(DEPTHS, lost) == depth


def test_labels_are_read_back(tmp_path: Path) -> None:
    label = Judged(
        id=key_of("Why?"), source="s", language="en", split="test", graded=2, tokens=3, full=1.5, depths=DEPTHS,
        lost=(1.0, 0.2, 0.01, 0.0),
    )  # fmt: skip
    path = tmp_path / "labels.jsonl"
    assert read_labels(path) == {}
    path.write_text(json.dumps(asdict(label)) + "\n", "utf-8")
    assert read_labels(path) == {label.id: label}
    assert label.needed == 25


def test_options_of_a_multiple_choice_question() -> None:
    row = {
        "instruction": "Please choose the correct answer to the question: What shines?\n\n"
        "Answer1: the sun Answer2: a stone\n\nAnswer format: answer1/answer2",
        "answer": "answer1",
    }
    assert choices_of(row) == ("What shines?", ["the sun", "a stone"], 0)
