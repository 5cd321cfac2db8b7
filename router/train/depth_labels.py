"""How deep the local model has to think for a known answer: `python -m shoal.router.train.depth_labels`.

For every question with a reference answer the answer's likelihood is measured at whole numbers of layers that the
model's plan offers: the question is read at full depth and the answer under the plan's mask, as in decoding. The needed
depth is the shallowest one from which on every deeper one loses at most 0.05 nats per token against full depth; that
says something even where a small model would answer wrongly. Knows no router. Minutes on one core; a run that was
broken off goes on where it stopped.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .answered import answered
from .run import default_data

if TYPE_CHECKING:
    from ...gated_llm.model import Decoder, RunMask
    from ...gated_llm.train.samples import Sample

WITHIN = 0.05  # nats per token that a shallower answer may lose
PER_SOURCE = 75
NEAR = 3  # every whole depth so near the top is measured, and every third one below
LONGEST = 16  # tokens of an answer that are judged
PROMPT = 256  # tokens of the longest question
BATCH = 16
OUT = Path("benchmarks/out/depth_labels.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One question. `lost[i]` is what the answer loses in nats per token at `depths[i]` layers, shallowest first.

    `graded` is how hard its set says it is (steps, grade), None where it does not.
    """

    id: str
    source: str
    language: str
    split: str
    graded: int | None
    tokens: int
    full: float
    depths: tuple[int, ...]
    lost: tuple[float, ...]

    @property
    def needed(self) -> int:
        return needed(self.depths, self.lost)


def needed(depths: Sequence[int], lost: Sequence[float], *, within: float = WITHIN) -> int:
    """The shallowest of `depths` (rising) from which on every deeper one loses at most `within`."""
    best = depths[-1]
    for depth, loss in zip(reversed(depths), reversed(lost), strict=True):
        if loss > within:
            break
        best = depth
    return best


def key_of(question: str) -> str:
    return sha256(question.encode()).hexdigest()[:16]


def read_labels(path: Path) -> dict[str, Judged]:
    """What a run wrote, by id; empty where there is no file."""
    if not path.exists():
        return {}
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line)
    return {row["id"]: Judged(**{**row, "depths": tuple(row["depths"]), "lost": tuple(row["lost"])}) for row in rows}


def label(
    decoder: "Decoder", tokenizer: Any, plan: Any, questions: Sequence[Mapping[str, Any]], *, batch: int = BATCH
) -> Iterator[Judged]:
    """Judges questions, each with `prompt`, `answer`, `question`, `source`, `language`, `split` and `graded`."""
    from ...gated_llm.train.samples import Sample

    shallowest = math.ceil(plan.min_depth)
    near = range(max(shallowest, plan.total - NEAR), plan.total + 1)
    depths = tuple(sorted({*range(shallowest, plan.total, NEAR), *near}))
    masks = [plan.mask(plan.point_for(depth)) for depth in depths]
    ready = []
    for row in questions:
        prompt = tokenizer.encode_prompt(row["prompt"])
        answer = tokenizer.encode_text(row["answer"])[:LONGEST]
        if len(prompt) <= PROMPT and answer:
            ready.append((row, Sample(kind="answer", prefix=prompt, rest=answer)))
    ready.sort(key=lambda pair: len(pair[1].prefix))
    for at in range(0, len(ready), batch):
        part = ready[at : at + batch]
        losses = likelihoods(decoder, [sample for _, sample in part], masks)
        for i, (row, sample) in enumerate(part):
            full = losses[-1][i]
            yield Judged(
                id=key_of(row["question"]),
                source=row["source"],
                language=row["language"],
                split=row["split"],
                graded=row["graded"],
                tokens=len(sample.rest),
                full=round(full, 4),
                depths=depths,
                lost=tuple(round(each[i] - full, 4) for each in losses),
            )


def likelihoods(decoder: "Decoder", samples: "Sequence[Sample]", masks: "Sequence[RunMask]") -> list[list[float]]:
    """Per mask, each sample's mean negative log-likelihood of its continuation, in nats per token."""
    import torch
    from torch.nn.functional import cross_entropy

    from ...gated_llm.train.samples import batch_of

    batch = batch_of(samples)
    size, left = batch.prefix.shape
    with torch.inference_mode():
        cache = decoder.cache(left + batch.rest.shape[1], batch=size)
        if left:
            decoder.forward(batch.prefix, batch.prefix_at, cache, padded=True)
        mark = cache.mark()
        wanted = (batch.targets >= 0).flatten().nonzero().flatten()
        targets, owner = batch.targets.flatten()[wanted], wanted // batch.targets.shape[1]
        counts = torch.bincount(owner, minlength=size)
        found = []
        for mask in masks:
            cache.rewind(mark)
            hidden = decoder.forward(batch.rest, batch.rest_at, cache, mask, padded=True).flatten(0, 1)[wanted]
            loss = cross_entropy(decoder.logits(hidden), targets, reduction="none")
            found.append((torch.zeros(size).index_add_(0, owner, loss) / counts).tolist())
    return found


def chosen(root: Path, *, per_source: int = PER_SOURCE, seed: int = 0) -> list[dict[str, Any]]:
    """Questions with reference answers, at most `per_source` of each set, in an order fixed by `seed`."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in answered(root):
        groups.setdefault(row["source"], []).append(row)
    draw = random.Random(seed)
    rows = [row for group in groups.values() for row in draw.sample(group, min(per_source, len(group)))]
    draw.shuffle(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--per-source", type=int, default=PER_SOURCE)
    parser.add_argument("--most", type=int, help="questions of this run; the next run goes on with the others")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from ...gated_llm.checkpoint import fingerprint, read_tensors
    from ...gated_llm.config import DecoderConfig
    from ...gated_llm.model import Decoder
    from ...gated_llm.served import find_plan
    from ...gated_llm.tokenizer import ChatTokenizer
    from ...gated_llm.weights import DEFAULT_MODEL, locate

    folder = locate(DEFAULT_MODEL)
    config, weights = DecoderConfig.from_folder(folder), read_tensors(folder)
    plan, decoder = find_plan(folder, config, fingerprint(weights)), Decoder(config, weights, dtype="bf16")
    known = read_labels(args.out)
    rows = chosen(default_data(), per_source=args.per_source, seed=args.seed)
    left = [r for r in rows if key_of(r["question"]) not in known][: args.most]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a", encoding="utf-8") as file:
        for i, judged in enumerate(label(decoder, ChatTokenizer(folder), plan, left), 1):
            file.write(json.dumps(asdict(judged), separators=(",", ":")) + "\n")
            file.flush()
            if i % (4 * BATCH) == 0:
                print(f"{len(known) + i} of {len(rows)}", flush=True)
    labels = read_labels(args.out)
    spread: dict[int, int] = {}
    for each in labels.values():
        spread[each.needed] = spread.get(each.needed, 0) + 1
    print(f"{args.out}: {len(labels)} questions; needed layers: {dict(sorted(spread.items()))}")


if __name__ == "__main__":
    main()
