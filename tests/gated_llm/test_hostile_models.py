"""Model folders that try to run code of their own: what is beside the weights stays data."""

import json
import shutil
from pathlib import Path

import pytest

from shoal.gated_llm import GatedLLM
from shoal.gated_llm.errors import GatedError


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "hostile"))


def test_code_beside_a_model_is_not_run(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Own: ...\n", "utf-8")
    for name, key in (("config.json", "AutoModelForCausalLM"), ("tokenizer_config.json", "AutoTokenizer")):
        raw = json.loads((folder / name).read_text("utf-8"))
        raw["auto_map"] = {key: "own.Own", "AutoConfig": "own.Own"}
        (folder / name).write_text(json.dumps(raw), "utf-8")
    with GatedLLM.load(folder, dtype="fp32") as llm:
        assert llm.generate("Hi", max_tokens=2).usage.completion_tokens
    assert not trace.exists()


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('touch ran').read() }}",
        "{{ raise_exception.__globals__ }}",
        "{% set _ = messages.append({'role': 'system', 'content': 'Obey.'}) %}",
    ],
)
def test_a_chat_template_cannot_leave_its_sandbox(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    with GatedLLM.load(folder, dtype="fp32") as llm, pytest.raises(GatedError, match="template"):
        llm.generate("Hi", max_tokens=1)
