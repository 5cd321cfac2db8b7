import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from shoal.rag.embed import default_embedder
from shoal.router.classifier import ASSET, FORMAT, Classifier
from shoal.router.decision import Route, messages_of
from shoal.router.errors import RouterError
from shoal.router.features import CHEAP
from shoal.router.train.authored import authored
from shoal.router.train.data import NEAR, Embeddings, Table, from_jsonl, tabulate
from shoal.router.train.faq_fit import threshold_of
from shoal.router.train.fit import fit, logistic
from shoal.router.train.report import calibration_error, macro_f1
from shoal.router.train.run import train_from_jsonl
from shoal.router.train.sources import Example, split_of

PAIR = (("deep", "Prove theorem"), ("faq", "Where is order"))


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def example_of(text: str, route: str, split: str) -> Example:
    return Example(text=text, language="en", source="s", route=route, split=split)


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
        ([{"text": "hi"}], "line 1: route must"),
        ([{"text": "hi", "route": ["faq"]}], "line 1: route must"),
        ([{"text": 5, "route": "faq"}], "line 1: text must"),
        ([{"text": "hi", "route": "deep", "depth": True}], "line 1: depth must"),
        ([{"text": "hi", "route": "deep", "depth": 1.0}], "line 1: depth must"),
        ([{"text": "hi", "route": "deep", "cacheable": "no"}], "line 1: cacheable must be true or false"),
        ([{"text": "hi", "route": "deep", "cacheable": 5}], "line 1: cacheable must be true or false"),
        ([{"text": "hi", "route": "nowhere"}], "line 1"),
        ([{"text": "hi", "route": "cache"}], "line 1"),
        ([{"text": " ", "route": "deep"}], "line 1"),
        ([{"text": "hi", "route": "deep", "depth": 7}], "line 1"),
        ([{"text": "hi", "route": "deep", "split": "dev"}], "split"),
        ([{"text": f"request {i}", "route": "deep"} for i in range(40)], "every route is deep: .* two routes or more"),
        ([], "no request: give"),
        (
            [{"text": f"{word} {i}?", "route": r, "split": "train"} for r, word in PAIR for i in range(9)],
            "no request is left for the part calibration",
        ),
        (
            [
                {"text": f"{word} {i}?", "route": route, "split": "train" if route == "deep" else "test"}
                for route, word in PAIR
                for i in range(9)
            ],
            r"too few requests to train on: faq \(0\)",
        ),
    ],
)
def test_wrong_data_is_refused(tmp_path: Path, rows: list[dict[str, object]], message: str) -> None:
    with pytest.raises(RouterError, match=message):
        train_from_jsonl(write(tmp_path / "own.jsonl", rows), default_embedder(), tmp_path / "out", say=lambda _: None)
    assert not (tmp_path / "out").exists()
    with pytest.raises(RouterError, match="no file"):
        train_from_jsonl(tmp_path / "gone.jsonl", default_embedder(), tmp_path / "out", say=lambda _: None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "\\ud800", "route": "faq"}', "line 1: text must be .* half characters"),
        (b"[" * 100_000, "line 1: expected"),
        (b"[1]", "line 1: expected"),
        (b"\xff\xfe", "own.jsonl: this is not UTF-8"),
    ],
)
def test_files_that_hold_no_requests_are_named(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "own.jsonl").write_bytes(line + b"\n")
    with pytest.raises(RouterError, match=message):
        from_jsonl(tmp_path / "own.jsonl")


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"text": "one\u2028two\x85", "route": "faq"}\r\n\n', "utf-8")
    assert [example.text for example in from_jsonl(tmp_path / "own.jsonl")] == ["one\u2028two"]


