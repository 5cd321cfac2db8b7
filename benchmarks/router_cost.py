"""Cost against quality on RouteLLM's tables: which questions need the strong model (Mixtral 8x7B and GPT-4 there).

For each question of MMLU and GSM8K the tables say whether the weak and the strong model were right. A router sends the
share of questions it finds hardest to the strong model. Reported: the share of strong calls needed for 50, 80 and 95%
of the gap between weak and strong, and APGR, the area under the recovered gap (random is 0.5), on the test part of the
questions; beside it random, best single and the oracle.
"""

import numpy as np

from benchmarks._router import DATA, SEED, embeddings, table, write
from shoal.rag.embed import default_embedder
from shoal.router.classifier import Classifier
from shoal.router.decision import Message
from shoal.router.features import read
from shoal.router.train.sources import routellm_rows, split_of

STEPS = 61
GOALS = (0.5, 0.8, 0.95)


def curve(hard: np.ndarray, weak: np.ndarray, strong: np.ndarray) -> np.ndarray:
    """Accuracy when the k hardest questions go to the strong model, for k = 0..n."""
    order = np.argsort(-hard, kind="stable")
    gain = strong[order].astype(float) - weak[order]
    return (weak.sum() + np.concatenate([[0.0], np.cumsum(gain)])) / len(weak)


def recovered(accuracy: np.ndarray) -> np.ndarray:
    return (accuracy - accuracy[0]) / (accuracy[-1] - accuracy[0])


def drawn(curves: dict[tuple[str, str], np.ndarray]) -> dict[str, dict[str, list[float]]]:
    """The curves at equal steps of the share of strong calls, for the picture."""
    tables: dict[str, dict[str, list[float]]] = {}
    for (name, router), shares in curves.items():
        at = np.linspace(0, len(shares) - 1, STEPS).round().astype(int)
        tables.setdefault(name, {})[router] = [round(float(share), 4) for share in shares[at]]
    return tables


def main() -> None:
    classifier, embed = Classifier.load(default_embedder()), embeddings()
    rows = [(t, p.removesuffix("\nAnswer:"), w, s) for t, p, w, s in routellm_rows(DATA)]
    rows = [row for row in rows if split_of(row[1], test=40) == "test"]
    features = [read((Message(role="user", content=text),)) for _, text, _, _ in rows]
    found = classifier.from_features(features, embed([f.focus for f in features]))
    hard = np.array([1 - p.weak_ok for p in found])
    deep = np.array([p.depth[2] for p in found])
    where = np.array([t for t, *_ in rows])
    weak, strong = np.array([w for *_, w, _ in rows]), np.array([s for *_, s in rows])
    draw = np.random.default_rng(SEED)
    result, curves = [], {}
    for name in ("mmlu", "gsm8k"):
        m = where == name
        routers = {
            "router (would weak do as well?)": hard[m],
            "router (depth head)": deep[m],
            "prompt length": np.array([len(text) for t, text, *_ in rows if t == name]),
            "oracle": strong[m].astype(float) - weak[m] + 1e-3 * draw.random(m.sum()),
        }
        for router, score in routers.items():
            share = recovered(curve(score, weak[m], strong[m]))
            curves[name, router] = share
            calls = {f"strong calls for {g:.0%}": float(np.argmax(share >= g) / m.sum()) for g in GOALS}
            result.append({"table": name, "router": router, "n": int(m.sum()), **calls, "APGR": float(share.mean())})
        by_chance = np.mean([recovered(curve(draw.random(m.sum()), weak[m], strong[m])) for _ in range(50)], axis=0)
        calls = {f"strong calls for {g:.0%}": float(np.argmax(by_chance >= g) / m.sum()) for g in GOALS}
        result.append({"table": name, "router": "random", "n": int(m.sum()), **calls, "APGR": float(by_chance.mean())})
        curves[name, "random"] = by_chance
    single = [
        {"table": t, "weak alone": float(weak[where == t].mean()), "strong alone": float(strong[where == t].mean())}
        for t in ("mmlu", "gsm8k")
    ]
    print(table(result) + "\n\nbest single is strong alone, at every call\n" + table(single))
    write(
        "router_cost",
        "Cost and quality on RouteLLM's tables",
        {"curves": result, "single models": single, "drawn": drawn(curves)},
    )


if __name__ == "__main__":
    main()
