"""Which parts of the way from passages to a context earn their place (A6), at equal token budgets.

    python -m benchmarks.ablation [--questions N] [--sets NAME ...]
    python -m benchmarks.ablation --score SECONDS      # depth scores by the model itself, first; goes on
    python -m benchmarks.ablation --answer SECONDS     # answers of the default model for a sample; goes on

XQuAD en and zh and CMRC 2018 dev, measuring only: 240 passages each. The knowledge base also holds a shortened copy of
every third passage and 100 passages of other articles, so there are near-duplicates and distractors. Eight passages are
found for a question; whole passages are cut at a sentence where the budget ends. Tokens are the default model's,
citations included.
"""

import argparse
import hashlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._router import DATA, OUT, SEED, table, write
from benchmarks.grounded import Item, score
from benchmarks.retrieval import squad
from shoal import KnowledgeBase
from shoal.gated_llm.tokenizer import ChatTokenizer
from shoal.gated_llm.weights import DEFAULT_MODEL, locate
from shoal.rag.chunk import units
from shoal.rag.depth import LIMIT, MIN_KEEP, RELEVANT, Depths, default_depth_model, filter_hits
from shoal.rag.embed import Embedder
from shoal.rag.fuse import fuse
from shoal.rag.reading import default_reader
from shoal.rag.retrieve import Hit
from shoal.rag.train.data import load
from shoal.router.decision import Message
from shoal.router.deep import grounded

FILES = {
    "xquad en": "xquad/xquad.en.json", "xquad zh": "xquad/xquad.zh.json", "cmrc dev": "cmrc2018/cmrc2018_dev.json"
}  # fmt: skip
FOUND, KNOWN, PASSAGES, DISTRACTORS, BUDGETS, DRAWS, RESAMPLES, TOKENS = 8, 240, 40, 100, (128, 256, 512), 4, 2000, 24
PARTS = OUT / "ablation"
Count = Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question with the passages found for it: in the first stage's order, and reranked with depth scores."""

    question: str
    answers: tuple[str, ...]
    plain: tuple[Hit, ...]
    hits: tuple[Hit, ...]


def documents(name: str) -> tuple[dict[str, str], list[tuple[str, str, tuple[str, ...]]]]:
    """Texts by name: the set's, shortened copies of every third, distractors; and the set's questions."""
    texts, questions = squad(DATA / FILES[name])
    texts = dict(list(texts.items())[:KNOWN])
    source, gap = ("squad1", " ") if name.endswith("en") else ("cmrc", "")
    draw, found = random.Random(SEED), dict(texts)
    for place, (key, text) in enumerate(texts.items()):
        spans = list(units(text))
        if place % 3 == 0 and len(spans) >= 3:
            kept = [unit for unit in spans if draw.random() > 0.25] or spans[:1]
            found[f"{key}-copy"] = gap.join(text[unit.start : unit.end] for unit in kept)
    others = [one for one in load()[0] if one.source == source and one.part == "train"]
    found |= {one.name: one.text for one in draw.sample(others, DISTRACTORS)}
    return found, questions


def open_base(name: str) -> tuple[KnowledgeBase, list[tuple[str, str, tuple[str, ...]]]]:
    """The set's knowledge base, kept between runs, and its questions."""
    texts, questions = documents(name)
    base = KnowledgeBase.open(PARTS / f"{name.replace(' ', '-')}-{default_reader().version}")
    for key, text in texts.items() if len(base) == 0 else ():
        base.add_text(text, key)
    return base, questions


def ask(base: KnowledgeBase, question: str, answers: tuple[str, ...]) -> Asked:
    """The question's passages."""
    plain = base.search(question, FOUND, rerank=False)
    return Asked(question=question, answers=answers, plain=tuple(plain), hits=tuple(base.search(question, FOUND)))


def whole(hits: Sequence[Hit], budget: int, count: Count) -> str:
    """Passages as they are, one after the other, the last cut at a sentence; the first sentence is always in."""
    lines, spent = list[str](), 0
    for hit in hits:
        cut = 0
        for unit in units(hit.text):
            line = _cited(hit, unit.end)
            if spent + count(line) > budget and (lines or cut):
                break
            cut = unit.end
        if cut:
            lines.append(_cited(hit, cut))
            spent += count(lines[-1])
        if cut < len(hit.text.rstrip()):
            break
    return "\n".join(lines)


def _cited(hit: Hit, end: int) -> str:
    return f"[{hit.doc_id}, {hit.span.start}-{hit.span.start + end}] {hit.text[:end]}\n"


def by_depth(hits: Sequence[Hit], spare: bool) -> tuple[list[Hit], list[Hit]]:
    """(kept, dropped) by the filter as it ships, or with nothing spared but the easiest passage."""
    if spare:
        return filter_hits(hits, LIMIT)
    easiest = max(hits, key=_ease)
    kept = [hit for hit in hits if hit is easiest or _ease(hit) >= LIMIT]
    return kept, [hit for hit in hits if hit not in kept]