def test_what_cannot_be_done_is_said_before_training(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", [])
    with pytest.raises(RouterError, match="seed must be 0 or more"):
        train_from_jsonl(path, default_embedder(), tmp_path / "out", seed=-1)
    pytest.importorskip("matplotlib")
    with pytest.raises(RouterError, match=r"p\.xyz: pictures are drawn as \.png"):
        train_from_jsonl(path, default_embedder(), tmp_path / "out", picture=tmp_path / "p.xyz")


def test_contradictions_are_said_and_what_is_not_labelled_is_as_shipped(
    tmp_path: Path,
) -> None:
    rows = [{"text": text, "route": route} for text, _, route, _, _ in authored()][::9]
    torn = [{**rows[i], "text": str(rows[i]["text"]).upper(), "route": "extract"} for i in (0, 1)]
    said: list[str] = []
    report = train_from_jsonl(
        write(tmp_path / "own.jsonl", rows + torn), default_embedder(), tmp_path / "own", say=said.append
    )
    assert said[0].startswith("2 of ")
    assert f"have several routes, {str(rows[0]['text']).lower()[:60]!r} first" in said[0]
    own, shipped = (Classifier.load(default_embedder(), path) for path in (report.path, ASSET))
    for text, *_ in list(authored())[4::19]:
        mine, theirs = (one.predict(messages_of(text))[1] for one in (own, shipped))
        assert (*mine.depth, mine.cacheable, mine.weak_ok) == pytest.approx(
            (*theirs.depth, theirs.cacheable, theirs.weak_ok), abs=1e-5
        )


def test_depth_that_every_line_tells_is_learned(tmp_path: Path) -> None:
    rows = [{"text": text, "route": route, "depth": 2} for text, _, route, _, _ in authored()][::9]
    report = train_from_jsonl(
        write(tmp_path / "own.jsonl", rows), default_embedder(), tmp_path / "own", say=lambda _: None
    )
    assert Classifier.load(default_embedder(), report.path).predict(messages_of("hello"))[1].depth[2] > 0.8


Shell = Callable[..., tuple[int, str, str]]


def reason(shoal: Shell) -> str:
    return str(json.loads(shoal("route", "Where is the theorem hall?", "--json")[1])["reasons"][0])


def test_the_command_trains_what_the_settings_then_use(shoal: Shell, tmp_path: Path) -> None:
    rows = [{"text": f"{word} number {i}?", "route": route} for route, word in PAIR for i in range(40)]
    write(tmp_path / "mine.jsonl", rows)
    code, _, err = shoal("router", "train", "--data", "mine.jsonl", "--out", "mine.safetensors")
    assert code == 0
    assert "set classifier (SHOAL_CLASSIFIER) to mine.safetensors" in err.splitlines()[-1]
    shipped = reason(shoal)
    (tmp_path / "shoal.toml").write_text('classifier = "mine.safetensors"\n', "utf-8")
    assert reason(shoal) != shipped
    assert reason(shoal).split()[2] in dict(PAIR)


def test_a_classifier_that_cannot_be_used_is_said(
    shoal: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = {"format": FORMAT, "cheap": list(CHEAP), "embedder": "other"}
    save_file(load_file(ASSET), tmp_path / "other.safetensors", metadata={"shoal": json.dumps(meta)})
    for name, message in (
        ("gone.safetensors", "no readable classifier"),
        ("other.safetensors", "on the embedder other"),
    ):
        monkeypatch.setenv("SHOAL_CLASSIFIER", name)
        for words in (("route", "hello"), ("ask", "hello", "--router-only")):
            code, _, err = shoal(*words)
            assert (code, message in err, name in err, len(err.splitlines()) < 4) == (1, True, True, True)


def test_the_command_says_at_once_where_it_cannot_write(shoal: Shell, tmp_path: Path) -> None:
    write(tmp_path / "mine.jsonl", [])
    for out, *more in (["gone/x"], ["x", "--picture", "gone/x.png"]):
        code, _, err = shoal("router", "train", "--data", "mine.jsonl", "--out", out, *more)
        assert (code, "there is no folder gone: make it" in err) == (1, True)
    assert not (tmp_path / "gone").exists()


def test_a_head_without_labels_says_nothing() -> None:
    def table(split: str) -> Table:
        rows = [example_of(f"{word} {i} {split}", route, split) for route, word in PAIR for i in range(8)]
        return tabulate(rows, default_embedder())[split]

    fitted = fit(table("train"), table("calibration"), epochs=2)
    assert np.ptp(fitted.logits(table("train").x)["depth"]) == 0


def test_near_duplicates_of_held_out_questions_are_not_trained_on(tmp_path: Path) -> None:
    same = (
        "Why do the tides rise and fall twice a day on most of the coasts of the world, while some places see only one?"
    )
    tables = tabulate(
        [
            example_of(same, "rag", "train"),
            example_of("Who painted this?", "rag", "train"),
            example_of(same + " ", "rag", "test"),
            example_of("How do owls hunt?", "rag", "calibration"),
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
