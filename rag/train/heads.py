"""Fit the two small networks of the reader: P(passage answers) for reranking, P(sentence answers) for extraction.

Uses the running code for everything up to the features, so that training and serving cannot differ. Writes them into
`rag/assets/reader.safetensors` beside the projections and prints what they do on held-out articles.

    python -m shoal.rag.train.heads
"""

import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from .. import extract, rerank
from ..knowledge_base import KnowledgeBase, passage_of
from ..reading import ASSET, default_reader, match
from ..retrieve import Candidate
from .data import RUNS, Asked, Passage, load
from .lexicon import Lexicon

HIDDEN = 24


@dataclass(frozen=True, slots=True)
class List:
    """The candidates of a question, their features [n, f], and which hold the answer [n]."""

    question: str
    found: list[Candidate]
    rows: NDArray[np.float64]
    gold: NDArray[np.float64]
    answers: tuple[tuple[int, str], ...]
    doc_id: str


def base_of(passages: Sequence[tuple[int, Passage]], name: str) -> KnowledgeBase:
    """A knowledge base of the passages; kept in the runs folder between runs with the same projections."""
    base = KnowledgeBase.open(RUNS / f"{name}-{default_reader().fingerprint[:12]}")
    for _, passage in passages if len(base) == 0 else []:
        base.add_text(passage.text, passage.name)
    return base


def lists(base: KnowledgeBase, asked: Sequence[tuple[str, Asked, Passage]]) -> list[List]:
    """First stage and features of every question."""
    reader, out = default_reader(), []
    shared: dict[str, Candidate] = {}  # one copy of each passage, or thousands of lists would not fit in memory
    for question, one, passage in asked:
        found = [_lean(c, shared.setdefault(c.row.chunk_id, c)) for c in base.candidates(question)]
        query = reader.ask(question)
        rows = rerank.features(question, found, [match(query, c.reading) for c in found])
        gold = np.array([_holds(c, one, passage) for c in found], np.float64)
        out.append(List(question, found, rows, gold, one.answers, passage.name))
    return out


def _lean(candidate: Candidate, first: Candidate) -> Candidate:
    return replace(candidate, row=first.row, reading=first.reading)


def _holds(candidate: Candidate, one: Asked, passage: Passage) -> bool:
    row = candidate.row
    inside = any(row.start <= start and start + len(text) <= row.end for start, text in one.answers)
    return row.doc_id == passage.name and inside


def without_gold(one: List) -> List:
    """The same question to a knowledge base that does not hold the answer."""
    keep = [i for i, c in enumerate(one.found) if c.row.doc_id != one.doc_id]
    return replace(one, found=[one.found[i] for i in keep], rows=one.rows[keep], gold=one.gold[keep], answers=())


def without_words(one: List) -> List:
    """The same list as if no word were shared, as between languages: features 5, 6, 10 and 15 are about words."""
    rows = one.rows.copy()
    rows[:, [5, 6, 10, 15]] = 0.0
    return replace(one, rows=rows)


def fit(
    groups: Sequence[NDArray[np.float64]], golds: Sequence[NDArray[np.float64]], *, listwise: float, seed: int = 0
) -> dict[str, NDArray[np.float32]]:
    """A network over feature rows of lists: cross-entropy within a list that has gold, log loss on every row."""
    torch.manual_seed(seed)
    every = np.concatenate(groups)
    mean, scale = every.mean(0), every.std(0) + 1e-3
    width = max(map(len, groups))
    x = torch.zeros(len(groups), width, every.shape[1])
    y, mask = torch.zeros(len(groups), width), torch.zeros(len(groups), width)
    for i, (rows, gold) in enumerate(zip(groups, golds, strict=True)):
        x[i, : len(rows)] = torch.from_numpy((rows - mean) / scale).float()
        y[i, : len(rows)], mask[i, : len(rows)] = torch.from_numpy(gold).float(), 1
    first, second = torch.nn.Linear(x.shape[2], HIDDEN), torch.nn.Linear(HIDDEN, 1)
    net = torch.nn.Sequential(first, torch.nn.Tanh(), second)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.02)
    epochs, batch = 30, 256
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(groups) // batch + 1))
    for _ in range(epochs):
        for part in torch.split(torch.randperm(len(groups)), batch):
            logits = net(x[part])[..., 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y[part], mask[part], reduction="sum")
            loss = loss / len(part)
            with_gold = y[part].sum(1) > 0
            if listwise and with_gold.any():
                log_share = (logits + torch.log(mask[part] + 1e-12)).log_softmax(1)[with_gold]
                target = y[part][with_gold] / y[part][with_gold].sum(1, keepdim=True)
                loss = loss - listwise * (target * log_share.clamp(min=-30)).sum(1).mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    return {
        "mean": mean.astype(np.float32),
        "scale": scale.astype(np.float32),
        "w1": first.weight.detach().numpy().T.copy(),
        "b1": first.bias.detach().numpy().copy(),
        "w2": second.weight.detach().numpy()[0].copy(),
        "b2": second.bias.detach().numpy().copy(),
    }


def named(weights: dict[str, NDArray[np.float32]], name: str) -> dict[str, NDArray[np.float32]]:
    """Keys as the asset has them."""
    return {f"{name}_{key}": value for key, value in weights.items()}