def _ease(hit: Hit) -> float:
    return 1.0 if hit.depth_score is None else hit.depth_score


def at_random(hits: Sequence[Hit], dropped: int, spare: bool, draw: random.Random) -> list[Hit]:
    """The hits without as many as the filter dropped, drawn from those that it might have dropped."""
    open_to = [hit for place, hit in enumerate(hits) if not spare or (place >= MIN_KEEP and hit.score < RELEVANT)]
    gone = {hit.chunk_id for hit in draw.sample(open_to, dropped)}
    return [hit for hit in hits if hit.chunk_id not in gone]


class Remembered:
    """An embedder that reads a sentence once, however many systems ask."""

    def __init__(self, embed: Embedder) -> None:
        self._embed, self.fingerprint, self.dim = embed, embed.fingerprint, embed.dim
        self._kept: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        missing = [text for text in dict.fromkeys(texts) if text not in self._kept]
        self._kept.update(zip(missing, self._embed(missing), strict=True))
        return np.stack([self._kept[text] for text in texts])


class Systems:
    """Contexts of one question at one budget by every system."""

    def __init__(self, base: KnowledgeBase, count: Count, *, spare: bool = True) -> None:
        self._embed, self._count, self._spare = Remembered(base.embed), count, spare

    def fused(self, one: Asked, hits: Sequence[Hit], budget: int) -> str:
        return fuse(
            one.question,
            hits,
            embed=self._embed,
            token_budget=budget,
            count_tokens=self._count,
            reader=default_reader(),
        ).text

    def all(self, one: Asked, budget: int) -> dict[str, list[tuple[str, list[Hit]]]]:
        """System to its contexts and what they were made from; the random ones have several draws."""
        kept, dropped = by_depth(one.hits, self._spare)
        draws = [
            at_random(one.hits, len(dropped), self._spare, random.Random(f"{SEED}{one.question}{i}"))
            for i in range(DRAWS if dropped else 1)
        ]
        hits = list(one.hits)
        return {
            "concatenation": [(whole(one.plain, budget, self._count), list(one.plain))],
            "rerank": [(whole(hits, budget, self._count), hits)],
            "rerank, depth filter": [(whole(kept, budget, self._count), kept)],
            "rerank, random drop": [(whole(some, budget, self._count), some) for some in draws],
            "fusion": [(self.fused(one, hits, budget), hits)],
            "fusion, depth filter": [(self.fused(one, kept, budget), kept)],
            "fusion, random drop": [(self.fused(one, some, budget), some) for some in draws[:2]],
        }


def interval(values: Sequence[float]) -> str:
    """95% of the means of resampled values, in points."""
    numbers = np.asarray(values)
    draws = np.random.default_rng(SEED).integers(0, len(numbers), (RESAMPLES, len(numbers)))
    low, high = np.quantile(numbers[draws].mean(1), (0.025, 0.975))
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


def compare(systems: Systems, asked: Sequence[Asked], budget: int, count: Count) -> list[dict[str, Any]]:
    """One row a system: answer-in-context recall, tokens, depth of its passages, differences with intervals."""
    held: dict[str, list[float]] = {}
    rest: dict[str, list[tuple[float, float, float]]] = {}
    for one in asked:
        for system, contexts in systems.all(one, budget).items():
            held.setdefault(system, []).append(
                float(np.mean([any(answer in text for answer in one.answers) for text, _ in contexts]))
            )
            text, hits = contexts[0]
            depth = float(np.mean([_ease(hit) for hit in hits]))
            rest.setdefault(system, []).append((count(text), depth, 1 - len(hits) / len(one.hits)))
    rows = []
    for system, found in held.items():
        tokens, depth, dropped = (float(np.mean(column)) for column in zip(*rest[system], strict=True))
        pair = system.replace("depth filter", "random drop")
        rows.append(
            {
                "system": system,
                "recall": round(float(np.mean(found)), 3),
                "against rerank": interval(np.subtract(found, held["rerank"])) if system != "rerank" else "",
                "against random": interval(np.subtract(found, held[pair])) if pair != system else "",
                "tokens": round(tokens),
                "depth": round(depth, 3),
                "dropped": round(dropped, 3),
            }
        )
    return rows


def probe_of(base: KnowledgeBase) -> Depths:
    """The depth probe as it serves: the model's own scores of texts where they were made, else predicted ones."""
    return Depths(default_reader(), folder=base.path, scorer=Known(default_depth_model().scorer))


