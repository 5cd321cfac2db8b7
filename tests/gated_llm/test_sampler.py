"""Choosing tokens and finding stop strings."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.gated_llm import LogitsError, SamplingError
from shoal.gated_llm.sampler import Sampler, Sampling, StopText, stop_words

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.5, -math.inf])


def choices(count: int = 200, **settings: Any) -> list[int]:
    sampler = Sampler(Sampling(max_tokens=1, **settings))
    return [sampler.choose(LOGITS)[0] for _ in range(count)]


def test_greedy_takes_the_likeliest_with_its_probability() -> None:
    token, confidence = Sampler(Sampling(max_tokens=1)).choose(LOGITS)
    assert token == 1
    assert confidence == pytest.approx(LOGITS.softmax(0)[1].item())


def test_seeds_fix_the_choices() -> None:
    assert choices(temperature=1.0, seed=3) == choices(temperature=1.0, seed=3)
    assert choices(temperature=1.0, seed=3) != choices(temperature=1.0, seed=4)
    assert choices(temperature=1.0, seed=-1) == choices(temperature=1.0, seed=-1)


def test_sampling_follows_the_softmax() -> None:
    share = torch.bincount(torch.tensor(choices(4000, temperature=2.0)), minlength=5) / 4000
    assert torch.allclose(share, (LOGITS / 2).softmax(0), atol=0.03)


def test_top_p_keeps_the_likeliest_that_reach_it() -> None:
    assert set(choices(temperature=1.0, top_p=1e-6)) == {1}
    assert set(choices(temperature=1.0, top_p=0.6)) == {1, 3}  # 0.57 alone is below 0.6
    assert set(choices(1000, temperature=1.0)) == {0, 1, 2, 3}


def test_a_temperature_near_zero_is_greedy() -> None:
    assert set(choices(temperature=1e-12)) == {1}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers(bad: float, temperature: float) -> None:
    sampler = Sampler(Sampling(max_tokens=1, temperature=temperature))
    for broken in (torch.tensor([1.0, bad]), torch.full((2,), -math.inf)):
        with pytest.raises(LogitsError, match="checkpoint is damaged"):
            sampler.choose(broken)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"max_tokens": value} for value in (0, -1, 1.5, True, None, "9")),
        *({"temperature": value} for value in (-0.1, 10.1, math.nan, math.inf, True, None, "1")),
        *({"top_p": value} for value in (0, -1, 1.01, math.nan, None)),
        *({"seed": value} for value in (1.5, 2**63, None, "7")),
        *({"stop": value} for value in (("",), ("a", 3))),
    ],
    ids=str,
)
def test_settings_outside_their_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SamplingError, match=rf"^{next(iter(wrong))}.*give"):
        Sampling(**{"max_tokens": 1, **wrong})


def test_stop_takes_one_several_or_none() -> None:
    assert [stop_words(stop) for stop in (None, "ab", ["a", "b"], ())] == [(), ("ab",), ("a", "b"), ()]


words = st.text("abc", min_size=1, max_size=4)


@given(text=st.text("abc", max_size=30), stop=st.lists(words, max_size=3), cuts=st.lists(st.integers(0, 30)))
def test_stop_strings_are_found_wherever_the_tokens_end(text: str, stop: list[str], cuts: list[int]) -> None:
    at = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    finder, out, met = StopText(tuple(stop)), "", False
    for start, end in pairwise(at):
        piece, met = finder.push(text[start:end])
        out += piece
        assert not any(word in out for word in stop)
        if met:
            break
    else:
        out += finder.finish()
    hits = [where for word in stop if (where := text.find(word)) >= 0]
    assert met == bool(hits)
    if not hits:
        assert out == text
    else:
        assert text.startswith(out)
        assert any(text[len(out) :].startswith(word) for word in stop)
