"""The second look that ships, with the embedder it was fitted for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.cache import CacheInputError, DepthCache
from shoal.cache.match import by_cosine
from shoal.cache.pair import PAIR, SECOND, pair_features, second_features
from shoal.cache.scorer import bundled, default_matcher, load
from shoal.cache.words import Words
from shoal.rag.embed import default_embedder

IDF = np.ones(2**15, dtype=np.float32)


@pytest.fixture(scope="module")
def cache() -> Any:
    made = DepthCache(embed=default_embedder())
    for question in (
        "How do I reset my password?",
        "What is the baggage allowance on international flights?",
        "How long does delivery to Canada take?",
        "怎么修改登录密码？",
        "国际航班可以带多少行李？",
        "退款需要多长时间到账？",
    ):
        made.put(question, f"answer to {question}", budget=30, depth=30)
    yield made
    made.close()


@pytest.mark.parametrize(
    "question",
    [
        "how can I reset my password",
        "what's the international flight baggage allowance",
        "怎样修改登录密码",
        "退款要多长时间才能到账",
    ],
)
def test_paraphrases_hit(cache: DepthCache, question: str) -> None:
    found = cache.get(question, budget=30)
    assert found is not None
    assert found.tier == "semantic"


@pytest.mark.parametrize(
    "question",
    [
        "How do I change my username?",
        "What is the meal choice on international flights?",
        "How long does delivery to Norway take?",
        "怎么修改支付密码？",
        "国内航班可以带多少行李？",
        "How tall is the Eiffel Tower?",
        "我想订一张去北京的机票",
    ],
)
def test_other_questions_miss(cache: DepthCache, question: str) -> None:
    assert cache.get(question, budget=30) is None


def test_features_are_symmetric_and_named(letters: Any) -> None:
    words = Words(letters)
    texts = ["How do I reset my password?", "password reset, how?", "怎么重置密码", "What is NLP in 2021?", "", "?"]
    for a in texts:
        for b in texts:
            row = pair_features(a, b, 0.7, IDF, words)
            assert row == pytest.approx(pair_features(b, a, 0.7, IDF, words))
            assert len(row) == len(PAIR)
            assert np.isfinite(row).all()


def test_a_lead_counts_only_before_other_answers() -> None:
    rows = np.zeros((2, len(PAIR)), dtype=np.float32)
    rows[:, 0] = [0.9, 0.89]
    ratings = np.array([2.0, 1.5], dtype=np.float32)
    torn, agreed = second_features(rows, ratings, ["x", "y"]), second_features(rows, ratings, ["x", "x"])
    assert torn.shape == (2, len(SECOND))
    lead, margin = SECOND.index("lead in cosine"), SECOND.index("margin")
    assert torn[0, lead] > -0.2
    assert agreed[0, lead] < -1
    assert torn[0, margin] == 0.5
    assert agreed[0, margin] == 8


def test_another_embedder_gets_cosine(letters: Any) -> None:
    matcher = default_matcher(letters, None, None)
    assert matcher.score is by_cosine


def test_a_file_of_other_features_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    meta = {"features": '["cosine"]', "embedder": "x", "threshold": "0.5"}
    save_file({"idf": bundled().idf}, tmp_path / "old.safetensors", metadata=meta)
    with pytest.raises(CacheInputError, match="other features"):
        load(tmp_path / "old.safetensors")
