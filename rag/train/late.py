"""Train the reader's projections: token and sentence vectors of questions and passages that find each other.

Contrastive: among the passages of a batch (each question's own, and near ones that lack its answer) the right one is to
score highest by its tokens and by its best sentence, and among all their sentences the answering one. A third of the
questions are put into the other language word by word (`lexicon`). Takes about 15 minutes on two cores.

    python -m shoal.rag.train.late [--steps N]
"""

import argparse
import os
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from ..chunk import sentences
from ..embed import default_embedder
from ..encoder import TOKEN_DIM
from ..reading import ASSET
from .data import RUNS, Asked, Passage, load
from .lexicon import Lexicon

REDUCED = 320  # principal components of the token features that training sees; folded into the projections at the end
TOKEN, SENTENCE = 64, 128
BATCH, MAX_SENTENCE, MAX_QUESTION = 24, 64, 32


class Projections(nn.Module):
    """Token projections for questions and passages, token weights, sentence projections, and two temperatures."""

    def __init__(self) -> None:
        super().__init__()
        self.question_token = nn.Linear(REDUCED, TOKEN, bias=False)
        self.passage_token = nn.Linear(REDUCED, TOKEN, bias=False)
        self.passage_token.load_state_dict(self.question_token.state_dict())
        self.weight = nn.Linear(REDUCED, 1)
        nn.init.constant_(self.weight.bias, 1.0)
        self.question_sentence = nn.Linear(512, SENTENCE, bias=False)
        nn.init.normal_(self.question_sentence.weight, std=SENTENCE**-0.5)
        self.passage_sentence = nn.Linear(512, SENTENCE, bias=False)
        self.passage_sentence.load_state_dict(self.question_sentence.state_dict())
        self.scale, self.mix = nn.Parameter(torch.tensor(20.0)), nn.Parameter(torch.tensor(3.0))

    def forward(
        self, asked: tuple[Tensor, Tensor, Tensor], told: tuple[Tensor, Tensor, Tensor], owner: Tensor, passages: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of sentences [q, s], of passages by tokens [q, p] and by their best sentence [q, p].

        Questions and sentences come as (tokens [n, l, REDUCED], mask [n, l], vectors [n, 512]); owner [s].
        """
        tokens = functional.normalize(self.question_token(asked[0]), dim=-1)
        weights = functional.softplus(self.weight(asked[0])[..., 0]) * asked[1]
        weights = weights / weights.sum(1, keepdim=True)
        count, length, _ = tokens.shape
        against = functional.normalize(self.passage_token(told[0]), dim=-1)
        near = (tokens.reshape(-1, TOKEN) @ against.reshape(-1, TOKEN).T).reshape(count * length, *told[1].shape)
        near = near.masked_fill(told[1][None] == 0, -1.0).amax(-1)
        late = (near.reshape(count, length, -1) * weights[..., None]).sum(1)
        best = _best(near, owner, passages, -1.0)
        by_tokens = (best.reshape(count, length, -1) * weights[..., None]).sum(1) * self.scale
        ours = functional.normalize(self.question_sentence(asked[2]), dim=-1)
        theirs = functional.normalize(self.passage_sentence(told[2]), dim=-1)
        by_sentence = late * self.scale + ours @ theirs.T * self.mix
        return by_sentence, by_tokens, _best(by_sentence, owner, passages, -1e3)


def _best(scores: Tensor, owner: Tensor, passages: int, floor: float) -> Tensor:
    """[n, s] to [n, p]: the highest of each passage's sentences."""
    empty = torch.full((len(scores), passages), floor)
    return empty.scatter_reduce(1, owner[None].expand(len(scores), -1), scores, "amax")


class Features:
    """Reduced token features and sentence vectors of many texts, kept in half precision."""

    def __init__(self, texts: Sequence[str], mean: NDArray[np.float32], reduce: NDArray[np.float32]) -> None:
        parts, vectors, lengths = [], [], []
        for start in range(0, len(texts), 64):
            found = default_embedder().token_features(texts[start : start + 64], max_tokens=96)
            parts.append(((found.tokens - mean) @ reduce).astype(np.float16))
            vectors.append(found.vectors)
            lengths.append(np.diff(found.offsets))
        self._tokens, self.vectors = np.concatenate(parts), np.concatenate(vectors)
        self._offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])

    def batch(self, chosen: Sequence[int], longest: int) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens, mask, vectors) of the chosen texts, padded."""
        spans = [
            (int(self._offsets[i]), min(int(self._offsets[i + 1]), int(self._offsets[i]) + longest)) for i in chosen
        ]
        width = max(end - start for start, end in spans)
        tokens = np.zeros((len(chosen), width, REDUCED), np.float32)
        mask = np.zeros((len(chosen), width), np.float32)
        for row, (start, end) in enumerate(spans):
            tokens[row, : end - start], mask[row, : end - start] = self._tokens[start:end], 1
        return torch.from_numpy(tokens), torch.from_numpy(mask), torch.from_numpy(self.vectors[list(chosen)])


def principal(texts: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean [1280] and whitened principal components [1280, REDUCED] of the token features of some texts."""
    tokens = default_embedder().token_features(texts).tokens
    mean = tokens.mean(0)
    values, vectors = np.linalg.eigh(np.cov((tokens - mean).T))
    values, vectors = values[::-1], vectors[:, ::-1]
    reduce = vectors[:, :REDUCED] / np.sqrt(values[:REDUCED] + 0.1 * values.mean())
    return mean, reduce.astype(np.float32)


