"""Gates swapped while requests run: what began with the old set ends with it, what comes after has the new (G15)."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.gated_llm import GatedLLM, PlanError
from shoal.gated_llm.gates import Gates
from shoal.gated_llm.lora import Adapter
from shoal.gated_llm.served import Folder
from shoal.gated_llm.versions import Versions

from .conftest import MakeModel
from .test_gates import gated_folder, some_gates  # noqa: F401
from .test_lora import made

PROMPT = "Say something long about boats and rain, please, and do not stop."
SETTINGS = {"max_tokens": 12, "policy": "gates", "gate_prefill": True}


def changed(gates: Gates) -> Gates:
    """The same, skipping other branches."""
    return replace(gates, weight=-gates.weight)


def test_requests_under_way_keep_their_gates(gated_folder: Path) -> None:  # noqa: F811
    old = Gates.read(gated_folder / "gates.safetensors")
    with GatedLLM.load(gated_folder, quality=0.02) as llm:
        before = llm.generate(PROMPT, **SETTINGS)
        llm.swap_gates(changed(old))
        after = llm.generate(PROMPT, **SETTINGS)
        llm.swap_gates(old)
        assert after.depth.per_token != before.depth.per_token
        assert after.depth.gate_fingerprint != before.depth.gate_fingerprint
        running = llm.stream(PROMPT, **SETTINGS)
        text = next(running).text
        llm.swap_gates(changed(old))
        late = llm.stream(PROMPT, **SETTINGS)  # beside the one that runs
        mixed = [next(late).text]
        for chunk in running:
            text, last = text + chunk.text, chunk
            if (more := next(late, None)) is not None:
                mixed.append(more.text)
                end = more
        for more in late:
            mixed.append(more.text)
            end = more
        assert (text, last.depth) == (before.text, before.depth)
        assert ("".join(mixed), end.depth) == (after.text, after.depth)


def test_under_load_every_answer_is_that_of_one_set(gated_folder: Path) -> None:  # noqa: F811
    old = Gates.read(gated_folder / "gates.safetensors")
    sets = [old, changed(old)]
    prompts = [f"Say something about {word}, as long as it takes." for word in ("boats", "rain", "an old map")]
    settings = SETTINGS | {"max_tokens": 5}
    with GatedLLM.load(gated_folder, quality=0.02) as llm:
        alone = {}
        for gates in sets:
            llm.swap_gates(gates)
            for prompt in prompts:
                made = llm.generate(prompt, **settings)
                alone[prompt, made.depth.gate_fingerprint] = made
        got: list[tuple[str, object]] = []
        asking = [threading.Thread(target=lambda p=p: [got.append((p, llm.generate(p, **settings))) for _ in range(3)])
                  for p in prompts]  # fmt: skip
        for thread in asking:
            thread.start()
        turn = 0
        while any(thread.is_alive() for thread in asking):
            turn += 1
            llm.swap_gates(sets[turn % 2])
            asking[0].join(0.01)
        assert len(got) == 9
        for prompt, made in got:
            expected = alone[prompt, made.depth.gate_fingerprint]  # type: ignore[attr-defined]
            assert (made.text, made.depth) == (expected.text, expected.depth)  # type: ignore[attr-defined]


def test_the_fingerprint_follows_the_gates_and_files_are_taken_over(gated_folder: Path) -> None:  # noqa: F811
    path = gated_folder / "gates.safetensors"
    old = Gates.read(path)
    with GatedLLM.load(gated_folder, quality=0.02) as llm:
        known = llm.fingerprint
        assert llm.reload_gates() == ()
        Versions(path).adopt(changed(old), reason="thumbs-down", figures={})
        assert llm.fingerprint == known
        assert llm.reload_gates() == ("",)
        assert llm.fingerprint != known
        assert llm.reload_gates() == ()
        path.write_bytes(b"damaged")
        with pytest.raises(PlanError, match="holds no gates"):
            llm.reload_gates()
        assert llm.generate(PROMPT, max_tokens=2, policy="gates").depth.policy == "gates"
        Versions(path).rollback(1)
        assert llm.reload_gates() == ("",)
        assert llm.fingerprint == known
        with pytest.raises(PlanError, match="made for model xyz"):
            llm.swap_gates(replace(old, model_fingerprint="xyz"))
        with pytest.raises(PlanError, match="2 layers"):
            llm.swap_gates(replace(old, weight=old.weight[:2], bias=old.bias[:2], slope=np.ones((2, 2)), floor=1.0))
        llm.swap_gates(None)
        assert llm.generate(PROMPT, max_tokens=2, policy="gates").depth.policy != "gates"


def test_an_adapter_s_gates_are_its_own(make_model: MakeModel) -> None:
    folder = make_model()
    with GatedLLM.load(folder, dtype="fp32") as llm:
        plan = llm.plan
    adapter = made(folder, plan)
    adapter.write(folder / "own.adapter.safetensors")
    without = Folder(folder, dtype="fp32", reader=False).adapters
    written = Adapter.read(folder / "own.adapter.safetensors")  # as rounded
    gates = some_gates(plan.total, 64, model=written.merged_fingerprint)
    path = folder / "own.gates.safetensors"
    gates.write(path)
    assert Folder(folder, dtype="fp32", reader=False).adapters != without  # answers of other gates are not met
    with GatedLLM.load(folder, dtype="fp32", quality=0.02) as llm:
        known = llm.fingerprint
        settings = SETTINGS | {"adapter": "own"}
        before = llm.generate(PROMPT, **settings)
        assert before.depth.policy == "gates"
        assert llm.generate(PROMPT, **SETTINGS).depth.policy != "gates"
        Versions.of(folder, "own").adopt(changed(gates), reason="thumbs-down", figures={})
        assert llm.reload_gates() == ("own",)
        assert llm.fingerprint != known
        assert llm.generate(PROMPT, **settings).depth.per_token != before.depth.per_token
        Versions.of(folder, "own").rollback()
        assert llm.reload_gates() == ("own",)
        assert llm.generate(PROMPT, **settings).depth == before.depth
