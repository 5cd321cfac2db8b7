"""Drafts: what they guess, when they stop guessing, and that they change no answer (G16)."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from shoal.gated_llm import GatedLLM, WeightsError
from shoal.gated_llm.draft import PASS_COSTS, Draft, LookUp, TrainedDraft
from shoal.gated_llm.native import available
from shoal.gated_llm.report import Chunk
from shoal.gated_llm.request import Drafter, Work

from .conftest import MakeModel

WIDE = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "initializer_range": 0.1}
HIDDEN, VOCAB, SHORT = 32, 60, 20


class Drafting(GatedLLM):
    """Answers with whatever drafts `make` makes."""

    make: Callable[[], Drafter | None] = lambda: None

    def _run(self, work: Work) -> Iterator[Chunk]:
        return super()._run(replace(work, drafter=type(self).make()))


class Told:
    """Proposes what it was told, right or wrong, as far as the text agrees with it."""

    def __init__(self, prompt: int, answer: Sequence[int]) -> None:
        self._prompt, self._answer, self._seen, self.states = prompt, list(answer), list[int](), 0

    def observe(self, ids: Sequence[int], states: np.ndarray | None) -> None:
        assert states is None or states.shape[0] == len(ids)
        self._seen += ids
        self.states += 0 if states is None else len(ids)

    def propose(self, token: int, most: int) -> list[int]:
        at = len(self._seen) - self._prompt + 1
        return self._answer[at : at + min(most, 4)]

    def taken(self, proposed: int, accepted: int) -> None:
        assert 0 <= accepted <= proposed


class Heard:
    """Proposes nothing and remembers what was passed."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def observe(self, ids: Sequence[int], states: np.ndarray | None) -> None:
        self.ids += ids

    def propose(self, token: int, most: int) -> list[int]:
        return []

    def taken(self, proposed: int, accepted: int) -> None:
        raise AssertionError("nothing was proposed")


@pytest.fixture(scope="module", params=["kernel", "torch"])
def llm(request: pytest.FixtureRequest, make_model: MakeModel) -> Iterator[Drafting]:
    if request.param == "kernel" and not available():
        pytest.skip("no C++ compiler here: the kernel is optional")
    folder = make_model(**WIDE, max_position_embeddings=1024)
    with Drafting.load(folder, dtype="int8" if request.param == "kernel" else "fp32") as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def _no_drafts() -> Iterator[None]:
    yield
    Drafting.make = lambda: None


def answer(llm: Drafting, make: Callable[[], Drafter | None], **settings: Any) -> Any:
    Drafting.make = make
    return llm.generate("Hi", **{"max_tokens": 60, "stop": None, **settings})


def heard(llm: Drafting, **settings: Any) -> list[int]:
    """The tokens of the answer without drafts, but for the last."""
    ear = Heard()
    answer(llm, lambda: ear, **settings)
    return ear.ids[llm.count_tokens("Hi") :]


def arrays(seed: int = 0, dim: int = 16, inner: int = 24) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float16)

    return {
        "project": normal(dim, HIDDEN), "repeat": normal(dim, dim), "embed": normal(dim, HIDDEN),
        "norm": np.ones(dim, np.float16), "inner": normal(2 * inner, dim), "down": normal(dim, inner),
        "head": normal(SHORT + 1, dim) * np.float16(8), "bias": normal(SHORT + 1),
        "tokens": np.arange(7, 7 + SHORT, dtype=np.int32), "calibration": np.array([1.0, 0.0], np.float32),
    }  # fmt: skip


def network() -> TrainedDraft:
    return TrainedDraft(arrays(), torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1)))


# -- look-up


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 3))
def test_look_up_finds_the_latest_longest_match(ids: list[int], token: int) -> None:
    look = LookUp()
    for part in (ids[:7], ids[7:]):
        look.extend(part)
    look.text.append(token)
    text = [*ids, token]
    at, length = look.find()
    if length == 0:
        assert token not in ids
        return
    assert text[at - length : at] == text[-length:]
    if length < 4:  # no longer one is there, and no later one as long
        assert not any(text[i - length - 1 : i] == text[-length - 1 :] for i in range(length + 1, len(text)))
    assert not any(text[i - min(length, 4) : i] == text[-min(length, 4) :] for i in range(at + 1, len(text)))


def test_what_was_drafted_is_forgotten() -> None:
    look = LookUp()
    look.extend([1, 2, 3])
    look.text += [8, 9]
    look.extend([4])
    assert look.text == [1, 2, 3, 4]
    look.text.append(8)
    assert look.find() == (0, 0)


def test_a_copied_passage_is_drafted_and_new_text_is_not() -> None:
    draft = Draft()
    draft.observe([*range(100, 130), 1, 2, 100, 101, 102], None)
    assert draft.propose(103, 5)[:4] == [104, 105, 106, 107]
    assert len(draft.propose(103, 2)) <= 2
    assert draft.propose(999, 5) == []
    assert draft.propose(103, 0) == []


def test_an_end_is_no_draft() -> None:
    draft = Draft(ends=frozenset([102]))
    draft.observe([100, 101, 102, 103, 104, 100], None)
    assert draft.propose(101, 5) == []


