import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from shoal.rag.embed import default_embedder
from shoal.router.classifier import ASSET, Classifier
from shoal.router.decision import Route, messages_of
from shoal.router.errors import RouterError


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier.load(default_embedder())


@pytest.mark.parametrize(
    ("text", "likely"),
    [
        ("Hi there", Route.DIRECT),
        ("你好啊", Route.DIRECT),
        ("How do I reset my password?", Route.FAQ),
        ("忘记密码了怎么找回", Route.FAQ),
        ("Who wrote Hamlet?", Route.EXTRACT),
        ("长江有多长", Route.EXTRACT),
        ("Why is the sky blue?", Route.RAG),
        ("为什么天空是蓝色的", Route.RAG),
        ("Write a Python function that sorts a list and explain its complexity step by step.", Route.DEEP),
        ("小明有15个苹果，给了小红3个，又买了8个，现在一共有多少个？", Route.DEEP),
    ],
)
def test_plain_cases(classifier: Classifier, text: str, likely: Route) -> None:
    features, prediction = classifier.predict(messages_of(text))
    assert prediction.likely is likely
    assert sum(prediction.routes.values()) == pytest.approx(1, abs=1e-4)
    assert sum(prediction.depth) == pytest.approx(1, abs=1e-4)
    assert 0 < prediction.confidence <= 1 + 1e-6
    assert features.text == text


def test_abstention_goes_to_the_route_that_does_more_work(classifier: Classifier) -> None:
    order = [Route.DIRECT, Route.FAQ, Route.EXTRACT, Route.RAG, Route.DEEP]
    for text in ("compare", "Is it?", "What are the opening hours?", "苹果", "Prove that sqrt 2 is irrational", "hm"):
        _, prediction = classifier.predict(messages_of(text))
        if prediction.abstained:
            assert order.index(prediction.route) >= order.index(prediction.likely)
        else:
            assert prediction.route is prediction.likely
        assert prediction.to_dict()["route"] == prediction.route.value


def test_it_is_small() -> None:
    assert ASSET.stat().st_size < 4_000_000
    assert Classifier.load(default_embedder()).parameters < 10_000_000


def test_decisions_are_remembered_and_the_memory_is_bounded() -> None:
    calls = []
    inner = default_embedder()

    class Counting:
        fingerprint = inner.fingerprint

        def __call__(self, texts: Sequence[str], /) -> np.ndarray:
            calls.append(list(texts))
            return inner(texts)

    classifier = Classifier.load(Counting(), memory=2)
    for text in ("a", "b", "a", "c", "b"):
        classifier.predict(messages_of(text))
    assert [c[0] for c in calls] == ["a", "b", "c", "b"]


def test_history_changes_the_decision(classifier: Classifier) -> None:
    talk = messages_of(
        [
            {"role": "user", "content": "Write a proof that there are infinitely many primes, step by step"},
            {"role": "assistant", "content": "Suppose not."},
            {"role": "user", "content": "go on"},
        ]
    )
    assert classifier.predict(talk)[1].route is Route.DEEP


def test_many_threads_get_the_same_decision(classifier: Classifier) -> None:
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(classifier.predict(messages_of("Where is Lisbon?"))[1]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({str(p.to_dict()) for p in found}) == 1


def test_wrong_assets_are_refused(tmp_path: Path) -> None:
    embed = default_embedder()
    with pytest.raises(RouterError, match="no readable classifier"):
        Classifier.load(embed, tmp_path / "gone.safetensors")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(RouterError, match="no readable classifier"):
        Classifier.load(embed, tmp_path / "junk.safetensors")
    save_file({"w1": np.zeros((2, 2), np.float32)}, tmp_path / "bare.safetensors")
    with pytest.raises(RouterError, match="no classifier of this version"):
        Classifier.load(embed, tmp_path / "bare.safetensors")
    with safe_open(str(ASSET), framework="numpy") as file:
        meta = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(
        tensors, tmp_path / "other.safetensors", metadata={"shoal": meta["shoal"].replace("use-multilingual", "x")}
    )
    with pytest.raises(RouterError, match="embedder"):
        Classifier.load(embed, tmp_path / "other.safetensors")