class Corpus:
    """Training questions with their passages, features, and near passages that lack the answer."""

    def __init__(self) -> None:
        passages, asked = load()
        self.passages = [one for one in passages if one.part == "train" and one.source != "squad2"]
        place = {one.name: i for i, one in enumerate(self.passages)}
        pairs = [(one, place[passages[one.passage].name]) for one in asked if passages[one.passage].name in place]
        self.asked: list[tuple[Asked, int]] = [(one, home) for one, home in pairs if one.answers]
        spans = [sentences(one.text) for one in self.passages]
        self.first = np.concatenate([[0], np.cumsum([len(one) for one in spans])])
        self.spans = spans
        said = [p.text[a:b] for p, cut in zip(self.passages, spans, strict=True) for a, b in cut]
        draw = random.Random(0)
        mean, reduce = principal([*draw.sample(said, 3000), *(one.text for one, _ in draw.sample(self.asked, 2000))])
        self.mean, self.reduce = mean, reduce
        lexicon = Lexicon([one.text for one in self.passages] + [one.text for one, _ in self.asked])
        self.said = Features(said, mean, reduce)
        self.questions = Features([one.text for one, _ in self.asked], mean, reduce)
        self.crossed = Features([lexicon.other(one.text) for one, _ in self.asked], mean, reduce)
        self.near = self._near()

    def answering(self, question: int) -> int | None:
        """The sentence at the question's first answer."""
        one, home = self.asked[question]
        at = one.answers[0][0]
        return next((int(self.first[home]) + i for i, (a, b) in enumerate(self.spans[home]) if a <= at < b), None)

    def _near(self) -> list[list[int]]:
        whole = np.stack([self.said.vectors[a:b].mean(0) if b > a else np.zeros(512) for a, b in self._ranges()])
        whole /= np.linalg.norm(whole, axis=1, keepdims=True) + 1e-6
        near = []
        for vector, (one, home) in zip(self.questions.vectors, self.asked, strict=True):
            order = np.argsort(-(whole @ vector))[:30]
            near.append([int(i) for i in order if i != home and not _holds(self.passages[i], one)][:20])
        return near

    def _ranges(self) -> list[tuple[int, int]]:
        return list(zip(self.first[:-1].tolist(), self.first[1:].tolist(), strict=True))


def _holds(passage: Passage, one: Asked) -> bool:
    return any(answer in passage.text for _, answer in one.answers)


def train(corpus: Corpus, steps: int) -> Projections:
    """The projections after so many steps of 24 questions."""
    torch.manual_seed(0)
    draw = random.Random(0)
    model = Projections()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 50) * max(0.02, 1 - s / steps))
    usable = [i for i in range(len(corpus.asked)) if corpus.answering(i) is not None]
    by_language = {
        language: [i for i in usable if corpus.passages[corpus.asked[i][1]].language == language]
        for language in ("en", "zh")
    }
    for step in range(steps):
        pool = by_language[draw.choice(["en", "zh"])] if draw.random() < 0.8 else usable
        loss = _loss(model, corpus, draw.sample(pool, BATCH), draw)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}  loss {loss.item():.3f}", flush=True)
    return model


