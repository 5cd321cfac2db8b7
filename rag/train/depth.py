"""Fit the light predictor of depth scores to the gated model's real values, and the calibration to a reference.

    python -m shoal.rag.train.depth

Reads what `shoal.router.train.depth_values` wrote. Two ridge regressions a language, by closed form: the score of a
passage by itself, and how a question shifts it. Their strength is chosen, and their error told, over folds that share
no article. The reference of the calibration is the very passages. Writes `rag/assets/depth.json`.
"""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..depth import ASSET, match_features, text_features
from ..reading import default_reader, match
from .data import RUNS

VALUES = RUNS.parent / "depth" / "values.jsonl"
FOLDS, LEVELS = 8, 51
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)
MEAN = 1e6  # a strength that leaves the mean
WORTH = 0.98  # of the mean's error, that a regression has to get below
Vector = NDArray[np.float64]


def ridge(rows: Vector, wanted: Vector, strength: float) -> dict[str, Any]:
    """The regression in its JSON form; `strength` is a share of the rows' own spread."""
    mean, scale = rows.mean(0), rows.std(0) + 1e-6
    plain = (rows - mean) / scale
    inner = plain @ plain.T + strength * len(rows) * np.eye(len(rows))  # fewer passages than features
    weights = plain.T @ np.linalg.solve(inner, wanted - wanted.mean())
    weights = weights if strength < MEAN else np.zeros_like(weights)
    return {"mean": mean, "scale": scale, "weights": weights, "bias": float(wanted.mean())}


def apply(fitted: dict[str, Any], rows: Vector) -> Vector:
    """What the regression says of feature rows."""
    out: Vector = fitted["bias"] + ((rows - fitted["mean"]) / fitted["scale"]) @ fitted["weights"]
    return out


def folded(rows: Vector, wanted: Vector, groups: list[str], strength: float) -> Vector:
    """Predictions for every row by a regression that saw no row of its article."""
    names = sorted(set(groups))
    random.Random(0).shuffle(names)
    fold = np.array([names.index(group) % FOLDS for group in groups])
    out = np.zeros(len(wanted))
    for one in set(fold.tolist()):
        out[fold == one] = apply(ridge(rows[fold != one], wanted[fold != one], strength), rows[fold == one])
    return out


def rank_correlation(one: Vector, other: Vector) -> float:
    """Spearman's; equal values are ranked as they come."""
    return float(np.corrcoef(one.argsort().argsort(), other.argsort().argsort())[0, 1])


def fitted(rows: Vector, wanted: Vector, groups: list[str]) -> tuple[dict[str, Any], dict[str, Any], Vector]:
    """The best regression over the folds, how far off it is, and what it said there."""
    tried = {strength: folded(rows, wanted, groups, strength) for strength in (*STRENGTHS, MEAN)}
    off = {strength: float(np.abs(said - wanted).mean()) for strength, said in tried.items()}
    best = min(off, key=off.__getitem__)
    best = best if off[best] < WORTH * off[MEAN] else MEAN
    error = error_of(tried[best], wanted)
    return ridge(rows, wanted, best), error | ({"rank correlation": None} if best == MEAN else {}), tried[best]


def error_of(said: Vector, real: Vector) -> dict[str, Any]:
    """How far predictions are off, beside always saying the mean."""
    return {
        "values": len(real),
        "MAE": round(float(np.abs(said - real).mean()), 4),
        "MAE of the mean": round(float(np.abs(real - real.mean()).mean()), 4),
        "rank correlation": round(rank_correlation(said, real), 3),
    }


def main() -> None:
    lines = [json.loads(line) for line in VALUES.open(encoding="utf-8")]
    reader = default_reader()
    made: dict[str, Any] = {"scorer": lines[0]["scorer"], "alone": {}, "shift": {}, "quantiles": {}, "error": {}}
    for language in ("en", "zh"):
        mine = [line for line in lines if line["lang"] == language]
        readings = reader.read([("", line["text"]) for line in mine])
        alone = np.array([line["read"]["free"]["score"] for line in mine])
        rows = np.array([text_features(line["text"], one) for line, one in zip(mine, readings, strict=True)])
        groups = [line["group"] for line in mine]
        made["alone"][language], made["error"][f"text alone, {language}"], _ = fitted(rows, alone, groups)
        asked = [
            (match_features(match(reader.ask(line["q"][kind]), one)), line["read"][kind]["score"], value, line["group"])
            for line, one, value in zip(mine, readings, alone, strict=True)
            for kind in line["q"]
            if kind != "free"
        ]
        features, scores, known = (np.array([one[place] for one in asked]) for place in range(3))
        names = [one[3] for one in asked]
        made["shift"][language], made["error"][f"shift by the question, {language}"], said = fitted(
            features, scores - known, names
        )
        made["error"][f"score for the question, text read before, {language}"] = error_of(known + said, scores)
        made["quantiles"][language] = np.quantile(alone, np.linspace(0, 1, LEVELS))
    for name, error in made["error"].items():
        print(name, error)
    write(ASSET, made)


def write(path: Path, made: dict[str, Any]) -> None:
    """The asset as JSON, numbers to five digits."""

    def plain(numbers: Vector) -> list[float]:
        return [float(f"{one:.5g}") for one in numbers]

    text = json.dumps(made, default=plain, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
