import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.router.conversation import State, change_of, needs_summary, reminder_of, skip_rate, state_of, summary_of
from shoal.router.decision import Message, messages_of

TALK = messages_of(
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Forget this one. It is older than three turns."},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": "My train to Porto leaves at 9:40 from platform 3."},
        {"role": "assistant", "content": "Noted. The train to Porto leaves at 9:40. Have a good trip!"},
        {"role": "user", "content": "My sister Ana travels with me. She is vegetarian."},
        {"role": "assistant", "content": "Good to know."},
        {"role": "user", "content": "We need a hotel near the river for 2 nights."},
        {"role": "assistant", "content": "There are several."},
        {"role": "user", "content": "When does the train leave?"},
    ]
)


@pytest.mark.parametrize(
    ("depth", "rate"), [(0, 1.0), (15, 1.0), (30, 0.0), (22.5, 0.5), (40, 0.0)]
)  # total 30, shallowest plan 15
def test_skip_rate(depth: float, rate: float) -> None:
    assert skip_rate(depth, total=30, min_depth=15) == rate


def test_skip_rate_of_a_model_with_one_depth() -> None:
    assert skip_rate(30, total=30, min_depth=30) == 0.0


def test_states_come_in_the_right_order() -> None:
    rates, events = [], []
    for rate in (0.9, 0.8, 0.75, 0.9, 0.5, 0.2, 0.1, 0.29, 0.3, 0.1):
        rates.append(rate)
        events.append(change_of(rates))
    named = [event.state if event else None for event in events]
    assert named == [
        None,
        None,
        State.THINKING_FAST,
        None,
        State.STEADY,
        None,
        None,
        State.ANALYSING_DEEPLY,
        State.STEADY,
        None,
    ]
    assert events[2] is not None
    assert events[2].to_dict() == {"event": "state", "state": "thinking_fast", "skip_rates": [0.9, 0.8, 0.75]}
    assert change_of([]) is None


@given(st.lists(st.floats(0, 1), max_size=8))
def test_a_state_needs_three_in_a_row(rates: list[float]) -> None:
    if state_of(rates) is not State.STEADY:
        assert len(rates) >= 3


def test_a_summary_is_needed_when_context_layers_are_skipped_often() -> None:
    often, seldom = {8: 0.9, 3: 0.1}, {8: 0.1, 3: 0.9}
    assert needs_summary([often, often], [8])
    assert not needs_summary([often], [8])
    assert not needs_summary([often, often], [])
    assert not needs_summary([seldom, seldom, seldom], [8])
    assert not needs_summary([often, seldom, seldom, seldom], [8])  # only the last three turns count
    assert needs_summary([seldom, often, often], [8])


def test_the_summary_is_made_of_sentences_that_were_said() -> None:
    summary = summary_of(TALK, budget=120)
    assert "9:40" in summary
    assert len(summary) <= 120
    assert "older than three turns" not in summary
    assert "kind" not in summary
    said = " ".join(m.content for m in TALK)
    assert all(part.strip(" .!?") in said for part in summary.split(". "))


def test_a_reminder_says_what_it_is() -> None:
    assert reminder_of(TALK) == f"Said earlier in this conversation: {summary_of(TALK)}"
    assert reminder_of((Message(role="user", content="hello"),)) == ""
    assert summary_of(()) == ""


def test_chinese_talk() -> None:
    talk = messages_of(
        [{"role": "user", "content": "我的火车九点四十分开。我妹妹吃素。"}, {"role": "user", "content": "火车几点开？"}]
    )
    assert reminder_of(talk, budget=12) == "此前对话提到： 我的火车九点四十分开。"