def _loss(model: Projections, corpus: Corpus, chosen: Sequence[int], draw: random.Random) -> Tensor:
    homes = [corpus.asked[i][1] for i in chosen]
    others = [draw.choice(corpus.near[i]) for i in chosen if corpus.near[i]]
    passages = list(dict.fromkeys([*homes, *others]))
    said = [s for p in passages for s in range(corpus.first[p], corpus.first[p + 1])]
    owner = torch.tensor([k for k, p in enumerate(passages) for _ in range(corpus.first[p], corpus.first[p + 1])])
    plain, crossed = (source.batch(chosen, MAX_QUESTION) for source in (corpus.questions, corpus.crossed))
    asked = _mixed(plain, crossed, [draw.random() < 0.35 for _ in chosen])
    by_sentence, by_tokens, by_best = model(asked, corpus.said.batch(said, MAX_SENTENCE), owner, len(passages))
    home = torch.tensor([passages.index(p) for p in homes])
    right = torch.tensor([said.index(at) for i in chosen if (at := corpus.answering(i)) is not None])
    cross_entropy = functional.cross_entropy
    return (
        cross_entropy(by_sentence, right)
        + cross_entropy(by_tokens + by_best, home)
        + 0.5 * cross_entropy(by_tokens, home)
    )


def _mixed(
    plain: tuple[Tensor, Tensor, Tensor], crossed: tuple[Tensor, Tensor, Tensor], which: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Row by row the question as asked, or in the other language's words."""
    width = max(plain[1].shape[1], crossed[1].shape[1])
    take = torch.tensor(which)

    def wide(x: Tensor) -> Tensor:
        return functional.pad(x, (*(0, 0) * (x.dim() - 2), 0, width - x.shape[1]))

    return (
        torch.where(take[:, None, None], wide(crossed[0]), wide(plain[0])),
        torch.where(take[:, None], wide(crossed[1]), wide(plain[1])),
        torch.where(take[:, None], crossed[2], plain[2]),
    )


def folded(
    model: Projections, mean: NDArray[np.float32], reduce: NDArray[np.float32]
) -> dict[str, NDArray[np.generic]]:
    """The asset's arrays: principal components and mean folded into the projections."""
    weights = {name: tensor.detach().double().numpy() for name, tensor in model.state_dict().items()}
    arrays: dict[str, NDArray[np.generic]] = {}
    for name in ("question_token", "passage_token"):
        whole = reduce.astype(np.float64) @ weights[f"{name}.weight"].T
        arrays[name], arrays[f"{name}_bias"] = whole.astype(np.float16), (-mean @ whole).astype(np.float32)
    whole = reduce.astype(np.float64) @ weights["weight.weight"].T
    arrays["question_weight"] = whole[:, 0].astype(np.float16)
    arrays["question_weight_bias"] = (-mean @ whole + weights["weight.bias"]).astype(np.float32)
    for name in ("question_sentence", "passage_sentence"):
        arrays[name] = np.ascontiguousarray(weights[f"{name}.weight"].T).astype(np.float16)
    if arrays["question_token"].shape != (TOKEN_DIM, TOKEN):
        raise ValueError(f"projection of shape {arrays['question_token'].shape}, not {(TOKEN_DIM, TOKEN)}")
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=900)
    steps = parser.parse_args().steps
    corpus = Corpus()
    model = train(corpus, steps)
    heads = {k: v for k, v in load_file(ASSET).items() if k.startswith(("rerank", "extract"))} if ASSET.exists() else {}
    draft = Path(f"{ASSET}.{os.getpid()}")
    save_file({**folded(model, corpus.mean, corpus.reduce), **heads}, draft)
    os.replace(draft, ASSET)
    RUNS.mkdir(parents=True, exist_ok=True)
    print(f"wrote {ASSET}; now fit the networks over its matches: python -m shoal.rag.train.heads")


if __name__ == "__main__":
    main()
