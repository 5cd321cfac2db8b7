"""What the depth score of a passage goes with, and which ways to take it tell a passage that answers from another (A3).

    python -m benchmarks.depth_score --measure SECONDS [--passages N]  # variants, by the model; goes on
    python -m benchmarks.depth_score

Passages of training sets only, those of `shoal.router.train.depth_values`.
Correlations: with length, perplexity and readability. Variants: each passage is read by the default model three times:
alone, after a question that it answers, and after one about its neighbour.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._router import OUT, table, write
from shoal.gated_llm import GatedLLM
from shoal.rag.chunk import sentences
from shoal.rag.depth import ASSET
from shoal.rag.train.depth import VALUES, rank_correlation
from shoal.rag.words import length
from shoal.router.train.depth_values import wanted

LENSES, EVERY, SAFE = (5, 9, 13, 17, 21, 24, 26, 28), 3, 3
PART = OUT / "depth_variants.jsonl"
VARIANTS: dict[str, Callable[[Mapping[str, float]], float]] = {
    "predictions that survive 27 of 30 layers (shipped)": lambda r: r["overlap 27"],
    "the same at 24 of 30 layers": lambda r: r["overlap 24"],
    "same first choice at 27 layers": lambda r: r["same 27"],
    "1 - attention branch's share of the stream": lambda r: 1 - r["attention"],
    "1 - MLP branch's share of the stream": lambda r: 1 - r["mlp"],
    "cosine of each layer's input and output": lambda r: r["cosine"],
    "how early the first choice is final": lambda r: r["early"],
    "mean top probability": lambda r: r["sure"],
    "- surprise": lambda r: -r["surprise"],
}


def measure(llm: GatedLLM, before: str, text: str, most: int = 256) -> dict[str, float]:
    """All that the variants need of one text, over its tokens and the layers that may be skipped."""
    import torch

    decoder, plan = llm.model.reader, llm.plan  # type: ignore[attr-defined]
    head = llm.tokenizer.encode_text(before)
    ids = head + llm.tokenizer.encode_text(text)[:most]
    places, tokens, at = torch.arange(len(ids))[None], torch.tensor([ids]), slice(len(head), len(ids))
    out: dict[str, float] = {}
    with torch.inference_mode():
        cache = decoder.cache(len(ids))
        cache.advance(places)
        rotary, x = decoder.rotary(places), decoder.embed(tokens)
        shares, cosines, lenses = list[tuple[float, float]](), list[float](), list[Any]()
        for layer in range(decoder.config.layers):
            attention = decoder.attend(layer, x, places, rotary, cache)
            middle = x + attention
            mlp = decoder.feed(layer, middle)
            shares.append((_share(attention[0, at], x[0, at]), _share(mlp[0, at], middle[0, at])))
            cosines.append(
                torch.cosine_similarity(x[0, at].float(), (middle + mlp)[0, at].float(), dim=-1).mean().item()
            )
            x = middle + mlp
            if layer in LENSES:
                lenses.append(decoder.logits(decoder.finish(x)[0, len(head) - 1 : -1 : EVERY]).argmax(-1))
        whole = decoder.logits(decoder.finish(x)[0, len(head) - 1 : -1]).softmax(-1)
        final = whole.argmax(-1)
        stays = torch.stack([lens == final[::EVERY] for lens in lenses]).int().flip(0).cumprod(0).sum(0)
        said = whole.gather(1, tokens[0, at, None])
        out |= {
            "attention": float(np.mean([a for a, _ in shares[:-SAFE]])),
            "mlp": float(np.mean([m for _, m in shares[:-SAFE]])),
            "cosine": float(np.mean(cosines[:-SAFE])),
            "early": stays.float().mean().item() / len(LENSES),
            "sure": whole.max(-1).values.mean().item(),
            "surprise": -said.clamp(min=1e-12).log().mean().item(),
        }
        for depth in (27, 24):
            mask = plan.mask(plan.point_for(depth))
            hidden = decoder.forward(tokens, places, decoder.cache(len(ids)), mask)
            less = decoder.logits(hidden[0, len(head) - 1 : -1]).softmax(-1)
            out[f"overlap {depth}"] = torch.minimum(whole, less).sum(-1).mean().item()
            out[f"same {depth}"] = (less.argmax(-1) == final).float().mean().item()
    return out


def _share(added: Any, stream: Any) -> float:
    small, large = added.float().norm(dim=-1), stream.float().norm(dim=-1)
    return float((small / (small + large)).mean())


def collect(seconds: float, passages: int) -> None:
    """Measures passages that have questions, into PART; what is there stays."""
    until = time.monotonic() + seconds
    OUT.mkdir(exist_ok=True)
    done = {json.loads(line)["id"] for line in PART.open(encoding="utf-8")} if PART.exists() else set()
    llm = GatedLLM.load()
    with PART.open("a", encoding="utf-8") as file:
        for one in [one for one in wanted()[:passages] if "gold" in one["q"] and one["id"] not in done]:
            if time.monotonic() > until:
                break
            kinds = {
                kind: measure(llm, f"Question: {question}\nPassage: " if question else "Passage: ", one["text"])
                for kind, question in one["q"].items()
            }
            file.write(json.dumps({"id": one["id"], "lang": one["lang"], "read": kinds}, ensure_ascii=False) + "\n")
            file.flush()
            done.add(one["id"])
    print(f"{len(done)} passages are measured")


def readability(text: str, language: str) -> float:
    """Flesch's reading ease in English; characters a sentence, negated, in Chinese: higher is easier."""
    count = max(1, len(sentences(text)))
    if language == "zh":
        return -len(text) / count
    words = re.findall(r"[A-Za-z]+", text) or ["a"]
    syllables = sum(max(1, len(re.findall(r"[aeiouy]+", word.lower()))) for word in words)
    return 206.835 - 1.015 * len(words) / count - 84.6 * syllables / len(words)


