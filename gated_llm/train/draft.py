"""Trains the draft network of `gated_llm.draft` on the model's own answers (G16).

`python -m shoal.gated_llm.train.draft collect` writes answers and hidden states in shards, `fit` trains on them and
writes the asset. Both stop after `--minutes` and go on where they were. The loss is that of the token which the model
chose, mixed with the model's own distribution over the short list, over as many steps as drafts are long.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checkpoint import fingerprint, read_tensors
from ..config import DecoderConfig
from ..native import NativeDecoder
from ..tokenizer import ChatTokenizer
from ..weights import DEFAULT_MODEL, locate
from .answers import collect

_STEPS = 3  # drafts in a row that are trained
_WEIGHTS = (1.0, 0.8, 0.6)
_SAVE_EVERY = 50
CONFIG = Path(__file__).parent / "configs" / "draft.json"


def unit(x: Tensor) -> Tensor:
    """`x` with mean square 1 over its last axis."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class Network(nn.Module):
    """What `TrainedDraft` computes, over batches. The head begins as the model's own, in its principal directions."""

    def __init__(self, head: Tensor, dim: int, inner: int, dropout: float) -> None:
        super().__init__()
        hidden, self._dropout = head.shape[1], dropout
        directions = torch.linalg.svd(head, full_matrices=False)[2][:dim].clone()
        small = head @ directions.T
        self.project, self.repeat = nn.Parameter(directions.contiguous()), nn.Parameter(torch.eye(dim))
        self.embed = nn.Parameter(torch.randn(dim, hidden) * 0.5 / math.sqrt(3 * hidden))
        self.norm = nn.Parameter(torch.ones(dim))
        self.inner = nn.Parameter(torch.randn(2 * inner, dim) / math.sqrt(3 * dim))
        self.down = nn.Parameter(torch.randn(dim, inner) * 0.1 / math.sqrt(3 * inner))
        self.head = nn.Parameter(torch.cat([small, small.mean(0, keepdim=True)]))
        self.bias = nn.Parameter(torch.zeros(len(self.head)))

    def step(self, vector: Tensor, embedded: Tensor) -> Tensor:
        vector, embedded = self._drop(vector), self._drop(embedded)
        mixed = vector @ self.repeat.T + embedded @ self.embed.T
        gate, up = ((unit(mixed) * self.norm) @ self.inner.T).chunk(2, -1)
        return unit(mixed + self._drop(F.silu(gate) * up) @ self.down.T)

    def logits(self, vector: Tensor) -> Tensor:
        return (vector @ self.head.T + self.bias).float()

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self._dropout, self.training)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers end to end: `states[i]` chose `tokens[i]`, and `left[i]` more follow in the same answer."""

    tokens: Tensor
    states: Tensor
    left: Tensor

    @classmethod
    def read(cls, paths: list[Path]) -> "Answers":
        parts = [np.load(path) for path in paths]
        left = [np.arange(b - a)[::-1] for part in parts for a, b in zip(part["starts"], part["starts"][1:])]  # noqa: B905
        return cls(
            tokens=torch.from_numpy(np.concatenate([part["tokens"] for part in parts])).long(),
            states=torch.from_numpy(np.concatenate([part["states"] for part in parts])),
            left=torch.from_numpy(np.concatenate(left).copy()),
        )


class Fit:
    """One training run; `network`, optimiser and step are kept in `folder` from run to run."""

    def __init__(self, weights: Mapping[str, Tensor], folder: Path, config: Mapping[str, Any]) -> None:
        torch.manual_seed(config["seed"])
        paths = sorted(folder.glob("[0-9]*.npz"))
        self.train, self.held_out = Answers.read(paths[:-1]), Answers.read(paths[-1:])
        embedding, norm = weights["model.embed_tokens.weight"].float(), weights["model.norm.weight"].float()
        output = weights.get("lm_head.weight", embedding).float()
        counts = torch.bincount(self.train.tokens, minlength=len(output))
        self.short = counts.topk(config["short_list"]).indices
        self._place = torch.full((len(output),), len(self.short)).index_put_(
            (self.short,), torch.arange(len(self.short))
        )
        self._teacher = (output[self.short] * norm).to(torch.bfloat16)
        self._embedded = unit(embedding).to(torch.bfloat16)
        self.network = Network(output[self.short] * norm, config["dim"], config["inner"], config["dropout"])
        self._config, self._kept, self._step = config, folder / "fit.safetensors", 0
        matrices = [p for name, p in self.network.named_parameters() if p.ndim == 2 and name != "head"]
        others = [p for name, p in self.network.named_parameters() if p.ndim == 1 or name == "head"]
        self._rates = (config["rate"], 0.3 * config["rate"])
        groups = [{"params": matrices, "weight_decay": config["decay"]}, {"params": others, "weight_decay": 0.0}]
        self._optimiser = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98))

    def run(self, minutes: float) -> Iterator[str]:
        """Goes on where the last run stopped, for so long or to the end; lines to print."""
        self._resume()
        start = time.monotonic()
        while self._step < self._config["steps"] and time.monotonic() - start < 60 * minutes:
            loss = self.learn(_SAVE_EVERY)
            yield f"step {self._step}: loss {loss:.3f}, held out {self.check()}"
        yield f"step {self._step} of {self._config['steps']}: held out {self.check()}"

    def learn(self, steps: int) -> float:
        """So many steps, or fewer to the end, and keeps the state; their mean loss."""
        starts, losses = torch.nonzero(self.train.left >= 1)[:, 0], []
        for _ in range(min(steps, self._config["steps"] - self._step)):
            chosen = torch.Generator().manual_seed(self._config["seed"] + self._step)
            torch.manual_seed(self._config["seed"] + self._step)  # dropout
            at = starts[torch.randint(len(starts), (self._config["batch"],), generator=chosen)]
            losses.append(self._learn(at))
            self._step += 1
        self._save()
        return float(np.mean(losses))

    def check(self, most: int = 8000) -> list[float]:
        """The share of held-out tokens that are guessed right, for each place in a draft whose earlier places are."""
        return [round(float(right.float().mean()), 4) for _, right in self._guesses(most)]

    def calibration(self, most: int = 20_000) -> tuple[float, float]:
        """Scale and shift of the log-odds of a guess, by logistic regression on held-out guesses."""
        pairs = list(self._guesses(most))
        odds, right = torch.cat([o for o, _ in pairs]), torch.cat([r for _, r in pairs]).float()
        both = torch.tensor([1.0, 0.0], requires_grad=True)
        optimiser = torch.optim.LBFGS([both], max_iter=100)

        def loss() -> Tensor:
            optimiser.zero_grad()
            value = F.binary_cross_entropy_with_logits(both[0] * odds + both[1], right)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimiser.step(loss)  # type: ignore[no-untyped-call]
        return float(both[0].detach()), float(both[1].detach())

    def export(self, path: Path, model_fingerprint: str) -> None:
        """Writes the asset, in fp16."""
        from safetensors.numpy import save_file

        arrays = {name: p.detach().numpy().astype(np.float16) for name, p in self.network.named_parameters()} | {
            "tokens": self.short.numpy().astype(np.int32),
            "calibration": np.array(self.calibration(), np.float32),
        }
        about = {"model": model_fingerprint, "step": self._step, "held out": self.check(20_000)}
        save_file(arrays, path, metadata={"draft": json.dumps(about)})
        path.chmod(0o644)

    def _learn(self, at: Tensor) -> float:
        done = self._step / self._config["steps"]
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * min(1, (self._step + 1) / 50) * (0.05 + 0.475 * (1 + math.cos(math.pi * done)))
        self.network.train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self._loss(at)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimiser.step()
        return float(loss.detach())

    def _loss(self, at: Tensor) -> Tensor:
        data, hard = self.train, self._config["hard"]
        vector, total = data.states[at].float() @ self.network.project.T, torch.zeros(())
        for step, weight in enumerate(_WEIGHTS):
            there = data.left[at] > step
            after = (at + step + 1).clamp(max=len(data.tokens) - 1)
            vector = self.network.step(vector, self._embedded[data.tokens[after - 1]])
            logp, target = self.network.logits(vector).log_softmax(1), self._place[data.tokens[after]]
            with torch.no_grad():
                teacher = (data.states[after].to(torch.bfloat16) @ self._teacher.T).float().softmax(1)
            chosen = -logp.gather(1, target[:, None])[:, 0]
            mixed = hard * chosen - (1 - hard) * (teacher * logp[:, :-1]).sum(1)
            loss = torch.where(target < len(self.short), mixed, chosen)
            total = total + weight * (loss * there).sum() / there.sum().clamp(min=1)
        return total

    @torch.inference_mode()
    def _guesses(self, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each place in a draft: log-odds of guesses, and which were right, after guesses that all were."""
        data = self.held_out
        at = torch.nonzero(data.left >= 1)[:, 0]
        at = at[torch.randperm(len(at), generator=torch.Generator().manual_seed(1))[:most]]
        self.network.eval()
        vector = data.states[at].float() @ self.network.project.T
        for step in range(_STEPS):
            vector = self.network.step(vector, self._embedded[data.tokens[at + step]].float())
            logits, target = self.network.logits(vector), self._place[data.tokens[at + step + 1]]
            best, guess = logits[:, :-1].max(1)
            others = (logits - best[:, None]).exp().sum(1) - 1
            right = guess == target
            yield -others.clamp(min=1e-6).log(), right
            going = right & (data.left[at] > step + 1)
            at, vector = at[going], vector[going]

    def _save(self) -> None:
        from safetensors.torch import save_file

        state = self._optimiser.state_dict()["state"]
        moments = {f"{i}.{name}": value for i, one in state.items() for name, value in one.items()}
        scratch = self._kept.with_suffix(".new")
        save_file({**self.network.state_dict(), **moments}, scratch, metadata={"step": str(self._step)})
        scratch.replace(self._kept)

    def _resume(self) -> None:
        from safetensors import safe_open

        if not self._kept.exists():
            return
        with safe_open(self._kept, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self._step = int(file.metadata()["step"])
        self.network.load_state_dict({name: tensors[name] for name in self.network.state_dict()})
        state: dict[int, dict[str, Tensor]] = {}
        for name in tensors:
            number, _, moment = name.partition(".")
            if number.isdigit():
                state.setdefault(int(number), {})[moment] = tensors[name]
        self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": state})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("collect", "fit"))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SHOAL_DATA", "../shared/data")))
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--folder", type=Path, default=Path("runs/draft"))
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--out", type=Path, help="where `fit` writes the asset once it is through")
    chosen = parser.parse_args()
    model, config = locate(chosen.model), json.loads(chosen.config.read_text("utf-8"))
    weights = read_tensors(model)
    if chosen.what == "collect":
        start = time.monotonic()
        kernel = NativeDecoder(DecoderConfig.from_folder(model), weights, threads=torch.get_num_threads(), kv="bf16")
        for path in collect(kernel, ChatTokenizer(model), chosen.data, chosen.folder, config["answers"]):
            print(path, flush=True)
            if time.monotonic() - start > 60 * chosen.minutes:
                return
    else:
        fit = Fit(weights, chosen.folder, config["fit"])
        for line in fit.run(chosen.minutes):
            print(line, flush=True)
        if chosen.out is not None:
            fit.export(chosen.out, fingerprint(weights))


if __name__ == "__main__":
    main()