def told(base: KnowledgeBase, asked: Sequence[Asked], probe: str) -> list[Asked]:
    """The questions with other depth scores on their hits: of the text alone, predicted or the model's own."""
    depths = probe_of(base) if probe == "own" else Depths(default_reader(), folder=base.path)
    texts = list({hit.text for one in asked for hit in one.hits})
    known = {text: depth and depth.score for text, depth in zip(texts, depths.judge(texts), strict=True)}
    return [replace(one, hits=tuple(replace(hit, depth_score=known[hit.text]) for hit in one.hits)) for one in asked]


@dataclass(frozen=True, slots=True)
class Known:
    """A scorer that is not at hand; only what it said before is."""

    fingerprint: str

    def __call__(self, texts: Sequence[str], /) -> list[float]:
        raise NotImplementedError("python -m benchmarks.ablation --score SECONDS")


def tokens_of() -> Count:
    """Counts tokens of the default model, without loading its weights."""
    tokenizer = ChatTokenizer(locate(DEFAULT_MODEL))
    return lru_cache(1 << 18)(lambda text: len(tokenizer.encode_text(text)) if text else 0)


def chosen(questions: Sequence[Any], number: int) -> list[Any]:
    """So many questions over the first passages, always the same."""
    over = [one for one in questions if int(one[1][1:]) < PASSAGES]
    return random.Random(SEED).sample(over, min(number, len(over)))


def recalls(names: Sequence[str], number: int, count: Count) -> dict[str, Any]:
    """The tables that need no model; those of a set are kept in PARTS."""
    found: dict[str, Any] = {}
    for name in names:
        part = PARTS / f"recall-{name.replace(' ', '-')}-{number}.json"
        if not part.exists():
            part.write_text(json.dumps(recall(name, number, count)), encoding="utf-8")
        for title, rows in json.loads(part.read_text("utf-8")).items():
            found[title] = rows
            print(f"{title}\n{table(rows)}\n", flush=True)
    return found


def recall(name: str, number: int, count: Count) -> dict[str, Any]:
    """The tables of one set."""
    base, questions = open_base(name)
    base.depth_probe = probe_of(base)
    asked = [ask(base, question, answers) for question, _, answers in chosen(questions, number)]
    systems, bare = Systems(base, count), Systems(base, count, spare=False)
    found = {f"{name}, {budget} tokens": compare(systems, asked, budget, count) for budget in BUDGETS}
    for probe in ("question", "own", "text"):
        scored = asked if probe == "question" else told(base, asked, probe)
        scored = [one for one in scored if all(hit.depth_score is not None for hit in one.hits)]
        if len(scored) > 1:
            rows = compare(bare, scored, 512, count)
            title = f"{name}, 512 tokens, nothing spared, score {probe}, {len(scored)} questions"
            found[title] = [row for row in rows if "," in row["system"]]
    base.close()
    return found


def measure_depths(names: Sequence[str], seconds: float, number: int) -> None:
    """The model's own depth scores of the passages found, into the sidecars of the knowledge bases."""
    from shoal.gated_llm import GatedLLM
    from shoal.gated_llm.skim import Skim

    until, skim = time.monotonic() + seconds, Skim(GatedLLM.load())
    for name in names:
        base, questions = open_base(name)
        asked = [ask(base, question, answers) for question, _, answers in chosen(questions, number)]
        texts = list(dict.fromkeys(hit.text for one in asked for hit in one.hits))
        depths, done = Depths(default_reader(), folder=base.path, scorer=skim), 0
        while done < len(texts) and time.monotonic() < until:
            depths.score(texts[done : done + 8])
            done += 8
        print(f"{name}: {min(done, len(texts))} of {len(texts)} passages are scored", flush=True)
        base.close()


def answer(seconds: float, number: int, count: Count) -> None:
    """Greedy answers of the default model to a sample of XQuAD en from every system's context, kept in PARTS."""
    from shoal.gated_llm import GatedLLM

    until, path = time.monotonic() + seconds, PARTS / "answers.jsonl"
    known = {json.loads(line)["key"] for line in path.open(encoding="utf-8")} if path.exists() else set()
    base, questions = open_base("xquad en")
    base.depth_probe = probe_of(base)
    llm = GatedLLM.load()
    systems = Systems(base, count)
    with path.open("a", encoding="utf-8") as file:
        for question, _, answers in chosen(questions, number):
            one = ask(base, question, answers)
            for budget in BUDGETS[1:]:
                for text in dict.fromkeys(found[0][0] for found in systems.all(one, budget).values()):
                    if (key := key_of(question, text)) in known or time.monotonic() > until:
                        continue
                    llm.prefix = type(llm.prefix)(0)  # nothing is shared between prompts
                    start = time.perf_counter()
                    chunks = llm.stream(prompt_of(question, text), max_tokens=TOKENS, adapter="grounded")
                    made, first = "", 0.0
                    for chunk in chunks:
                        first, made = first or time.perf_counter() - start, made + chunk.text
                        last = chunk
                    line = {
                        "key": key, "text": made.strip(), "first_ms": round(1000 * first), "depth": last.depth.max,
                        "prompt_tokens": last.usage.prompt_tokens if last.usage else 0,
                    }  # fmt: skip
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    file.flush()
                    known.add(key)
    print(f"{len(known)} answers are kept in {path}")
    base.close()


