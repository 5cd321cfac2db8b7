"""Real depth scores of training passages, by themselves and with questions: what the light predictor is distilled from.

    python -m shoal.router.train.depth_values [--seconds N]

English passages of SQuAD 1.1 and of NQ, Chinese ones of CMRC 2018 train. A part of them is also read with a question
that it answers and with one about a neighbouring passage. Written line by line to runs/depth/values.jsonl; a run that
was stopped goes on where it was. Fitted by `shoal.rag.train.depth`.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ...gated_llm import GatedLLM
from ...gated_llm.skim import Skim
from ...rag.chunk import Splitter
from ...rag.train.data import Asked, load
from ...rag.train.depth import VALUES

COUNTS = {"squad1": (240, 60), "nq": (60, 0), "cmrc": (200, 40)}  # passages, and how many of them with questions
ALONE = 200  # passages without a question that are read, after those with


def wanted() -> list[dict[str, Any]]:
    """Passages with their questions by kind: "free" none, "gold" one it answers, "near" one of a neighbour."""
    passages, asked = load()
    by: dict[int, list[Asked]] = {}
    for one in asked:
        if one.answers:
            by.setdefault(one.passage, []).append(one)
    draw, found = random.Random(5), list[dict[str, Any]]()
    for source, (count, questioned) in COUNTS.items():
        mine = [place for place in by if passages[place].source == source]
        draw.shuffle(mine)
        groups: dict[str, list[int]] = {}
        for place in mine:
            groups.setdefault(passages[place].group, []).append(place)
        for rank, (place, text, questions) in enumerate(_chunks(mine, passages, by, count)):
            passage = passages[place]
            kinds = {"free": ""}
            if rank < questioned:
                others = [other for other in groups[passage.group] if other != place]
                near = draw.choice(by[draw.choice(others or mine)])
                kinds |= {"gold": draw.choice(questions).text, "near": near.text}
            found.append(
                {"id": passage.name, "lang": passage.language, "group": passage.group, "text": text, "q": kinds}
            )
    draw.shuffle(found)
    return [one for one in found if len(one["q"]) > 1] + [one for one in found if len(one["q"]) == 1][:ALONE]


def _chunks(
    mine: list[int], passages: list[Any], by: dict[int, list[Asked]], count: int
) -> Iterator[tuple[int, str, list[Asked]]]:
    """The first chunk of passages whose first chunk answers something."""
    for place in mine:
        first = Splitter().split(passages[place].text, "x")[0]
        inside = [a for a in by[place] if all(s + len(t) <= first.end for s, t in a.answers)]
        if len(first.text) >= 80 and inside and count > 0:
            count -= 1
            yield place, first.text, inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    until = time.monotonic() + parser.parse_args().seconds
    VALUES.parent.mkdir(parents=True, exist_ok=True)
    done = {json.loads(line)["id"] for line in VALUES.open()} if VALUES.exists() else set()
    todo = [one for one in wanted() if one["id"] not in done]
    skim = Skim(GatedLLM.load())
    with VALUES.open("a", encoding="utf-8") as file:
        for one in todo:
            if time.monotonic() > until:
                break
            read = {kind: asdict(skim.read(one["text"], question)) for kind, question in one["q"].items()}
            file.write(json.dumps({**one, "read": read, "scorer": skim.fingerprint}, ensure_ascii=False) + "\n")
            file.flush()
    print(f"{len(todo)} passages were left to read; {VALUES}")


if __name__ == "__main__":
    main()
