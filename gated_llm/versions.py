"""The sets of learned gates that a file has held, so that each can come back (G15).

Beside `gates.safetensors` lies `gates.versions`, with every set as it was (`0002.safetensors`) and why it came
(`0002.json`). A set is in place whole or not at all: it is kept as a version first, then the file is replaced in one
step, so that a process that dies between leaves the old set in place. Knows no training.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from filelock import FileLock

from .errors import PlanError
from .gates import Gates
from .served import gates_file, gates_name

KEPT = 50  # versions; of more, the oldest but the first go


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """`at`: when it came, ISO 8601 in UTC; `figures`: what was measured of it then; `current`: it is in place."""

    number: int
    at: str
    reason: str
    fingerprint: str
    current: bool
    figures: Mapping[str, Any] = field(default_factory=dict)


class Versions:
    """Of the gates in `path`, which `shipped` stands in for while there is no such file."""

    def __init__(self, path: Path, *, shipped: Path | None = None) -> None:
        self.path, self._shipped = path, shipped
        self.folder = path.with_name(f"{path.stem}.versions")

    @classmethod
    def of(cls, folder: Path, adapter: str | None = None) -> Self:
        """Of the gates of the model in `folder`, or of an adapter for it."""
        return cls(folder / gates_name(adapter), shipped=gates_file(folder, adapter))

    def known(self) -> tuple[Version, ...]:
        """Oldest first. Raises PlanError where a version is damaged."""
        now = self.digest()
        found = [
            Version(number=n, fingerprint=Gates.read(file).fingerprint, current=_digest(file) == now, **self._note(n))
            for n, file in self._files().items()
        ]
        last = max((one.number for one in found if one.current), default=0)  # the same set may have come twice
        return tuple(one if one.number == last else replace(one, current=False) for one in found)

    def digest(self) -> str:
        """Of the set that is in place; empty where there is none."""
        file = self._in_place()
        return "" if file is None else _digest(file)

    def adopt(self, gates: Gates, *, reason: str, figures: Mapping[str, Any], instead_of: str | None = None) -> int:
        """Puts a set in place and keeps it, and the one before it, as versions; returns its number.

        `instead_of`: the digest of the set that it was made from. Raises PlanError where another is in place by now.
        """
        with self._lock():
            if instead_of is not None and self.digest() != instead_of:
                raise PlanError(f"{self.path} has changed meanwhile: nothing was replaced. Start again.")
            files = self._files()
            old = self._in_place()
            if old is not None and _digest(old) not in {_digest(file) for file in files.values()}:
                files[self._keep(old.read_bytes(), files, "as found", {})] = old
            scratch = self.folder / "next"
            gates.write(scratch)
            number = self._keep(scratch.read_bytes(), files, reason, figures)
            scratch.unlink()
            _put(self.path, self._file(number).read_bytes())
            for extra in list(self._files())[1 : 1 - KEPT]:
                self._file(extra).unlink()
                self._file(extra).with_suffix(".json").unlink(missing_ok=True)
            return number

    def rollback(self, to: int | None = None) -> Version:
        """Puts a version back in place, byte for byte; without `to`, the one before the present. Raises PlanError."""
        with self._lock():
            versions = {version.number: version for version in self.known()}
            now = next((number for number, version in versions.items() if version.current), None)
            earlier = [number for number in versions if now is None or number < now]
            if to is None and not earlier:
                raise PlanError(f"{self.folder} holds nothing earlier than what is in place.")
            to = max(earlier) if to is None else to
            if to not in versions:
                known = ", ".join(map(str, versions)) or "none"
                raise PlanError(f"{self.folder} has no version {to}; there is {known}. See `shoal gates versions`.")
            file, present = self._file(to), self._in_place()
            was = None
            with suppress(PlanError):  # what is in place may be damaged: that is what one rolls back from
                was = None if present is None else Gates.read(present)
            if was is not None:
                Gates.read(file).check(was.layers, was.weight.shape[2], was.model_fingerprint, file)
            _put(self.path, file.read_bytes())
            return versions[to]

    def _in_place(self) -> Path | None:
        return next((p for p in (self.path, self._shipped) if p is not None and p.exists()), None)

    def _files(self) -> dict[int, Path]:
        return {int(path.stem): path for path in sorted(self.folder.glob("[0-9]*.safetensors"))}

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:04}.safetensors"

    def _note(self, number: int) -> dict[str, Any]:
        try:
            note = json.loads(self._file(number).with_suffix(".json").read_text("utf-8"))
            return {name: note[name] for name in ("at", "reason", "figures")}
        except (OSError, ValueError, KeyError, TypeError):
            return {"at": "", "reason": "not known"}

    def _keep(self, body: bytes, files: Mapping[int, Path], reason: str, figures: Mapping[str, Any]) -> int:
        number = max(files, default=0) + 1
        at = datetime.now(UTC).isoformat(timespec="seconds")
        note = {"at": at, "reason": reason, "figures": dict(figures)}
        _put(self._file(number).with_suffix(".json"), json.dumps(note).encode())
        _put(self._file(number), body)
        return number

    def _lock(self) -> FileLock:
        self.folder.mkdir(exist_ok=True)
        return FileLock(self.folder / "lock", timeout=30)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _put(path: Path, body: bytes) -> None:
    """Writes a file whole or not at all, also where the power fails."""
    scratch = path.with_name(f"{path.name}.new")
    with scratch.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