def prompt_of(question: str, text: str) -> list[dict[str, str]]:
    """The prompt in the words in which the router asks."""
    return grounded([Message(role="user", content=question)], question, text, "en")


def key_of(question: str, text: str) -> str:
    return hashlib.sha256(f"{question}\0{text}".encode()).hexdigest()[:24]


def answered(number: int, count: Count) -> dict[str, Any]:
    """The tables of the answers that are kept: questions for which every system's answer is there."""
    path = PARTS / "answers.jsonl"
    kept = (
        {one["key"]: one for line in path.open(encoding="utf-8") for one in [json.loads(line)]} if path.exists() else {}
    )
    base, questions = open_base("xquad en")
    base.depth_probe = probe_of(base)
    systems, tables = Systems(base, count), dict[str, Any]()
    made: dict[tuple[int, str], list[tuple[float, float, dict[str, Any]]]] = {}
    for question, _, answers in chosen(questions, number):
        one = ask(base, question, answers)
        item = Item(question=question, passage="", answers=answers, article="")
        found = {(b, name): key_of(question, c[0][0]) for b in BUDGETS[1:] for name, c in systems.all(one, b).items()}
        if all(key in kept for key in found.values()):
            for place, key in found.items():
                made.setdefault(place, []).append((*score(kept[key]["text"], item), kept[key]))
    base.close()
    for budget in BUDGETS[1:]:
        rows = []
        for (at, name), values in made.items():
            if at == budget:
                contained, f1, lines = zip(*values, strict=True)
                first = [v[0] for v in made[budget, "rerank"]]
                rows.append(
                    {
                        "system": name,
                        "containment": round(float(np.mean(contained)), 3),
                        "F1": round(float(np.mean(f1)), 3),
                        "containment against rerank": interval(np.subtract(contained, first))
                        if name != "rerank"
                        else "",
                        "prompt tokens": round(float(np.mean([line["prompt_tokens"] for line in lines]))),
                        "first token ms": round(float(np.median([line["first_ms"] for line in lines]))),
                        "depth": round(float(np.mean([line["depth"] for line in lines])), 2),
                    }
                )
        if rows:
            tables[f"xquad en, {budget} tokens, {len(made[budget, 'rerank'])} questions"] = rows
            print(f"answers, {budget} tokens, {len(made[budget, 'rerank'])} questions\n{table(rows)}\n")
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=200, help="of each set")
    parser.add_argument("--answered", type=int, default=40, help="of XQuAD en, for answers")
    parser.add_argument("--sets", nargs="+", default=list(FILES))
    parser.add_argument("--score", type=float, default=0.0, help="score passages with the model for so many seconds")
    parser.add_argument("--answer", type=float, default=0.0, help="make answers for so many seconds")
    asked = parser.parse_args()
    count = tokens_of()
    if asked.score or asked.answer:
        if asked.score:
            measure_depths(asked.sets, asked.score, asked.questions)
        if asked.answer:
            answer(asked.answer, asked.answered, count)
        return
    write(
        "ablation",
        "Contexts at equal token budgets: what each part is worth",
        {
            "note": f"{asked.questions} questions of each set, {FOUND} passages found; every third passage also as a "
            f"shortened copy, {DISTRACTORS} passages of other articles. Recall: an answer string is in the context. "
            "Differences are paired 95% bootstrap intervals in points. The filter leaves out passages below a "
            f"calibrated depth score of {LIMIT}, but for the first {MIN_KEEP} and those that score {RELEVANT} or more; "
            "'nothing spared' spares only the easiest, and goes by the score for the question, by the model's own "
            "score of the text alone ('own'), and by that as predicted ('text'). Random drops leave out as many of "
            "the same passages. Depth: mean calibrated score, 1 where not known: of CMRC's passages the model read "
            "none, of XQuAD zh's those of the questions that the tables without spared passages are about; 21 of the "
            "269 of XQuAD en are predicted. Answers: the default model with the grounded adapter, greedy, full depth, "
            "nothing shared between prompts, on a busy machine; depth is that of the deepest token. Reranking, filter "
            "and fusion together are the row `fusion, depth filter`.",
            "recall": recalls(asked.sets, asked.questions, count),
            "answers": answered(asked.answered, count),
        },
    )


if __name__ == "__main__":
    main()