def correlations() -> list[dict[str, Any]]:
    """Rank correlation of the shipped raw score with length, surprise (the logarithm of perplexity), readability."""
    lines = [json.loads(line) for line in VALUES.open(encoding="utf-8")]
    rows = []
    for language in ("en", "zh"):
        mine = [line for line in lines if line["lang"] == language]
        scores = np.array([line["read"]["free"]["score"] for line in mine])
        with_ = {
            "length": [length(line["text"]) for line in mine],
            "perplexity": [line["read"]["free"]["surprise"] for line in mine],
            "readability": [readability(line["text"], language) for line in mine],
        }
        row: dict[str, Any] = {"language": language, "passages": len(mine), "mean": round(float(scores.mean()), 3)}
        row["spread"] = round(float(scores.std()), 3)
        rows.append(row | {name: round(rank_correlation(scores, np.array(v)), 2) for name, v in with_.items()})
    return rows


def auc(high: NDArray[np.float64], low: NDArray[np.float64]) -> float:
    """How often one of `high` is above one of `low`."""
    return float(np.mean(high[:, None] > low[None]))


def variants() -> list[dict[str, Any]]:
    """One row a variant and language: how well it tells a passage that answers the question from one that does not."""
    many = [json.loads(line) for line in VALUES.open(encoding="utf-8")]
    many = [{**line, "read": {k: {**v, "overlap 27": v["score"]} for k, v in line["read"].items()}} for line in many]
    few = [json.loads(line) for line in PART.open(encoding="utf-8")] if PART.exists() else []
    rows = []
    for language in ("en", "zh"):
        for name, of in VARIANTS.items():
            found = told(of, many, language) or told(of, few, language)
            if len(found) > 1:
                free, gold, near, surprise = (np.array(column) for column in zip(*found, strict=True))
                rows.append(
                    {
                        "language": language, "variant": name, "passages": len(found),
                        "same passage, answers or not": round(float(np.mean(gold > near)), 2),
                        "other passages": round(auc(gold, near), 2),
                        "other passages, less the score alone": round(auc(gold - free, near - free), 2),
                        "with surprise": round(rank_correlation(free, surprise), 2),
                    }
                )  # fmt: skip
    return rows


def told(
    of: Callable[[Mapping[str, float]], float], lines: Sequence[Mapping[str, Any]], language: str
) -> list[tuple[float, ...]]:
    """(alone, with a question it answers, with another, surprise) of the passages that have what a variant needs."""
    found = []
    for line in lines:
        read = line["read"]
        if line["lang"] == language and "gold" in read:
            try:
                found.append((*(of(read[kind]) for kind in ("free", "gold", "near")), read["free"]["surprise"]))
            except KeyError:
                continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=float, default=0.0, help="seconds")
    parser.add_argument("--passages", type=int, default=60)
    asked = parser.parse_args()
    if asked.measure:
        collect(asked.measure, asked.passages)
        return
    values: dict[str, Any] = {
        "note": "Raw score: mean over tokens of the share of the next token's distribution that is the same at 27 of "
        "30 layers, passages of training sets. Perplexity at full depth. Readability: Flesch's reading ease, or fewer "
        "characters a sentence in Chinese; higher is easier. Variants: how often a passage read after a question that "
        "it answers scores higher than the same passage, or than other passages, read after a question of a "
        "neighbour; 0.5 is chance. Where few passages were read, Chinese ones were read whole, else 256 tokens. "
        "Predictors: over folds that share no article.",
        "rank correlation": correlations(),
        "variants": variants(),
        "predictors": [{"of": name, **error} for name, error in json.loads(ASSET.read_text("utf-8"))["error"].items()],
    }
    for name in ("rank correlation", "variants", "predictors"):
        print(f"{name}\n{table(values[name])}\n" if values[name] else f"{name}: nothing yet")
    write("depth_score", "Depth score of passages: what it goes with", values)


if __name__ == "__main__":
    main()
