"""A running service takes over gates that change, and starts a recalibration after enough thumbs-down (G15)."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.gated_llm.errors import PlanError
from shoal.router.service.app import create_app
from shoal.router.service.options import BadOptions, ServiceOptions
from shoal.router.service.regating import REST_S, Regating, recalibration
from shoal.router.telemetry import Telemetry

from .conftest import ScriptedRouter

ADOPTED = '[{"gates": "gates", "outcome": "adopted", "why": "", "marks": {"mlp 2": 0.2}}]'


class Model:
    """What `Regating` sees of a model: a file `gates` beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._seen = folder, ""
        self.fault: Exception | None = None

    def reload_gates(self) -> tuple[str, ...]:
        if self.fault is not None:
            raise self.fault
        file = self.folder / "gates"
        now = file.read_text() if file.exists() else ""
        changed, self._seen = now != self._seen, now
        return ("",) if changed else ()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., Regating]]:
    made: list[Regating] = []

    def of(script: str, *, after: int | None = 3) -> Regating:
        command = lambda folder, traces: [sys.executable, "-c", script, str(folder), str(traces)]  # noqa: E731
        made.append(Regating(Model(tmp_path), tmp_path / "t", Telemetry(), after=after, command=command, clock=clock))
        return made[-1]

    yield of
    for one in made:
        one.close()


def thumbs(regating: Regating, count: int, name: str = "a") -> None:
    for at in range(count):
        regating.disliked("default", f"{name}{at}")


def ended(regating: Regating, what: str) -> str:
    """The metrics once they hold `what`."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        regating.beat()
        if what in (page := regating._telemetry.page()[0].decode()):
            return page
        time.sleep(0.02)
    raise AssertionError(what)


WRITES = f"import sys; open(sys.argv[1] + '/gates', 'w').write('new'); print({ADOPTED!r})"


def test_enough_thumbs_start_it_once_an_hour_and_what_it_adopts_is_taken_over(
    make: Callable[..., Regating], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shoal.service")
    regating = make(WRITES)
    for _ in range(9):
        regating.disliked("default", "a0")  # one answer
    thumbs(regating, 2)
    regating.beat()
    assert regating._child is None
    thumbs(regating, 3)
    page = ended(regating, 'shoal_gate_recalibrations_total{outcome="adopted"} 1.0')
    assert "shoal_gate_swaps_total 1.0" in page
    assert "marked: mlp 2" in caplog.text
    thumbs(regating, 50, "b")  # a flood
    regating.beat()
    assert regating._child is None
    clock.now += REST_S
    ended(regating, 'shoal_gate_recalibrations_total{outcome="adopted"} 2.0')


def test_one_that_fails_is_told_and_the_service_goes_on(
    make: Callable[..., Regating], caplog: pytest.LogCaptureFixture
) -> None:
    regating = make("import sys; sys.exit('shoal: there is nothing to measure on')")
    thumbs(regating, 3)
    ended(regating, 'shoal_gate_recalibrations_total{outcome="failed"} 1.0')
    assert "nothing to measure on" in caplog.text
    model: Any = regating._llm
    model.fault = PlanError("gates.safetensors holds no gates")
    for _ in range(3):
        regating.beat()
    assert caplog.text.count("holds no gates") == 1
    model.fault = None
    regating.beat()


def test_it_is_off_unless_set_and_ends_with_the_service(make: Callable[..., Regating]) -> None:
    off = make(WRITES, after=None)
    thumbs(off, 100)
    off.beat()
    assert off._child is None
    regating = make("import time; time.sleep(600)")
    thumbs(regating, 3)
    regating.beat()
    child = regating._child
    assert child is not None
    began = time.monotonic()
    regating.close()
    assert child.poll() is not None
    assert time.monotonic() - began < 30
    nowhere = Regating(object(), None, Telemetry(), after=1)  # such as a model elsewhere
    thumbs(nowhere, 3)
    nowhere.beat()


def test_the_option_is_a_whole_number_and_the_command_is_the_cli_s(tmp_path: Path) -> None:
    assert ServiceOptions.of({"gates_after": 20}).gates_after == 20
    for wrong in (0, -1, True, "20", 2.5):
        with pytest.raises(BadOptions, match="gates_after"):
            ServiceOptions(gates_after=wrong)  # type: ignore[arg-type]
    assert recalibration(tmp_path, tmp_path / "t.sqlite")[4:6] == ["gates", "recalibrate"]


async def test_thumbs_of_callers_are_counted() -> None:
    router = ScriptedRouter()
    app = create_app(router, ServiceOptions(gates_after=5))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        body = {"model": "shoal", "messages": [{"role": "user", "content": "hello there"}]}
        answer = (await client.post("/v1/chat/completions", json=body)).headers["X-Request-Id"]
        for up in (False, False, True):
            assert (await client.post("/v1/feedback", json={"request_id": answer, "up": up})).status_code == 200
        assert (await client.post("/v1/feedback", json={"request_id": "none", "up": False})).status_code == 404
    assert app.state.service.regating._disliked == {("default", answer)}
