"""Fits how sure an FAQ match must be (R3): `python -m shoal.router.train.faq_fit`.

FAQs are made of sets of paraphrases: an entry per intent or question, with a few phrasings; a third of the entries is
left out, so that their questions are near-misses. Asked are other phrasings, near-misses, CLINC's out-of-scope requests
and questions of other sets. The weights come from the training split, the threshold from the calibration split: the
lowest at which at most `BUDGET` of the answers given are wrong, where half of what is asked has no entry.
"""

import argparse
import csv
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cache import same_question
from ...rag.embed import default_embedder
from ..faq import SCORING, Entry, Faq, Scoring
from ..features import Embed
from .data import Embeddings
from .fit import logistic
from .run import default_data
from .sources import banking, clinc_oos, cmrc, nq, split_of, stackfaq_rows

BUDGET = 0.03  # share of given answers that may be wrong
PHRASINGS = 5
SMALL = 6  # entries of the small FAQ that is made of each set as well
OPEN = Scoring(bias=0.0, cosine=0.0, lead=0.0, overlap=0.0, threshold=0.0)  # everything matches
SHARE = {"known": 0.5, "near": 0.25, "far": 0.25}  # of what is asked
Question = tuple[str, str | None, str]  # text, id of its entry, kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question put to an FAQ: what the score of its best entry is made of, and whether that entry is right."""

    features: tuple[float, float, float]  # cosine, lead, overlap
    right: bool
    kind: str
    source: str


class Remembering:
    """Remembered embeddings in the shape of an embedder."""

    def __init__(self, embed: Embed, store: Path | None) -> None:
        self.fingerprint, self._known = embed.fingerprint, Embeddings(embed, store)

    def __call__(self, texts: Sequence[str], /) -> Any:
        return self._known(texts)


def groups_of(root: Path) -> dict[str, dict[str, dict[str, list[str]]]]:
    """Set -> split -> group -> texts that ask for the same answer."""
    sets: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    data = json.loads((root / "clinc_oos/data_full.json").read_text(encoding="utf-8"))
    for part, split in (("train", "train"), ("val", "calibration"), ("test", "test")):
        for text, intent in data[part]:
            sets["clinc"][split][intent].append(text)
    intents: dict[str, str] = {}
    for part in ("train", "test"):
        with (root / f"banking77/{part}.csv").open(encoding="utf-8", newline="") as file:
            intents |= {row["text"].strip(): row["category"] for row in csv.DictReader(file)}
    for example in banking(root):
        sets["banking"][example.split][intents[example.text]].append(example.text)
    for question, others, _ in stackfaq_rows(root):
        sets["stackfaq"][split_of(question, test=40, calibration=25)][question] += [question, *others]
    for name, language in (("english", "en"), ("chinese_simplified", "zh")):
        path = root / f"ms_chitchat/derived_{name}_friendly.jsonl"
        for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
            questions = json.loads(line)["questions"]
            for text in questions:
                sets[f"chitchat_{language}"][split_of(text)][questions[0]].append(text)
    return sets


