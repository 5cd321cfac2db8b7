"""Requests that are the same, at the same time or again: one generation, and every copy says what the first did."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.router import Answer, CacheControl, CognitiveRouter, Route

from .conftest import HARD, ScriptedModel


@pytest.fixture
def router(model: ScriptedModel) -> CognitiveRouter:
    return CognitiveRouter(llm=model)


def test_many_identical_requests_cost_one_generation(router: CognitiveRouter, model: ScriptedModel) -> None:
    model.delay_s = 0.2
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(router.ask(HARD))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.text for answer in answers} == {"It is so."}
    assert len(answers) == 12
    assert len(model.calls) == 1


def test_a_failing_leader_does_not_block_the_others(router: CognitiveRouter, model: ScriptedModel) -> None:
    model.fails = True
    with pytest.raises(RuntimeError, match="broke"):
        router.ask(HARD)
    model.fails = False
    assert router.ask(HARD).text == "It is so."


def test_copies_of_a_cut_answer_say_that_it_was_cut(router: CognitiveRouter, model: ScriptedModel) -> None:
    model.delay_s, model.finish = 0.1, "length"
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: router.ask(HARD), range(4)))
    assert {answer.finish_reason for answer in answers} == {"length"}


def test_an_answer_must_not_be_older_than_asked(router: CognitiveRouter, model: ScriptedModel) -> None:
    for _ in range(3):
        assert router.ask(HARD, cache=CacheControl(max_age_s=0)).route is not Route.CACHE
    assert len(model.calls) == 3
    assert router.ask(HARD, cache=CacheControl(max_age_s=60)).route is Route.CACHE


def test_a_leader_that_leaves_does_not_take_the_followers_with_it(
    router: CognitiveRouter, model: ScriptedModel
) -> None:
    model.delay_s = 0.1
    cancel, texts = threading.Event(), list[str]()
    leader = threading.Thread(target=lambda: list(router.ask_stream(HARD, cancel=cancel)))
    leader.start()
    while not model.calls:
        threading.Event().wait(0.01)
    follower = threading.Thread(target=lambda: texts.append(router.ask(HARD).text))
    follower.start()
    cancel.set()
    leader.join()
    follower.join()
    assert texts == ["It is so."]
    assert len(model.calls) == 2


def test_a_thumb_down_on_a_copy_retracts_what_was_copied(router: CognitiveRouter, model: ScriptedModel) -> None:
    model.delay_s = 0.2
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: router.ask(HARD), range(4)))
    copy = next(answer for answer in answers if answer.trace.tier == "flight")
    assert router.feedback(copy.trace.id, up=False)
    assert router.ask(HARD).route is not Route.CACHE
