"""Questions whose answers are known, from the sets of `docs/data.md` that give them: for depth labels and escalation.

A row has `question` (what the router reads), `prompt` (what the model reads), `answer`, `source`, `language`, `split`
and `graded`: how hard the set says it is, None where it does not. Knows no model.
"""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..deep import grounded
from .sources import _json, _lines, _train_or_calibration, split_of

Row = dict[str, Any]


def answered(root: Path) -> Iterator[Row]:
    """Every row of every set, set after set."""
    for read in (_gsm8k, _strategyqa, _cmath, _choices, _nq, _squad, _clapnq, _self_instruct):
        yield from read(root)


def _row(question: str, answer: str, source: str, *, split: str | None = None, **more: Any) -> Row:
    question = question.strip()
    row = {"question": question, "prompt": question, "answer": answer.strip(), "source": source, "language": "en"}
    return {**row, "split": split or split_of(question), "graded": None, **more}


def _gsm8k(root: Path) -> Iterator[Row]:
    for row in _lines(root / "gsm8k/train.jsonl"):
        steps = re.sub(r"<<.*?>>", "", row["answer"].split("####")[0]).strip()
        yield _row(
            row["question"], steps, "gsm8k", split=_train_or_calibration(row["question"]), graded=steps.count("\n") + 1
        )
    for row in _lines(root / "gsm8k/test.jsonl"):
        steps = re.sub(r"<<.*?>>", "", row["answer"].split("####")[0]).strip()
        split = split_of(row["question"], test=40)  # as `sources.gsm8k`
        yield _row(row["question"], steps, "gsm8k", split=split, graded=steps.count("\n") + 1)


def _strategyqa(root: Path) -> Iterator[Row]:
    for part in ("train", "dev"):
        for row in _json(root / f"strategyqa/{part}.json"):
            answer = f"{'Yes' if row['answer'] else 'No'}. {row['facts'][0] if row['facts'] else ''}"
            split = "test" if part == "dev" else _train_or_calibration(row["question"])
            yield _row(row["question"], answer, "strategyqa", split=split, graded=len(row["decomposition"]))


def _cmath(root: Path) -> Iterator[Row]:
    for row in _lines(root / "cmath/cmath_dev.jsonl"):
        yield _row(row["input"], str(row["golden"]), "cmath", language="zh", graded=int(row["grade"]))


_CHOICE = re.compile(r"Answer(\d): (.*?)(?= Answer\d: |\n|$)", re.DOTALL)


def choices_of(row: dict[str, str]) -> tuple[str, list[str], int]:
    """(question, options, index of the right one) of a row of `arc_boolq_obqa`."""
    stem, _, rest = row["instruction"].partition("\n\n")
    options = [text.strip() for _, text in _CHOICE.findall(rest.split("\n\nAnswer format")[0])]
    return stem.partition(": ")[2].strip(), options, int(row["answer"].removeprefix("answer")) - 1


def _choices(root: Path) -> Iterator[Row]:
    for name, source in (("ARC-Easy", "arc_easy"), ("openbookqa", "openbookqa")):
        for row in _json(root / f"arc_boolq_obqa/dataset__{name}__train.json"):
            question, options, right = choices_of(row)
            if 0 <= right < len(options) and question.endswith("?"):
                yield _row(question, options[right], source)


def _nq(root: Path) -> Iterator[Row]:
    with gzip.open(root / "nq_oracle/qa_data__nq-open-oracle.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            yield _row(row["question"], row["answers"][0], "nq")


def _squad(root: Path) -> Iterator[Row]:
    """Asked over their passage, as the router asks what it found."""
    for article in _json(root / "squad1_du_test/test-v1.1.json")["data"]:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                prompt = grounded((), row["question"].strip(), paragraph["context"], "en")
                yield _row(row["question"], row["answers"][0]["text"], "squad", prompt=prompt)


def _clapnq(root: Path) -> Iterator[Row]:
    for row in _lines(root / "clapnq/annotated_data__dev__clapnq_dev_answerable.jsonl"):
        yield _row(row["input"], row["output"][0]["answer"], "clapnq")


def _self_instruct(root: Path) -> Iterator[Row]:
    for name in ("seed_tasks", "user_oriented_instructions"):
        for row in _lines(root / f"self_instruct/{name}.jsonl"):
            given, output = row["instances"][0]["input"].strip(), row["instances"][0]["output"].strip()
            if output:
                yield _row(f"{row['instruction']}\n{given}", output, "self_instruct")