def test_repetition_is_drafted_past_its_own_end() -> None:
    draft = Draft()
    draft.observe([5, 6] * 20, None)
    drafts = draft.propose(5, 30)
    assert drafts == ([6, 5] * 20)[: len(drafts)]
    assert 4 <= len(drafts) < len(PASS_COSTS)


def test_drafts_stop_where_they_fail_and_come_back() -> None:
    draft, passage = Draft(), list(range(100, 140))
    draft.observe(passage, None)
    tries = 0
    while drafts := draft.propose(100 + tries % 30, 8):
        draft.taken(len(drafts), 0)
        tries += 1
        assert tries < 40
    for token in passage:  # here the passage is copied after all
        drafts = draft.propose(token, 8)
        if drafts:
            draft.taken(len(drafts), len(drafts))
        draft.observe([token], None)
    assert len(draft.propose(100, 8)) > 0


def test_dear_passes_get_no_drafts() -> None:
    draft = Draft(costs=[1.0, 2.1, 3.2, 4.3])
    draft.observe([*range(100, 130), 100, 101, 102], None)
    assert draft.propose(103, 5) == []


# -- the network


def test_the_network_guesses_from_state_and_token() -> None:
    net = network()
    state = np.random.default_rng(3).standard_normal(HIDDEN).astype(np.float32)
    vector = net.step(net.start(state), 9)
    token, chance = net.guess(vector)
    assert 7 <= token < 7 + SHORT
    assert 0 < chance < 1
    assert net.guess(net.step(net.start(state), 9)) == (token, chance)
    assert np.allclose(net.start(5 * state), net.start(state), rtol=1e-3)


def test_it_drafts_where_states_are_known() -> None:
    sure = replace_chance(network(), shift=5.0)
    draft = Draft(sure, network_cost=0.01)
    states = np.random.default_rng(3).standard_normal((4, HIDDEN)).astype(np.float32)
    draft.observe([1, 2, 3, 4], None)
    assert draft.propose(50, 4) == []
    draft.observe([50], states[:1])
    drafts = draft.propose(51, 4)
    vector, expected = sure.start(states[0]), []
    for token in (51, *drafts[:-1]):
        vector = sure.step(vector, token)
        expected.append(sure.guess(vector)[0])
    assert drafts
    assert drafts[0] == expected[0]


def replace_chance(net: TrainedDraft, *, shift: float) -> TrainedDraft:
    changed = arrays() | {"calibration": np.array([1.0, shift], np.float32)}
    return TrainedDraft(changed, torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1)))


def test_the_asset_is_for_one_model_and_whole(tmp_path: Path) -> None:
    path, embedding = tmp_path / "draft.safetensors", torch.randn(VOCAB, HIDDEN)
    assert TrainedDraft.load(path, embedding, "abc") is None
    save_file(arrays(), path, metadata={"draft": json.dumps({"model": "abc"})})
    assert TrainedDraft.load(path, embedding, "abc") is not None
    assert TrainedDraft.load(path, embedding, "def") is None
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="damaged"):
        TrainedDraft.load(path, embedding, "abc")


# -- answers stay what they are


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_are_the_same_with_any_drafts(llm: Drafting, temperature: float) -> None:
    settings = {"temperature": temperature, "seed": 3}
    plain = answer(llm, lambda: None, **settings)
    prompt = llm.count_tokens("Hi")
    right = heard(llm, **settings)
    for make in (Draft, lambda: Told(prompt, right), lambda: Told(prompt, [t ^ 1 for t in right])):
        drafted = answer(llm, make, **settings)
        assert drafted.text == plain.text
        assert drafted.finish_reason == plain.finish_reason
        assert drafted.usage.completion_tokens == plain.usage.completion_tokens
        assert drafted.confidence == pytest.approx(plain.confidence, abs=1e-5)


def test_right_drafts_save_passes(llm: Drafting) -> None:
    plain = answer(llm, lambda: None)
    right, before = heard(llm), llm.scheduler.steps
    drafted = answer(llm, lambda: Told(llm.count_tokens("Hi"), right))
    assert drafted.usage.accepted > plain.usage.completion_tokens / 2
    assert llm.scheduler.steps - before < 0.6 * plain.usage.completion_tokens


def test_sampled_tokens_keep_their_distribution(llm: Drafting) -> None:
    """The token after a draft: the same for each seed as without drafts, and as often as the model says."""
    settings = {"temperature": 0.5, "max_tokens": 3, "top_p": 0.9}
    prompt, runs = llm.count_tokens("Hi"), 60
    wrong = heard(llm, **settings)

    def texts(make: Callable[[], Drafter | None], seeds: range) -> list[str]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda seed: answer(llm, make, seed=seed, **settings).text, seeds))

    plain = texts(lambda: None, range(runs))
    drafted = texts(lambda: Told(prompt, wrong), range(3 * runs))
    assert drafted[:runs] == plain
    a, b = Counter(text[:2] for text in plain), Counter(text[:2] for text in drafted[runs:])
    for text in [text for text, n in (a + b).items() if n >= 12]:
        p = (a[text] + b[text]) / (3 * runs)
        assert abs(a[text] / runs - b[text] / (2 * runs)) < 4 * (p * (1 - p) * 1.5 / runs) ** 0.5
