"""Slots, the queue and the rates, on an event loop without a server."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.router.service.admission import Admission
from shoal.router.service.errors import ApiError
from shoal.router.service.keys import LOCAL


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


async def test_first_come_first_served_and_bounded():
    admission = Admission(concurrent=1, queue=2, wait_s=5)
    first = await admission.enter(LOCAL)
    order = []

    async def wait(name):
        slot = await admission.enter(LOCAL)
        order.append(name)
        slot.release()
        slot.release()  # only the first counts

    waiting = [asyncio.create_task(wait(name)) for name in "ab"]
    await asyncio.sleep(0)
    assert admission.queued == 2
    with pytest.raises(ApiError) as full:
        await admission.enter(LOCAL)
    assert (full.value.status_code, full.value.code) == (503, "overloaded")
    assert int(full.value.headers["Retry-After"]) >= 1
    first.release()
    await asyncio.gather(*waiting)
    assert order == ["a", "b"]
    assert (admission.in_flight, admission.queued) == (0, 0)


async def test_waiting_ends():
    admission = Admission(concurrent=1, queue=2, wait_s=0.01)
    slot = await admission.enter(LOCAL)
    with pytest.raises(ApiError) as late:
        await admission.enter(LOCAL)
    assert late.value.status_code == 503
    assert (admission.in_flight, admission.queued) == (1, 0)
    slot.release()
    assert admission.in_flight == 0


async def test_a_keys_own_limits_are_429():
    clock = Clock()
    admission = Admission(concurrent=9, queue=9, wait_s=1, clock=clock)
    key = replace(LOCAL, id="k", rpm=2, concurrent=1)
    slot = await admission.enter(key)
    with pytest.raises(ApiError) as busy:
        await admission.enter(key)
    assert (busy.value.status_code, busy.value.code) == (429, "too_many_requests_at_once")
    await admission.enter(LOCAL)  # others are not held up
    slot.release()
    (await admission.enter(key)).release()
    await admission.check_rate(key)
    await admission.check_rate(key)
    with pytest.raises(ApiError) as fast:
        await admission.check_rate(key)
    assert (fast.value.status_code, fast.value.headers["Retry-After"]) == (429, "30")
    clock.now += 30
    await admission.check_rate(key)
    with pytest.raises(ApiError):
        await admission.check_rate(key)
    await admission.check_rate(LOCAL)


async def test_closing_sends_those_in_line_away():
    admission = Admission(concurrent=1, queue=2, wait_s=5)
    slot = await admission.enter(LOCAL)
    waiter = asyncio.create_task(admission.enter(LOCAL))
    await asyncio.sleep(0)
    admission.close()
    with pytest.raises(ApiError, match="shutting down"):
        await waiter
    with pytest.raises(ApiError, match="shutting down"):
        await admission.enter(LOCAL)
    slot.release()
    assert admission.in_flight == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=40), st.integers(1, 4))
def test_no_slot_is_ever_lost(visits, concurrent):
    """Whoever comes, waits, is cancelled or times out: in the end all slots are free, and never more were out."""

    async def all_of_it():
        admission = Admission(concurrent=concurrent, queue=6, wait_s=0.004)
        most = 0

        async def visit(before, during, cancelled):
            nonlocal most
            await asyncio.sleep(before / 1000)
            entering = asyncio.create_task(admission.enter(replace(LOCAL, id="k", concurrent=30)))
            if cancelled:
                await asyncio.sleep(during / 1000)
                entering.cancel()
            try:
                slot = await entering
            except (ApiError, asyncio.CancelledError):
                return
            most = max(most, admission.in_flight)
            await asyncio.sleep(during / 1000)
            slot.release()

        await asyncio.gather(*(visit(*v) for v in visits))
        return most, admission.in_flight, admission.queued, admission._by_key

    most, left, queued, by_key = asyncio.run(all_of_it())
    assert most <= concurrent
    assert (left, queued, by_key) == (0, 0, {})
