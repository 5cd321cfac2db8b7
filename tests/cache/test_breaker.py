import logging
import threading
import time

import pytest

from shoal.cache.breaker import Breaker
from shoal.cache.deadline import Lane


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_opens_tries_once_closes_and_tells_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = Clock()
    breaker = Breaker("it", failures=2, pause_s=1, max_pause_s=4, clock=clock)
    for _ in range(2):
        assert breaker.allow()
        breaker.failed("TimeoutError")
    assert breaker.state == "open"
    assert not breaker.allow()
    pauses = []
    for _ in range(4):
        start = clock.now
        while not breaker.allow():
            clock.now += 0.5
        assert breaker.state == "half-open"
        assert not breaker.allow()  # one at a time
        pauses.append(clock.now - start)
        breaker.failed("TimeoutError")
    assert pauses == [1, 2, 4, 4]
    clock.now += 4
    assert breaker.allow()
    breaker.succeeded()
    assert breaker.state == "closed"
    assert len(caplog.records) == 2  # gone, and back
    assert breaker.outages == 1


def test_single_failures_do_not_open_it() -> None:
    breaker = Breaker("it", failures=2)
    for _ in range(5):
        breaker.failed("x")
        breaker.succeeded()
    assert breaker.state == "closed"


def test_a_try_given_back_can_be_taken_again() -> None:
    clock = Clock()
    breaker = Breaker("it", failures=1, pause_s=1, clock=clock)
    breaker.failed("x")
    clock.now = 1
    assert breaker.allow()
    assert not breaker.allow()
    breaker.release()
    assert breaker.allow()


def test_a_lane_returns_raises_and_gives_up_in_time() -> None:
    lane = Lane("test-lane", threads=2, waiting=4)
    assert lane.call(lambda: 3, 1.0) == 3
    with pytest.raises(ZeroDivisionError):
        lane.call(lambda: 1 // 0, 1.0)
    stuck = threading.Event()
    began = time.perf_counter()
    for _ in range(4):
        with pytest.raises(TimeoutError, match="no reply"):
            lane.call(lambda: stuck.wait(10), 0.02)
    with pytest.raises(TimeoutError, match="busy"):
        lane.call(lambda: 1, 0.02)
    assert time.perf_counter() - began < 2
    stuck.set()
    for _ in range(200):
        try:
            assert lane.call(lambda: 5, 1.0) == 5
            break
        except TimeoutError:
            time.sleep(0.01)
    else:
        pytest.fail("the lane did not recover")
    lane.close()
