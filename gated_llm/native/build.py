"""Compiles the kernel with the user's g++ or clang++, once per source, flags and processor, into the home's folder.

A machine without a compiler, or one on which the compile fails, has no kernel: that is logged once, never raised.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..weights import home_folder

_log = logging.getLogger(__name__)
_SOURCE = Path(__file__).parent
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-Wno-psabi", "-shared", "-fPIC", "-pthread")
PORTABLE = ("-DSHOAL_PORTABLE",)


def native_flags() -> tuple[str, ...]:
    """Flags that fit this very processor."""
    return ("-mcpu=native",) if platform.machine() in ("arm64", "aarch64") else ("-march=native",)


def available() -> bool:
    """Whether the kernel is there or can be compiled; the first call may compile, which takes some ten seconds."""
    return library() is not None


@functools.cache
def library(flags: tuple[str, ...] | None = None, home: Path | None = None) -> ctypes.CDLL | None:
    """The loaded kernel, or None. `flags`: those of this processor unless given (`PORTABLE` runs anywhere)."""
    chosen = native_flags() if flags is None else flags
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        _log.info(
            "No C++ compiler found: the model decodes through torch. Install g++ to make it several times faster."
        )
        return None
    try:
        return ctypes.CDLL(str(_compiled(compiler, chosen, home_folder(home) / "native")))
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.stderr.strip()[-500:] if isinstance(error, subprocess.CalledProcessError) else str(error)
        _log.warning("The native kernel could not be built, so the model decodes through torch: %s", reason)
        return None


def _compiled(compiler: str, flags: tuple[str, ...], folder: Path) -> Path:
    sources = sorted([*_SOURCE.glob("*.cpp"), *_SOURCE.glob("*.h")])
    digest = hashlib.sha256(repr((_FLAGS, flags, _processor())).encode())
    for source in sources:
        digest.update(source.read_bytes())
    target = folder / f"decoder-{digest.hexdigest()[:20]}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / target.name
        command = [compiler, *_FLAGS, *flags, str(_SOURCE / "decoder.cpp"), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        made.replace(target)  # whole or not at all, so that two processes may race
    return target


def _processor() -> str:
    """What `-march=native` depends on: a home may be shared by several kinds of machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.machine() + platform.processor()
