"""R9: what trying an unsure shallow answer once more at full depth buys, and what it costs.

Questions over their passage (SQuAD test articles, none trained on), asked of the local model as the router asks them:
at a shallow budget and at full depth. An answer whose mean top-1 probability is below the threshold is given up for
the full-depth one and both are billed, as the router does. Reported per shallow budget and threshold: share escalated,
token F1, share holding the reference, layer-tokens per question; beside it always shallow, always full, and escalating
as many at random. Greedy, so the figures do not depend on the machine's load.
"""

import argparse
import random
import re
from collections import Counter
from dataclasses import dataclass

from benchmarks._router import DATA, SEED, table, write
from shoal.gated_llm import GatedLLM
from shoal.router.pipeline import UNSURE
from shoal.router.train.answered import answered

BUDGETS = (28, 24)
THRESHOLDS = (0.2, UNSURE, 0.5, 0.6, 0.7)
NEW, PROMPT = 12, 180  # tokens of an answer, and of the longest prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One answer: how sure the model was, how good it is, what it cost."""

    confidence: float
    f1: float
    holds: bool
    layer_tokens: float


def words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the")]


def f1_of(text: str, reference: str) -> float:
    """Token F1, as SQuAD measures it."""
    said, wanted = words(text), words(reference)
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted)) if shared else 0.0


def answer(llm: GatedLLM, prompt: object, reference: str, depth: int) -> Try:
    made = llm.generate(prompt, max_depth=depth, max_tokens=NEW, stop=("\n",))
    holds = " ".join(words(reference)) in " ".join(words(made.text))
    return Try(
        confidence=made.confidence,
        f1=f1_of(made.text, reference),
        holds=holds,
        layer_tokens=made.usage.layer_tokens,
    )


def outcome(name: str, pairs: list[tuple[Try, Try]], again: list[bool]) -> dict[str, object]:
    """What comes out when the marked questions are tried again at full depth."""
    final = [full if more else shallow for (shallow, full), more in zip(pairs, again, strict=True)]
    spent = [s.layer_tokens + f.layer_tokens * more for (s, f), more in zip(pairs, again, strict=True)]
    return {
        "escalated when": name,
        "share": sum(again) / len(again),
        "F1": sum(each.f1 for each in final) / len(final),
        "holds the reference": sum(each.holds for each in final) / len(final),
        "layer-tokens": sum(spent) / len(spent),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=40)
    count = parser.parse_args().questions
    rows = [row for row in answered(DATA) if row["source"] == "squad" and row["split"] == "test"]
    random.Random(SEED).shuffle(rows)
    results: dict[str, object] = {}
    with GatedLLM.load() as llm:
        chosen = [row for row in rows[: 4 * count] if llm.count_tokens(row["prompt"]) <= PROMPT][:count]
        tries = []
        for i, row in enumerate(chosen, 1):
            tries.append([answer(llm, row["prompt"], row["answer"], depth) for depth in (*BUDGETS, llm.total)])
            if i % 10 == 0:
                print(f"{i} of {len(chosen)}", flush=True)
    draw = random.Random(SEED)
    for at, budget in enumerate(BUDGETS):
        pairs = [(each[at], each[-1]) for each in tries]
        found = [outcome("never", pairs, [False] * len(pairs))]
        for threshold in THRESHOLDS:
            again = [shallow.confidence < threshold for shallow, _ in pairs]
            name = f"confidence < {threshold:g}" + (" (shipped)" if threshold == UNSURE else "")
            found.append(outcome(name, pairs, again))
            if 0 < sum(again) < len(again):
                by_chance = [outcome("", pairs, draw.sample(again, len(again))) for _ in range(200)]
                found[-1]["F1 at random"] = sum(float(str(each["F1"])) for each in by_chance) / len(by_chance)
            else:
                found[-1]["F1 at random"] = found[-1]["F1"]
        found[0]["F1 at random"] = found[0]["F1"]
        whole = [(full, full) for _, full in pairs]
        found.append({**outcome("always full depth at once", whole, [False] * len(pairs)), "F1 at random": ""})
        print(f"\nshallow budget {budget}\n" + table(found))
        results[f"shallow budget {budget} of 30"] = found
    note = (
        f"{len(tries)} questions over their passage (SQuAD, test articles), {NEW} tokens, greedy. Layer-tokens are per "
        "question, the prompt included, which is read in full each time."
    )
    write("escalation", "Escalation of unsure shallow answers (R9)", {"note": note, **results})


if __name__ == "__main__":
    main()
