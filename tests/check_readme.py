"""Runs every block of README.md that claims to run, in order, in one empty folder.

`python tests/check_readme.py [FILE ...]`, two files at a time. A `python` block runs as a script of its own; a `sh`
block line by line with the environment's commands on the path. A line that ends in `&` stays in the background until
the end, and the next block waits until its port answers. Blocks of other languages are not run, nor is a block right
below `<!-- not run: why -->`. Port 8000 becomes a free one.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?P<skip><!-- not run:[^>]*-->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
PATIENCE_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    line: int
    language: str
    code: str


def blocks_of(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        if not found["skip"] and found["language"] in {"python", "sh"}:
            line = text.count("\n", 0, found.start("code"))
            yield Block(line=line, language=found["language"], code=found["code"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Runner:
    """Runs blocks in one folder; what it started in the background ends with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, str(free_port())
        self.background: list[subprocess.Popen[bytes]] = []
        own = {name: str(folder / name) for name in ("kb", "faq")}  # not the ones of whoever runs this
        self.env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **{f"SHOAL_{name.upper()}": path for name, path in own.items()},
            "SHOAL_COLD_LOG": "false",
        }

    def run(self, block: Block) -> str | None:
        """None when the block went well, else the end of what it printed."""
        code = block.code.replace("8000", self.port)
        if block.language == "python":
            return self._wait_for([sys.executable, "-c", code])
        for line in filter(None, code.replace("\\\n", " ").splitlines()):
            if line.rstrip().endswith("&"):
                failure = self._start(line.rstrip().rstrip("&"))
            else:
                failure = self._wait_for(["bash", "-euc", line])
            if failure:
                return f"{line}\n{failure}"
        return None

    def _wait_for(self, command: list[str]) -> str | None:
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        return None if done.returncode == 0 else (done.stdout + done.stderr)[-3000:]

    def _start(self, line: str) -> str | None:
        log = self.folder / f"server-{len(self.background)}.log"
        with log.open("wb") as output:
            command = ["bash", "-euc", f"exec {line}"]
            server = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=output, stderr=output)
        self.background.append(server)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(self.port))) == 0:
                    return None
            time.sleep(0.2)
        return f"nothing listens on port {self.port}: {log.read_text(errors='replace')[-3000:]}"

    def close(self) -> None:
        for server in self.background:
            server.terminate()
            server.wait(timeout=30)


def check(path: Path) -> int:
    """How many blocks of this file failed; prints a line for each block."""
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder))
        try:
            for block in blocks_of(path.read_text(encoding="utf-8")):
                started = time.monotonic()
                failure = runner.run(block)
                failures += failure is not None
                verdict = "ok" if failure is None else f"FAILED\n{failure}"
                spent = time.monotonic() - started
                print(f"{path.name}:{block.line} {block.language} ({spent:.1f} s): {verdict}", flush=True)
        finally:
            runner.close()
    return failures


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:]] or [ROOT / "README.md"]
    with ThreadPoolExecutor(2) as pool:
        sys.exit(1 if sum(pool.map(check, files)) else 0)
