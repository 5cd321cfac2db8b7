import json
from pathlib import Path

import numpy as np
import pytest

from shoal.rag.embed import default_embedder
from shoal.router.classifier import Classifier
from shoal.router.decision import Route, messages_of
from shoal.router.errors import RouterError
from shoal.router.train.authored import authored
from shoal.router.train.data import NEAR, Embeddings, from_jsonl, tabulate
from shoal.router.train.faq_fit import threshold_of
from shoal.router.train.fit import logistic
from shoal.router.train.report import calibration_error, macro_f1
from shoal.router.train.run import train_from_jsonl
from shoal.router.train.sources import Example, split_of

ROUTES = ("faq", "direct", "deep", "extract", "rag")


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_router_of_ones_own(tmp_path: Path) -> None:
    rows = [{"text": text, "route": route} for text, _, route, _, _ in authored()][::3]
    report = train_from_jsonl(
        write(tmp_path / "own.jsonl", rows),
        default_embedder(),
        tmp_path / "out" / "own.safetensors",
        say=lambda _: None,
    )
    assert report.metrics["all"]["accuracy"] > 0.8
    assert sum(map(sum, report.metrics["all"]["confusion"])) == report.rows["test"]
    json.dumps(report.to_dict())
    classifier = Classifier.load(default_embedder(), report.path)
    assert classifier.predict(messages_of("怎么修改发票"))[1].likely is Route.FAQ
    assert classifier.predict(messages_of("Design a step by step plan to start a bakery."))[1].likely is Route.DEEP


def test_training_is_the_same_every_time(tmp_path: Path) -> None:
    rows = [{"text": text, "route": route} for text, _, route, _, _ in authored()][::9]
    path = write(tmp_path / "own.jsonl", rows)
    for name in ("a", "b"):
        train_from_jsonl(path, default_embedder(), tmp_path / name, seed=3, say=lambda _: None)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "hi"}], "line 1"),
        ([{"text": "hi", "route": "nowhere"}], "line 1"),
        ([{"text": "hi", "route": "cache"}], "line 1"),
        ([{"text": " ", "route": "deep"}], "line 1"),
        ([{"text": "hi", "route": "deep", "depth": 7}], "line 1"),
        ([{"text": "hi", "route": "deep", "split": "dev"}], "split"),
        ([{"text": f"request {i}", "route": "deep"} for i in range(40)], "at least two routes"),
    ],
)
def test_wrong_data_is_refused(tmp_path: Path, rows: list[dict[str, object]], message: str) -> None:
    with pytest.raises(RouterError, match=message):
        train_from_jsonl(write(tmp_path / "own.jsonl", rows), default_embedder(), tmp_path / "out", say=lambda _: None)
    with pytest.raises(RouterError, match="no file"):
        train_from_jsonl(tmp_path / "gone.jsonl", default_embedder(), tmp_path / "out", say=lambda _: None)


def test_near_duplicates_of_held_out_questions_are_not_trained_on(tmp_path: Path) -> None:
    def example(text: str, split: str) -> Example:
        return Example(text=text, language="en", source="s", route="rag", split=split)

    same = (
        "Why do the tides rise and fall twice a day on most of the coasts of the world, while some places see only one?"
    )
    tables = tabulate(
        [
            example(same, "train"),
            example("Who painted this?", "train"),
            example(same + " ", "test"),
            example("How do owls hunt?", "calibration"),
        ],
        Embeddings(default_embedder(), tmp_path / "store.npz"),
    )
    assert [e.text.lower().rstrip("?") for e in tables["train"].examples] == ["who painted this"]
    assert (len(tables["test"]), len(tables["calibration"])) == (1, 1)
    assert NEAR < 1
    assert (tmp_path / "store.npz").exists()


def test_splits_do_not_depend_on_marks_or_case() -> None:
    assert split_of("Who wrote Hamlet?") == split_of("who wrote hamlet")
    shares = [split_of(f"question {i}") for i in range(2000)]
    assert 0.15 < shares.count("test") / 2000 < 0.25


def test_no_template_is_both_trained_and_tested_on() -> None:
    rows = list(authored())
    assert {split for *_, split in rows} == {"train", "calibration", "test"}
    texts = {split: {text for text, *_, s in rows if s == split} for split in ("train", "test")}
    assert not texts["train"] & texts["test"]


def test_own_examples_keep_what_is_known(tmp_path: Path) -> None:
    path = write(
        tmp_path / "own.jsonl", [{"text": "你好", "route": "direct", "depth": 0, "cacheable": True, "split": "test"}]
    )
    (example,) = from_jsonl(path)
    assert (example.language, example.depth, example.cacheable, example.split) == ("zh", 0, True, "test")


def test_measures() -> None:
    truth, guess = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    f1, each = macro_f1(truth, guess)
    assert f1 == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert len(each) == 2
    assert calibration_error(np.array([0.9, 0.9]), np.array([True, True])) == pytest.approx(0.1)
    p, right = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, True, False, True])
    assert threshold_of(p, right, np.ones(4), 0.0) == pytest.approx(0.8)
    assert threshold_of(p, right, np.ones(4), 0.3) == pytest.approx(0.6)
    assert threshold_of(p[2:3], right[2:3], np.ones(1), 0.0) == 1.0


def test_logistic_finds_the_slope() -> None:
    x = np.linspace(-2, 2, 400, dtype=np.float32)[:, None]
    y = (np.random.default_rng(0).random(400) < 1 / (1 + np.exp(-(3 * x[:, 0] - 1)))).astype(float)
    slope, bias = logistic(x, y, np.ones(400), ridge=1e-6)
    assert slope == pytest.approx(3, abs=0.7)
    assert bias == pytest.approx(-1, abs=0.5)