def sentence_lists(
    found: Sequence[List], weights: dict[str, NDArray[np.float32]]
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    """Features, gold (the sentence at the answer) and containment (the answer string is in it) per question."""
    reader = default_reader()
    groups, golds, contained = [], [], []
    for one in found:
        scores = rerank.sigmoid(rerank.network(one.rows, weights, "rerank"))
        order = np.argsort(-scores, kind="stable")[: extract.PASSAGES]
        passages = [passage_of(float(scores[i]), one.found[i]) for i in order]
        query = reader.ask(one.question)
        places, rows = extract.features(one.question, passages, [match(query, p.reading) for p in passages])
        if not places:
            continue
        gold, holds = [], []
        for place, segment in places:
            passage = passages[place]
            start, end = (int(v) + passage.start for v in passage.reading.spans[segment])
            text = passage.text[start - passage.start : end - passage.start]
            gold.append(passage.doc_id == one.doc_id and any(start <= at < end for at, _ in one.answers))
            holds.append(any(answer in text for _, answer in one.answers))
        groups.append(rows)
        golds.append(np.array(gold, np.float64))
        contained.append(np.array(holds, np.float64))
    return groups, golds, contained


def recall_at_1(found: Sequence[List], weights: dict[str, NDArray[np.float32]]) -> tuple[float, float]:
    """(fused, reranked): how often the first candidate holds the answer."""
    reranked = [one.gold[int(np.argmax(rerank.network(one.rows, weights, "rerank")))] for one in found]
    return float(np.mean([one.gold[0] for one in found])), float(np.mean(reranked))


def coverage_table(confidence: NDArray[np.float64], right: NDArray[np.float64], answerable: int) -> list[str]:
    """Lines: threshold, share answered, precision, share of the answerable answered right."""
    lines = []
    for threshold in (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9):
        said = confidence >= threshold
        precision = right[said].mean() if said.any() else float("nan")
        lines.append(
            f"  {threshold:.2f}  answered {said.mean():.3f}  precision {precision:.3f}  "
            f"right {right[said].sum() / answerable:.3f}"
        )
    return lines


def main() -> None:
    passages, asked = load()
    pairs = [(one, passages[one.passage]) for one in asked]
    lexicon = Lexicon([p.text for p in passages if p.source != "squad2"] + [a.text for a, p in pairs])
    draw = random.Random(1)
    data: dict[tuple[str, str], list[List]] = {}
    for part, limit in (("fit", 1600), ("val", 600)):
        for source in ("squad1", "nq", "cmrc", "squad2"):
            base = base_of(
                [(i, p) for i, p in enumerate(passages) if (p.part, p.source) == (part, source)], f"{part}-{source}"
            )
            mine = [(a, p) for a, p in pairs if (p.part, p.source) == (part, source)]
            mine = draw.sample(mine, min(limit, len(mine)))
            data[part, source] = lists(base, [(a.text, a, p) for a, p in mine])
            if source in ("squad1", "cmrc"):
                some = mine[: limit // 2]
                data[part, f"{source}-crossed"] = lists(base, [(lexicon.other(a.text), a, p) for a, p in some])
            base.close()
            print(part, source, len(mine), flush=True)
    ranking = [one for key in data if key[0] == "fit" and key[1] != "squad2" for one in data[key]]
    ranking += [without_words(one) for key in data if key[0] == "fit" and "crossed" in key[1] for one in data[key]]
    ranking += [without_gold(one) for one in ranking if draw.random() < 0.25]
    weights = named(fit([one.rows for one in ranking], [one.gold for one in ranking], listwise=1.0), "rerank")
    for key, found in data.items():
        if key[0] == "val":
            print("recall@1 fused, reranked:", key[1], len(found), recall_at_1(found, weights), flush=True)
    train = [one for key in data if key[0] == "fit" for one in data[key]]
    train += [without_gold(one) for one in train if draw.random() < 0.4]
    groups, golds, _ = sentence_lists(train, weights)
    weights |= named(fit(groups, golds, listwise=0.5), "extract")
    report(data, weights, draw)
    stored = {key: value for key, value in load_file(ASSET).items() if not key.startswith(("rerank", "extract"))}
    with tempfile.NamedTemporaryFile(dir=ASSET.parent, delete=False) as file:
        draft = Path(file.name)
    save_file({**stored, **weights}, draft)
    os.chmod(draft, 0o644)
    os.replace(draft, ASSET)


def report(
    data: dict[tuple[str, str], list[List]], weights: dict[str, NDArray[np.float32]], draw: random.Random
) -> None:
    """Precision at coverage on held-out articles: as they are, and with a third of the answers taken away."""
    for source in ("squad1", "nq", "cmrc", "squad2", "squad1-crossed", "cmrc-crossed"):
        found = data["val", source]
        mixed = [without_gold(one) if draw.random() < 0.33 else one for one in found]
        groups, _, contained = sentence_lists(mixed, weights)
        best = [np.argmax(rerank.network(rows, weights, "extract")) for rows in groups]
        chances = np.array(
            [rerank.sigmoid(rerank.network(rows, weights, "extract"))[i] for rows, i in zip(groups, best, strict=True)]
        )
        right = np.array([holds[i] for holds, i in zip(contained, best, strict=True)])
        print(f"extract {source}: {len(right)} questions, {sum(bool(one.answers) for one in mixed)} answerable")
        print("\n".join(coverage_table(chances, right, sum(bool(one.answers) for one in mixed))), flush=True)


if __name__ == "__main__":
    main()
