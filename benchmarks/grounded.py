"""Answers from given passages: the bare model, the grounded-answer adapter, and the adapter with branches left out.

    python -m benchmarks.grounded [--adapter FILE] [--plan FILE] [--questions N] [--only NAME ...]

XQuAD (English): each question over its passage, in the words in which the router asks; greedy, 24 tokens. Containment
and F1 as SQuAD scores them; length in words. Refusals: articles of SQuAD 2.0 that training left out. CMRC 2018 dev:
containment and F1 by character. Time: one request at a time, prompt included, nothing shared between prompts; the
configurations take turns on every question. Answers are kept in benchmarks/out/ by weights, plan and configuration.
"""

import argparse
import collections
import json
import math
import random
import re
import statistics
import string
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._router import DATA, OUT, SEED, table, write
from shoal.gated_llm import GatedLLM
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.gates import WHOLE_PROMPT, Gates, Thrift
from shoal.gated_llm.lora import Adapter, merge
from shoal.gated_llm.native import Gated
from shoal.gated_llm.passes import KernelModel
from shoal.gated_llm.policy import Plan
from shoal.gated_llm.served import Served, find_plan
from shoal.gated_llm.tokenizer import ChatTokenizer
from shoal.gated_llm.weights import DEFAULT_MODEL, locate
from shoal.router.decision import Message
from shoal.router.deep import grounded

ASSETS = Path(__file__).parents[1] / "gated_llm" / "assets"
TOKENS, TIMED, CHINESE, RESAMPLES = 24, 8, 24, 2000
TOGETHER, SAVED, ROWS = 8, 100, 256  # questions at once; answers between two writes; rows of a pass
TRAINED = ("Computational_complexity_theory", "Huguenot", "Steam_engine", "1973_oil_crisis", "European_Union_law",
           "Harvard_University", "Immune_system", "Scottish_Parliament", "Islamism", "Imperialism",
           "French_and_Indian_War", "Yuan_dynasty", "Packet_switching")  # fmt: skip
