"""Learned gates of a running service: changed files are taken over, and enough thumbs-down start a recalibration (G15).

The recalibration is a process of its own at low priority, one at a time and at most once an hour, so that it shares
neither memory nor fate with the service; what it adopts is a file like any other. Answers under way end with the gates
they began with. Does nothing for a model elsewhere.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ...gated_llm.errors import GatedError
from ..accounting import BEAT_S
from ..telemetry import Telemetry

log = logging.getLogger("shoal.service")
REST_S = 3600.0  # between two starts
_NICE = 15


def recalibration(folder: Path, traces: Path) -> list[str]:
    """The command for the model in `folder` and a trace store."""
    words = ["gates", "recalibrate", "--model", str(folder), "--traces", str(traces), "--json"]
    return [sys.executable, "-P", "-c", "from shoal.router.cli import main; main()", *words]


class Regating:
    """`after`: thumbs-down on different answers that start a recalibration; None for never. `traces`: the store."""

    def __init__(
        self,
        llm: Any,
        traces: Path | None,
        telemetry: Telemetry,
        *,
        after: int | None = None,
        command: Callable[[Path, Path], Sequence[str]] = recalibration,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._llm, self._traces, self._telemetry = llm, traces, telemetry
        self._after, self._command, self._clock = after, command, clock
        self._disliked: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._said: tuple[IO[bytes], IO[bytes]] | None = None
        self._next = clock()
        self._fault = ""

    def disliked(self, tenant: str, answer_id: str) -> None:
        """Counts a thumb down; a second one on the same answer is none."""
        if self._after is not None:
            with self._lock:
                self._disliked.add((tenant, answer_id))

    async def watch(self) -> None:
        """Beats until it is cancelled."""
        while True:
            await asyncio.to_thread(self.beat)
            await asyncio.sleep(BEAT_S)

    def beat(self) -> None:
        """Looks at files, thumbs and the process under way; returns at once. Never raises."""
        if not hasattr(self._llm, "reload_gates"):
            return
        try:
            if self._child is not None and self._child.poll() is not None:
                self._ended(self._child.returncode)
            elif self._child is None and self._due():
                self._start()
            for whose in self._llm.reload_gates():
                self._telemetry.gates_swapped()
                log.info("gates%s have changed and are in use from now on", f" of {whose}" if whose else "")
            self._fault = ""
        except (GatedError, OSError, ValueError) as error:
            if str(error) != self._fault:  # told once
                self._fault = str(error)
                log.error("gates were left as they are: %s", error)

    def close(self) -> None:
        """Ends a recalibration under way; what is in place stays."""
        if self._child is not None:
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(5)
            self._child.kill()
            self._child.wait()
            self._forget()

    def _due(self) -> bool:
        if self._after is None or self._traces is None or len(self._disliked) < self._after:
            return False
        return self._llm.folder is not None and self._clock() >= self._next

    def _start(self) -> None:
        assert self._traces is not None
        assert self._child is None
        with self._lock:
            count, self._disliked = len(self._disliked), set()
        self._next = self._clock() + REST_S
        self._said = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_forget`)
        command = self._command(self._llm.folder, self._traces)
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._said[0], stderr=self._said[1])
        if hasattr(os, "setpriority"):
            with suppress(OSError):  # it may have ended
                os.setpriority(os.PRIO_PROCESS, self._child.pid, _NICE)
        log.info("%d answers were disliked: the gates are being recalibrated", count)

    def _ended(self, code: int) -> None:
        printed, errors = (self._read(at) for at in range(2))
        self._forget()
        if code:
            self._telemetry.recalibrated("failed")
            log.error("the gates could not be recalibrated: %s", (errors.strip().splitlines() or [f"code {code}"])[-1])
            return
        for one in json.loads(printed):
            self._telemetry.recalibrated(one["outcome"])
            marks = ", ".join(one["marks"])
            log.info("recalibration of the %s: %s; marked: %s; %s", one["gates"], one["outcome"], marks, one["why"])

    def _read(self, at: int) -> str:
        assert self._said is not None
        self._said[at].seek(0)
        return self._said[at].read().decode("utf-8", "replace")

    def _forget(self) -> None:
        for file in self._said or ():
            file.close()
        self._child = self._said = None