def faqs(root: Path, split: str, draw: random.Random) -> Iterator[tuple[str, list[Entry], list[Question]]]:
    """(set, entries, questions). Entries are phrased with training texts; what is asked comes from `split`.

    Kinds: "known" has an entry, "near" is of a group whose entry was left out, "far" comes from another set.
    """
    far = [e.text for e in (*nq(root), *cmrc(root)) if e.split == split]
    draw.shuffle(far)
    far = clinc_oos(root, {"train": "train", "calibration": "val", "test": "test"}[split]) + far[:500]
    for name, splits in groups_of(root).items():
        own = splits[split]
        whole = name == "stackfaq"  # few questions: its splits are by question, phrasings come from the same split
        phrased = own if whole else splits["train"]
        names = sorted(group for group in own if len(set(phrased.get(group, ()))) > PHRASINGS)
        draw.shuffle(names)
        kept = set(names[: 2 * len(names) // 3])
        entries: list[Entry] = []
        asked: list[Question] = []
        for group in names:
            texts = list(dict.fromkeys(phrased[group]))
            used = [texts[0], *draw.sample(texts[1:], PHRASINGS - 1)] if whole else draw.sample(texts, PHRASINGS)
            if group in kept:
                entry = Entry(question=used[0], alternatives=tuple(used[1:]), answer=f"answer: {used[0]}", id=group)
                entries.append(entry)
            elif name.startswith("chitchat"):
                continue  # its groups overlap: a near-miss there often has a right answer
            owner, kind = (group, "known") if group in kept else (None, "near")
            asked += [(text, owner, kind) for text in dict.fromkeys(own[group]) if text not in used]
        draw.shuffle(asked)
        yield name, entries, asked[:2500] + [(text, None, "far") for text in far]
        few = draw.sample(entries, SMALL)
        ids = {entry.id for entry in few}
        known = [question for question in asked if question[1] in ids][:300]
        others = [] if name.startswith("chitchat") else [text for text, owner, _ in asked if owner not in ids][:600]
        near: list[Question] = [(text, None, "near") for text in others]
        yield f"{name}, {SMALL} entries", few, known + near + [(text, None, "far") for text in far[:300]]


def ask(
    name: str,
    entries: list[Entry],
    questions: Sequence[Question],
    embed: Embed,
    conflict: Callable[[str, str], str | None] | None,
) -> list[Asked]:
    """What each question's best entry looks like; a question without any candidate gets no score at all."""
    faq = Faq(entries, embed=embed, conflict=conflict, scoring=OPEN)
    rows = []
    for (text, entry_id, kind), vector in zip(questions, embed([text for text, _, _ in questions]), strict=True):
        best = max(faq.candidates(text, vector), key=lambda c: c.cosine + c.lead, default=None)
        found = (best.cosine, best.lead, best.overlap) if best else (-1.0, -1.0, 0.0)
        right = best is not None and best.entry.id == entry_id
        rows.append(Asked(features=found, right=right, kind=kind, source=name))
    return rows


def features_of(rows: Sequence[Asked]) -> NDArray[np.float32]:
    return np.array([r.features for r in rows], dtype=np.float32)


def even(rows: Sequence[Asked]) -> NDArray[np.float64]:
    """Weights: each set counts alike; in each, half of what is asked is known, a quarter near, a quarter far."""
    groups = np.array([f"{r.source}:{r.kind}" for r in rows])
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(np.array([SHARE[r.kind] for r in rows]) / counts[inverse] * len(rows))


def threshold_of(p: NDArray[np.float64], right: NDArray[np.bool_], weight: NDArray[np.float64], budget: float) -> float:
    """The lowest probability from which on at most `budget` of the answers are wrong."""
    order = np.argsort(-p)
    wrong = np.cumsum((~right * weight)[order]) / np.cumsum(weight[order])
    allowed = np.flatnonzero(wrong <= budget)
    return float(p[order][allowed[-1]]) if len(allowed) else 1.0


def measure(scoring: Scoring, rows: Sequence[Asked]) -> list[dict[str, Any]]:
    """Per set and over all: share answered of known, near and far questions, and share of answers that are wrong."""
    theta = np.array([scoring.cosine, scoring.lead, scoring.overlap])
    p = 1 / (1 + np.exp(-(features_of(rows) @ theta + scoring.bias)))
    answered, right = p >= scoring.threshold, np.array([r.right for r in rows])
    weight, source, kind = even(rows), np.array([r.source for r in rows]), np.array([r.kind for r in rows])
    table = []
    for name in (*dict.fromkeys(source.tolist()), "all"):
        mine = (source == name) | (name == "all")
        given = mine & answered
        row: dict[str, Any] = {"set": name, "n": int(mine.sum())}
        for k in SHARE:
            rows_of_kind = mine & (kind == k)
            row[f"answered {k}"] = round(float(answered[rows_of_kind].mean()), 4) if rows_of_kind.any() else None
        row["wrong entry for known"] = round(float((answered & ~right)[mine & (kind == "known")].mean()), 4)
        row["wrong of answers"] = round(float((weight * ~right)[given].sum() / max(1e-9, weight[given].sum())), 4)
        table.append(row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="file that keeps embeddings between runs")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    embed, root, conflict = (
        Remembering(default_embedder(), args.store),
        default_data(),
        same_question(default_embedder()),
    )
    train, held = (
        [row for each in faqs(root, split, random.Random(args.seed)) for row in ask(*each, embed, conflict)]
        for split in ("train", "calibration")
    )
    theta = logistic(features_of(train), np.array([float(r.right) for r in train]), even(train), ridge=1e-3)
    p = 1 / (1 + np.exp(-(features_of(held) @ theta[:3] + theta[3])))
    threshold = threshold_of(p, np.array([r.right for r in held]), even(held), BUDGET)
    names = ("cosine", "lead", "overlap", "bias", "threshold")
    fitted = {name: round(float(value), 4) for name, value in zip(names, (*theta, threshold), strict=True)}
    SCORING.write_text(json.dumps(fitted, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({"scoring": fitted, "calibration": measure(Scoring(**fitted), held)}, indent=2))


if __name__ == "__main__":
    main()
