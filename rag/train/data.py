"""Questions with the passage and sentence that answer them, split by article. Measuring sets are not read here.

English: SQuAD 1.1 (Du et al. test part), NQ passages; refusal also from SQuAD 2.0 without XQuAD's contexts, whose
articles XQuAD shares: only the extractor's network sees those. Chinese: CMRC 2018 train.
"""

import gzip
import json
import os
import random
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("SHOAL_DATA", "../shared/data"))
RUNS = Path(os.environ.get("SHOAL_RUNS", "runs")) / "reader"
FIT = {"squad1": 12, "cmrc": 480, "nq": 500}  # groups held out of `late`; half fits the heads, half validates them


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A passage; `group` is its article, `part` one of "train", "fit", "val"."""

    name: str
    source: str
    group: str
    language: str
    text: str
    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question about a passage; `answers` are (start, text) in it, none when it has no answer."""

    text: str
    passage: int
    answers: tuple[tuple[int, str], ...]


def load() -> tuple[list[Passage], list[Asked]]:
    """All passages and questions, with a fixed split by article."""
    raw = [*_squad1(), *_squad2(), *_cmrc(), *_nq()]
    part = _parts({(source, group) for source, group, _, _, _ in raw})
    passages: list[Passage] = []
    asked: list[Asked] = []
    for source, group, language, text, questions in raw:
        for question, answers in questions:
            asked.append(Asked(text=question, passage=len(passages), answers=answers))
        name = f"{source}-{len(passages)}"
        passages.append(
            Passage(name=name, source=source, group=group, language=language, text=text, part=part[source, group])
        )
    return passages, asked


def _parts(groups: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    order = sorted(groups)
    random.Random(0).shuffle(order)
    parts = dict.fromkeys(order, "train")
    for source, count in FIT.items():
        for place, group in enumerate([one for one in order if one[0] == source][:count]):
            parts[group] = "val" if place < count // 2 else "fit"
    for place, group in enumerate([one for one in order if one[0] == "squad2"]):
        parts[group] = "val" if place < 4 else "fit"
    return parts


_Raw = tuple[str, str, str, str, list[tuple[str, tuple[tuple[int, str], ...]]]]


def _squad_like(data: list[Any], source: str, language: str) -> Iterator[_Raw]:
    for article in data:
        for paragraph in article["paragraphs"]:
            text = paragraph["context"]
            questions = []
            for one in paragraph["qas"]:
                answers = tuple(_placed(text, answer["answer_start"], answer["text"]) for answer in one["answers"])
                found = tuple(answer for answer in answers if answer[0] >= 0)
                if found or one.get("is_impossible"):
                    questions.append((one["question"], found))
            yield source, article.get("title") or text[:20], language, text, questions


def _placed(text: str, start: int, answer: str) -> tuple[int, str]:
    return (start if text[start : start + len(answer)] == answer else text.find(answer)), answer


def _squad1() -> Iterator[_Raw]:
    yield from _squad_like(json.loads((DATA / "squad1_du_test/test-v1.1.json").read_text())["data"], "squad1", "en")


def _squad2() -> Iterator[_Raw]:
    path = DATA / "squad2_no_xquad/dev-v2.0-without-xquad.json"
    yield from _squad_like(json.loads(path.read_text())["data"], "squad2", "en")


def _cmrc() -> Iterator[_Raw]:
    path = DATA / "cmrc2018_train/pseudo_training_data__train-pseudo-cmrc2018.zip"
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("train-pseudo-cmrc2018.json"))
    yield from _squad_like(data["data"] if isinstance(data, dict) else data, "cmrc", "zh")


def _nq() -> Iterator[_Raw]:
    with gzip.open(DATA / "nq_oracle/qa_data__nq-open-oracle.jsonl.gz", "rt") as file:
        for number, line in enumerate(file):
            row = json.loads(line)
            text = row["ctxs"][0]["text"]
            answer = next((one for one in row["answers"] if one in text), None)
            if answer:
                yield "nq", f"nq{number}", "en", text, [(f"{row['question']}?", ((text.find(answer), answer),))]
