"""Sets of gates come and go byte for byte; a process that is killed on the way leaves the old set in place (G15)."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.gated_llm import PlanError
from shoal.gated_llm.gates import Gates
from shoal.gated_llm.versions import KEPT, Versions

from .test_gates import some_gates


def other(number: int) -> Gates:
    gates = some_gates(2, 8)
    rounded = gates.weight.astype(np.float16).astype(np.float32)  # as a file keeps them
    return replace(gates, weight=rounded, slope=np.full((2, 2), 1.0 + number, np.float32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    some_gates(2, 8).write(tmp_path / "gates.safetensors")
    return tmp_path / "gates.safetensors"


def test_what_was_in_place_can_come_back_byte_for_byte(path: Path) -> None:
    versions, first = Versions(path), path.read_bytes()
    assert versions.known() == ()
    assert versions.adopt(other(1), reason="thumbs-down", figures={"more": 0.01}) == 2
    second = path.read_bytes()
    assert Gates.read(path).fingerprint == other(1).fingerprint
    one, two = versions.known()
    assert (one.number, one.reason, one.current) == (1, "as found", False)
    assert (two.number, two.reason, two.current, two.figures) == (2, "thumbs-down", True, {"more": 0.01})
    assert two.at.endswith("+00:00")
    assert versions.rollback().number == 1
    assert path.read_bytes() == first
    with pytest.raises(PlanError, match="nothing earlier"):
        versions.rollback()
    assert versions.adopt(other(2), reason="trained", figures={}) == 3
    assert [one.current for one in versions.known()] == [False, False, True]
    assert versions.rollback(2).number == 2
    assert path.read_bytes() == second
    with pytest.raises(PlanError, match=r"no version 9; there is 1, 2, 3"):
        versions.rollback(9)


def test_gates_of_other_weights_do_not_come_back_and_a_set_that_changed_meanwhile_stays(path: Path) -> None:
    versions, was = Versions(path), Versions(path).digest()
    versions.adopt(other(1), reason="trained", figures={}, instead_of=was)
    with pytest.raises(PlanError, match="has changed meanwhile"):
        versions.adopt(other(2), reason="thumbs-down", figures={}, instead_of=was)
    assert Gates.read(path).fingerprint == other(1).fingerprint
    versions.adopt(replace(other(3), model_fingerprint="xyz"), reason="trained", figures={})
    with pytest.raises(PlanError, match="made for model abc, this one is xyz"):
        versions.rollback()
    path.write_bytes(b"damaged")
    assert versions.rollback(3).number == 3
    assert Gates.read(path).model_fingerprint == "xyz"


def test_shipped_gates_are_the_first_version_and_old_ones_go(path: Path, tmp_path: Path) -> None:
    own = tmp_path / "model" / "gates.safetensors"
    own.parent.mkdir()
    versions = Versions(own, shipped=path)
    for number in range(KEPT + 3):
        versions.adopt(other(number), reason="trained", figures={})
    kept = [version.number for version in versions.known()]
    assert len(kept) == KEPT
    assert kept[0] == 1
    assert kept[-1] == KEPT + 4
    versions.rollback(1)
    assert own.read_bytes() == path.read_bytes()


SCRIPT = """
import sys
from pathlib import Path
from shoal.gated_llm import versions
from shoal.gated_llm.gates import Gates

path, at = Path(sys.argv[1]), int(sys.argv[2])
put, done = versions._put, 0

def stopped(file, body):
    global done
    if done == at:  # half of it is written
        file.with_name(f"{file.name}.new").write_bytes(body[: len(body) // 2])
        print("here", flush=True)
        sys.stdin.read()
    done += 1
    put(file, body)

versions._put = stopped
gates = Gates.read(path.with_name("next.safetensors"))
versions.Versions(path).adopt(gates, reason="thumbs-down", figures={})
"""


@pytest.mark.parametrize("at", [1, 4])  # the old set's own version, the file itself
def test_killed_on_the_way_the_old_set_stays(path: Path, at: int) -> None:
    before = path.read_bytes()
    other(1).write(path.with_name("next.safetensors"))
    words = [sys.executable, "-c", SCRIPT, str(path), str(at)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        os.kill(child.pid, signal.SIGKILL)
    assert path.read_bytes() == before
    versions = Versions(path)
    assert all(not version.current or version.reason == "as found" for version in versions.known())
    number = versions.adopt(other(1), reason="thumbs-down", figures={})
    assert [version.number for version in versions.known() if version.current] == [number]
    versions.rollback(1)
    assert path.read_bytes() == before