HELD_OUT = ("Normans", "Warsaw", "Force")
REFUSED = re.compile(
    r"\b(do(es)? not|don't|doesn't|cannot|can't|not)\b.{0,30}\b(know|hold|mention|specif|provide|contain|state|answer)"
    r"|不知道|没有答案",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A question over a passage; no answers where it has none."""

    question: str
    passage: str
    answers: tuple[str, ...]
    article: str
    language: str = "en"

    @property
    def prompt(self) -> list[dict[str, str]]:
        text = f"[page, 0-{len(self.passage)}] {self.passage}"
        return grounded([Message(role="user", content=self.question)], self.question, text, self.language)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A row of the table: which weights, how deep, and whether the prompt is gated too."""

    name: str
    llm: GatedLLM
    depth: float | None = None
    gate_prefill: bool = True
    thrift: float | None = None  # of learned gates

    def answer(self, item: Item) -> str:
        if self.thrift is not None:
            made = self.llm.generate(
                item.prompt, policy="gates", work="grounded", max_tokens=TOKENS, gate_prefill=self.gate_prefill
            )
            assert made.depth.policy == "gates"
            return made.text.strip()
        depth = f"{100 * self.depth / self.llm.total:.4f}%" if self.depth else self.llm.total
        made = self.llm.generate(item.prompt, max_depth=depth, max_tokens=TOKENS, gate_prefill=self.gate_prefill)
        return made.text.strip()

    @property
    def runs(self) -> float:
        return self.llm.plan.depth_at(self.llm.plan.point_for(self.depth)) if self.depth else self.llm.total

    @property
    def key(self) -> str:
        return f"gates-{self.thrift}" if self.thrift is not None else str(self.depth or "full")


def items(name: str, *, language: str = "en", titles: Sequence[str] = ()) -> list[Item]:
    """Questions of a file of the SQuAD form."""
    raw = json.loads((DATA / name).read_text("utf-8"))["data"]
    return [
        Item(
            question=qa["question"],
            passage=paragraph["context"].strip(),
            answers=() if qa.get("is_impossible") else tuple(a["text"] for a in qa["answers"]),
            article=article.get("title", ""),
            language=language,
        )
        for article in raw
        if not titles or article["title"] in titles
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]


def words(text: str, language: str) -> list[str]:
    """SQuAD's normalisation: lower case, no punctuation, no articles; characters in Chinese."""
    if language == "zh":
        return re.findall(r"[a-z]+|\d+|[\u4e00-\u9fff]", text.lower())
    plain = "".join(char for char in text.lower() if char not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def score(said: str, item: Item) -> tuple[float, float]:
    """Containment and F1 of an answer, the best over the gold answers."""
    got, contained, best = words(said, item.language), 0.0, 0.0
    for answer in item.answers:
        gold = words(answer, item.language)
        contained = max(contained, float(f" {' '.join(gold)} " in f" {' '.join(got)} "))
        same = sum((collections.Counter(gold) & collections.Counter(got)).values())
        best = max(best, 2 * same / (len(gold) + len(got)) if same else 0.0)
    return contained, best


class Reader:
    """A setup's kernel answering all questions over one passage together; the passage is read once.

    `layers`, `tokens`: layers run so far, and tokens, prompts included.
    """

    def __init__(self, setup: Setup) -> None:
        model = setup.llm.model
        assert isinstance(model, KernelModel)
        self._kernel, self._tokenizer, self._ends = model.kernel, setup.llm.tokenizer, model.config.eos
        self._plan, self._setup, self._config = setup.llm.plan, setup, model.config
        dropped = setup.llm.plan.point_for(setup.depth) if setup.depth else 0
        self._run = np.asarray(setup.llm.plan.mask(dropped), np.uint8)
        self._read = self._run if setup.gate_prefill else np.ones_like(self._run)
        self.layers, self.tokens = 0.0, 0

    def _pass(
        self, ids: Sequence[int], kvs: Sequence[Any], places: Sequence[int], late: Sequence[bool], wanted: Sequence[int]
    ) -> Any:
        """Logits of `wanted` rows; `late` rows choose a token, the others are read."""
        run = np.stack([self._run if chosen else self._read for chosen in late])
        gated = None
        if (thrift := self._setup.thrift) is not None:
            given = Thrift(value=thrift)
            free = [
                chosen or (self._setup.gate_prefill and at >= WHOLE_PROMPT)
                for chosen, at in zip(late, places, strict=True)
            ]
            gated = Gated.of(self._config, [given if one else None for one in free], run)
            run = gated.run
        logits = self._kernel.forward(ids, kvs, places, run, wanted=wanted, gated=gated)
        share = self._plan.attention_share
        self.layers += float((run == 1).sum((0, 1)) @ (share, 1 - share))
        self.tokens += len(ids)
        return logits

    def answer(self, group: Sequence[Item]) -> list[str]:
        """One answer each, greedy."""
        read = [self._tokenizer.encode_prompt(item.prompt) for item in group]
        least = min(map(len, read)) - 1
        shared = next((i for i, ids in enumerate(zip(*read, strict=False)) if len(set(ids)) > 1 or i == least), least)
        trunk = self._kernel.new_kv(shared)
        for at in range(0, shared, ROWS):
            part = read[0][at : min(at + ROWS, shared)]
            places = range(at, at + len(part))
            self._pass(part, [trunk] * len(part), places, [False] * len(part), [len(part) - 1])
        stores = [trunk.copy() for _ in group]
        feed = [ids[shared:] for ids in read]
        said: list[list[int]] = [[] for _ in group]
        starts = [shared] * len(group)
        alive = list(range(len(group)))
        for _ in range(TOKENS):
            tokens = [token for i in alive for token in feed[i]]
            owners = [stores[i] for i in alive for _ in feed[i]]
            at = [starts[i] + k for i in alive for k in range(len(feed[i]))]
            late = [k == len(feed[i]) - 1 for i in alive for k in range(len(feed[i]))]
            last = np.cumsum([len(feed[i]) for i in alive]) - 1
            best = self._pass(tokens, owners, at, late, last.tolist()).argmax(1).tolist()
            for i, token in zip(alive, best, strict=True):
                starts[i] += len(feed[i])
                feed[i] = [token]
                said[i].append(token)
            alive = [i for i in alive if said[i][-1] not in self._ends]
            if not alive:
                break
        return [self._tokenizer.decode(ids).strip() for ids in said]


def sample(found: Sequence[Item], count: int, draw: random.Random) -> list[Item]:
    """So many items, in their order."""
    return [found[at] for at in sorted(draw.sample(range(len(found)), count))]


def groups(asked: Sequence[Item]) -> list[list[Item]]:
    """Neighbours over one passage, at most eight together."""
    found: list[list[Item]] = []
    for item in asked:
        if found and found[-1][0].passage == item.passage and len(found[-1]) < TOGETHER:
            found[-1].append(item)
        else:
            found.append([item])
    return found


def answers(setup: Setup, name: str, asked: Sequence[Item]) -> list[str]:
    """The setup's answers, from benchmarks/out/ where they were made before."""
    kept = kept_at(setup, name)
    kept.parent.mkdir(parents=True, exist_ok=True)
    made: list[str] = json.loads(kept.read_text("utf-8")) if kept.exists() else []
    began, reader, fresh, done = time.monotonic(), Reader(setup), 0, 0
    for group in groups(asked):
        done += len(group)
        known = max(0, len(made) - done + len(group))
        if known >= len(group):
            continue
        made += reader.answer(group[known:])
        fresh += len(group) - known
        if fresh >= SAVED or done == len(asked):
            kept.write_text(json.dumps(made, ensure_ascii=False), "utf-8")
            kept.with_suffix(".layers").write_text(str(reader.layers / reader.tokens))
            print(f"{setup.name}, {name}: {done} of {len(asked)}, {time.monotonic() - began:.0f} s", flush=True)
            fresh = 0
    return made[: len(asked)]


def mean_layers(setup: Setup, name: str) -> float:
    """Layers that gates ran for a token, prompts included, when the answers were made."""
    return float(kept_at(setup, name).with_suffix(".layers").read_text())


def kept_at(setup: Setup, name: str) -> Path:
    key = f"{setup.llm.fingerprint}-{setup.key}-{int(setup.gate_prefill)}-{name}"
    return OUT / "grounded" / f"{re.sub(r'[^a-z0-9.]+', '-', key.lower())}.json"


def interval(difference: Sequence[float]) -> str:
    """95% of the means of resampled differences, in points."""
    values = np.asarray(difference)
    draws = np.random.default_rng(SEED).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(1), (0.025, 0.975))
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


def timings(setups: Sequence[Setup], asked: Sequence[Item]) -> dict[str, list[float]]:
    """Seconds per answer of every setup; they take turns on each question, in random order."""
    took: dict[str, list[float]] = {setup.name: [] for setup in setups}
    draw, order = random.Random(SEED), list(setups)
    for item in asked:
        draw.shuffle(order)
        for setup in order:
            setup.llm.prefix = type(setup.llm.prefix)(0)
            start = time.perf_counter()
            setup.answer(item)
            took[setup.name].append(time.perf_counter() - start)
    return took


def load(adapter: Path | None, plan: Path | None, *, bits: int | None = None) -> GatedLLM:
    """The default model as it serves, with an adapter merged in where given; `plan` is that of the adapter."""
    folder = locate(DEFAULT_MODEL)
    config, weights = DecoderConfig.from_folder(folder), read_tensors(folder)
    model = fingerprint(weights)
    order = find_plan(folder, config, model)
    if adapter is not None:
        found = Adapter.read(adapter)
        order = order if plan is None else Plan.read(plan, model_fingerprint=found.merged_fingerprint)
        weights = merge(weights, found, model_fingerprint=model, plan_fingerprint=None if plan else order.fingerprint)
        model = found.merged_fingerprint
    made = KernelModel.load(config, weights, bits=bits)
    if made is None:
        raise SystemExit("This benchmark needs the native kernel: install a C++ compiler.")
    served = Served(model=made, plan=order, fingerprint=f"{model}-{bits or 'auto'}")
    return GatedLLM(served, ChatTokenizer(folder), name=folder.name)


def by_gates(llm: GatedLLM, gates: Path, thrifts: Sequence[float]) -> Iterator[Setup]:
    """The same model with the quality at which a request is given each thrift."""
    learned = Gates.read(gates)
    learned.check(learned.layers, learned.weight.shape[2], llm.fingerprint.split("-")[0], gates)
    llm.model.set_gates(learned)  # for those who ask the model itself
    for point in learned.points:
        if point.thrift in thrifts:
            quality = -math.expm1(-point.loss["grounded"] - 1e-9)
            served = Served(model=llm.model, plan=llm.plan, fingerprint=llm.fingerprint, gates=learned)
            made = GatedLLM(served, llm.tokenizer, name=llm.name, quality=quality)
            yield Setup(name=f"adapter, gates at {point.thrift:g}", llm=made, thrift=point.thrift)


def rows(
    setups: Sequence[Setup], everything: Sequence[Item], refusals: Sequence[Item], gated: int | None
) -> list[dict[str, Any]]:
    """One row a setup: XQuAD, and refusals where there is no answer and where there is one; with branches left out
    only the first `gated` questions.
    """
    found: list[dict[str, Any]] = []
    base: list[tuple[float, float]] | None = None
    for setup in setups:
        asked = everything[:gated] if setup.depth or setup.thrift is not None else everything
        said = answers(setup, "xquad", asked)
        scored = [score(text, item) for text, item in zip(said, asked, strict=True)]
        told = answers(setup, f"refusal-{len(refusals)}", refusals)
        no = [bool(REFUSED.search(t)) for t, i in zip(told, refusals, strict=True) if not i.answers]
        yes = [bool(REFUSED.search(t)) for t, i in zip(told, refusals, strict=True) if i.answers]
        row = {
            "answers": setup.name,
            "questions": len(asked),
            "layers": round(setup.runs if setup.thrift is None else mean_layers(setup, "xquad"), 2),
            "containment": round(statistics.mean(c for c, _ in scored), 3),
            "F1": round(statistics.mean(f for _, f in scored), 3),
            "words": round(statistics.mean(len(text.split()) for text in said), 1),
            "refuses rightly": round(statistics.mean(no), 3),
            "refuses wrongly": round(statistics.mean(yes), 3),
        }
        if setup.name.startswith("adapter"):
            base = base or scored
            pairs = list(zip(scored, base, strict=False))
            row["containment against full, points"] = interval([a[0] - b[0] for a, b in pairs])
            row["F1 against full, points"] = interval([a[1] - b[1] for a, b in pairs])
        else:
            row |= {"containment against full, points": "", "F1 against full, points": ""}
        found.append(row)
        print(table(found), flush=True)
    return found


def by_article(setups: Sequence[Setup], asked: Sequence[Item], seen: Callable[[Item], bool]) -> list[dict[str, Any]]:
    """XQuAD again, by whether training saw other passages of the question's article."""
    found = []
    for setup in setups:
        said = answers(setup, "xquad", asked)
        for title, wanted in (("others of its article in training", True), ("article not in training", False)):
            scored = [score(t, i) for t, i in zip(said, asked, strict=True) if seen(i) == wanted]
            if not scored:
                continue
            found.append(
                {
                    "answers": setup.name,
                    "questions": f"{len(scored)}, {title}",
                    "containment": round(statistics.mean(c for c, _ in scored), 3),
                    "F1": round(statistics.mean(f for _, f in scored), 3),
                }
            )
    return found


def setups_of(chosen: argparse.Namespace) -> list[Setup]:
    """Who answers: the bare model, and unless `raw` the adapter at every depth and width asked for."""
    bare = Setup(name="bare model", llm=load(None, None))
    setups = [bare]
    if not chosen.raw:
        plan = chosen.plan if chosen.plan.exists() else None
        learned = chosen.gates if chosen.gates.exists() else None
        llm = load(chosen.adapter, plan, bits=8)
        setups.append(Setup(name="adapter, full depth", llm=llm))
        setups += [Setup(name=f"adapter, {d:g} layers", llm=llm, depth=d) for d in chosen.depths]
        if learned is not None:
            setups += by_gates(llm, learned, chosen.thrifts)
        if chosen.whole:
            middle = sorted(chosen.depths)[len(chosen.depths) // 2]
            kept = Setup(name=f"adapter, {middle:g} layers, prompt whole", llm=llm, depth=middle, gate_prefill=False)
            setups.append(kept)
        setups += [
            Setup(name=f"adapter, full depth, int{bits}", llm=load(chosen.adapter, plan, bits=bits))
            for bits in chosen.bits
        ]
    return setups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapter", type=Path, default=ASSETS / "smollm2-135m.grounded.safetensors")
    parser.add_argument("--plan", type=Path, default=ASSETS / "smollm2-135m.grounded.plan.json")
    parser.add_argument("--questions", type=int, default=None)
    parser.add_argument("--depths", type=float, nargs="*", default=(28, 26, 24))
    parser.add_argument("--gates", type=Path, default=ASSETS / "smollm2-135m.grounded.gates.safetensors")
    parser.add_argument("--thrifts", type=float, nargs="*", default=(0.2, 0.4, 0.6))
    parser.add_argument("--gated", type=int, default=None, help="fewer questions for answers with branches left out")
    parser.add_argument("--whole", action="store_true", help="also with the prompt read at full depth")
    parser.add_argument("--raw", action="store_true", help="only the bare model")
    parser.add_argument("--bits", type=int, nargs="*", default=(), help="more widths of the merged weights to try")
    chosen = parser.parse_args()
    draw = random.Random(SEED)
    passages = groups(items("xquad/xquad.en.json"))
    random.Random(SEED).shuffle(passages)
    asked = [item for group in passages for item in group][: chosen.questions]
    squad = items("squad2_no_xquad/dev-v2.0-without-xquad.json", titles=HELD_OUT)
    refusals = sample([i for i in squad if not i.answers], 150, draw) + sample(
        [i for i in squad if i.answers], 150, draw
    )
    chinese = sample(items("cmrc2018/cmrc2018_dev.json", language="zh"), CHINESE, draw)
    if chosen.questions:
        refusals = [i for k in (refusals[:150], refusals[150:]) for i in k[: chosen.questions // 4]]
        chinese = chinese[: chosen.questions // 4]
    setups = setups_of(chosen)
    quality = rows(setups, asked, refusals, chosen.gated)
    in_chinese = []
    for setup in setups[:2]:
        scored = [score(t, i) for t, i in zip(answers(setup, f"cmrc-{len(chinese)}", chinese), chinese, strict=True)]
        contained, f1 = (round(statistics.mean(s[k] for s in scored), 3) for k in (0, 1))
        in_chinese.append({"answers": setup.name, "questions": len(chinese), "containment": contained, "F1": f1})
    print(table(in_chinese))
    articles = by_article(setups[:2], asked, lambda item: item.article in TRAINED)
    took = timings([s for s in setups if "int4" not in s.name], draw.sample(asked, min(TIMED, len(asked))))
    whole = took.get("adapter, full depth") or took["bare model"]
    times = [
        {
            "answers": name,
            "median ms": round(1000 * statistics.median(seconds), 1),
            "share of the adapter at full depth": round(
                statistics.median(a / b for a, b in zip(seconds, whole, strict=True)), 3
            ),
        }
        for name, seconds in took.items()
    ]
    print(table(times))
    print(table(articles))
    write(
        "grounded",
        "Answers from given passages: the bare model and the grounded-answer adapter",
        {
            "note": f"{DEFAULT_MODEL}, XQuAD en, {len(asked)} questions, whose passages no one trained on, greedy. "
            "Layers are the most that any token takes; prompts are gated too unless marked whole. Differences "
            "from the adapter at full depth are paired 95% bootstrap intervals. Refusals: 150 unanswerable and 150 "
            "answerable questions of three articles that training left out. Times are for one request at a time, "
            f"prompt included, the setups taking turns on {min(TIMED, len(asked))} questions.",
            "XQuAD and refusals": quality,
            "CMRC 2018 dev": in_chinese,
            "XQuAD by article": articles,
            "time": times,
            "versions": {"torch": version("torch")},
            "data": "xquad/xquad.en.json, squad2_no_xquad, cmrc2018",
        },
    )


if __name__ == "__main__":
    main()
