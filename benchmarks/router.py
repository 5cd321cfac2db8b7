"""R1, R3: how well requests are routed, on held-out requests, against what people would use instead.

One run prints: accuracy and macro-F1 by language with baselines on the same embedding (nearest centroid, a rule set,
random, always deep, a vote of the nearest examples, the package `semantic-router` if it is installed), accuracy on
sources never trained on, out-of-scope recall (CLINC test) at 95% in-scope precision, the false answers of the FAQ, and
the time of a decision on one core. XQuAD questions and MT-bench prompts are only measured on.
"""

import json
import os
import random
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._router import DATA, OUT, SEED, embeddings, table, write
from shoal.cache import same_question
from shoal.rag.embed import default_embedder
from shoal.router.classifier import ASSET, Classifier
from shoal.router.decision import Message, Route
from shoal.router.faq import Scoring
from shoal.router.features import CHEAP, read
from shoal.router.train.data import ROUTES, Table, collect, tabulate
from shoal.router.train.faq_fit import Remembering, ask, faqs, groups_of, measure
from shoal.router.train.fit import fit, softmax
from shoal.router.train.report import confusion, macro_f1, reliability, route_metrics
from shoal.router.train.sources import SOURCES, clinc_oos

UNSEEN = (
    "gsm8k",
    "strategyqa",
    "cmath",
    "nq",
    "hotpot",
    "cmrc",
    "dureader",
    "banking",
    "stackfaq",
    "belle",
    "self_instruct",
)
MT_BENCH = {
    "extraction": "direct",
    "roleplay": "deep",
    "knowledge": "rag",
    "generic": "rag",
}  # other categories are deep


def rules(x: np.ndarray) -> np.ndarray:
    """Length and keywords, as a first router is often written; [n, dim + cheap] to routes."""
    at = {name: x[:, i - len(CHEAP)] for i, name in enumerate(CHEAP)}
    long = at["log_chars"] * 4 > np.log(160)
    deep = long | (
        at["math"]
        + at["code"]
        + at["choices"]
        + at["reason"]
        + at["plan"]
        + at["compare"]
        + at["create"]
        + at["guiding"]
        > 0
    )
    rag = at["why"] + at["how"] > 0
    extract = at["who"] + at["when"] + at["where"] + at["which"] + at["what"] + at["how_much"] > 0
    order = [deep, (at["support"] > 0) & (at["i"] + at["how"] > 0), rag, extract]
    return np.select(
        order, [ROUTES.index(Route(r)) for r in ("deep", "faq", "rag", "extract")], ROUTES.index(Route.DIRECT)
    )


def baselines(train: Table, test: Table) -> dict[str, np.ndarray]:
    """Routes guessed by each baseline, on the embedding alone where it uses one."""
    dim = train.x.shape[1] - len(CHEAP)
    routed = train.route >= 0
    vectors, labels = train.x[routed, :dim], train.route[routed]
    centroids = np.array([vectors[labels == r].mean(axis=0) for r in range(len(ROUTES))])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    draw = np.random.default_rng(SEED)
    chosen = np.concatenate([draw.permutation(np.flatnonzero(labels == r))[:200] for r in range(len(ROUTES))])
    near = test.x[:, :dim] @ vectors[chosen].T
    top = np.argsort(-near, axis=1)[:, :5]  # semantic-router: mean of the 5 nearest examples, summed per route
    votes = np.zeros((len(test), len(ROUTES)))
    for k in range(5):
        np.add.at(
            votes,
            (np.arange(len(test)), labels[chosen][top[:, k]]),
            np.take_along_axis(near, top[:, k : k + 1], 1)[:, 0],
        )
    return {
        "nearest centroid": (test.x[:, :dim] @ centroids.T).argmax(axis=1),
        "vote of 5 nearest examples": votes.argmax(axis=1),
        "rules": rules(test.x),
        "random": draw.integers(0, len(ROUTES), len(test)),
        "always deep": np.full(len(test), ROUTES.index(Route.DEEP)),
    }


def semantic_router(train: Table, test: Table) -> np.ndarray | None:
    """Routes of the package `semantic-router` with 200 utterances a route on the same embedding; None without it."""
    try:
        from semantic_router import Route as TheirRoute
        from semantic_router.encoders.base import DenseEncoder
        from semantic_router.routers import IndexedRouter
    except ImportError:
        print("semantic-router is not installed: its row is left out")
        return None
    dim = train.x.shape[1] - len(CHEAP)
    vectors = {e.text: row[:dim] for t in (train, test) for e, row in zip(t.examples, t.x, strict=True)}

    class Known(DenseEncoder):
        def __call__(self, docs: list[Any]) -> list[list[float]]:
            return [vectors[doc].tolist() for doc in docs]

        async def acall(self, docs: list[Any]) -> list[list[float]]:
            return self(docs)

    draw = random.Random(SEED)
    texts = [[e.text for e in train.examples if e.route == route.value] for route in ROUTES]
    theirs = [TheirRoute(name=r.value, utterances=draw.sample(t, 200)) for r, t in zip(ROUTES, texts, strict=True)]
    router = IndexedRouter(encoder=Known(name="known"), routes=theirs)
    return np.array([ROUTES.index(Route(router(e.text).name)) for e in test.examples])


def routes(classifier: Classifier, tables: dict[str, Table]) -> dict[str, Any]:
    test = tables["test"].where(lambda e: e.route is not None)
    p = classifier.probabilities(test.x)["route"][:, [list(classifier.meta["routes"]).index(r.value) for r in ROUTES]]
    language, source = np.array([e.language for e in test.examples]), np.array([e.source for e in test.examples])
    rows, each = [], []
    guesses = {"classifier": p.argmax(axis=1), **baselines(tables["train"], test)}
    if (theirs := semantic_router(tables["train"], test)) is not None:
        guesses["semantic-router"] = theirs
    for name, guess in guesses.items():
        for lang in ("en", "zh"):
            m = language == lang
            f1, by = macro_f1(test.route[m], guess[m])
            rows.append(
                {
                    "router": name,
                    "language": lang,
                    "n": int(m.sum()),
                    "accuracy": float((guess == test.route)[m].mean()),
                    "macro-F1": f1,
                    "too shallow": float((guess < test.route)[m].mean()),
                }
            )
            if name == "classifier":
                each.append({"language": lang, **by})
    calibration = []
    for lang in ("en", "zh"):
        m = route_metrics(p[language == lang], test.route[language == lang], float(classifier.meta["conformal"]))
        calibration.append(
            {
                "language": lang,
                "ECE": m["ece"],
                "coverage of the set": m["coverage"],
                "decided (one route left)": m["decided"],
                "accuracy where decided": m["accuracy_decided"],
                "too shallow after abstention": m["too_shallow_after_abstention"],
            }
        )
    by_source = [
        {
            "source": s,
            "n": int((source == s).sum()),
            "accuracy": float((guesses["classifier"] == test.route)[source == s].mean()),
        }
        for s in sorted(set(source))
    ]
    for name, part in (
        ("routers", rows),
        ("F1 per route", each),
        ("calibration", calibration),
        ("by source", by_source),
    ):
        print(f"\n{name}\n" + table(part))
    return {
        "routers": rows,
        "F1 per route": each,
        "calibration and abstention": calibration,
        "accuracy by source": by_source,
        "drawn": {
            "reliability": reliability(p.max(axis=1), guesses["classifier"] == test.route),
            "confusion": {
                "routes": [route.value for route in ROUTES],
                "counts": confusion(test.route, guesses["classifier"]),
            },
        },
    }


def never_seen(embed: Any, classifier: Classifier) -> list[dict[str, Any]]:
    """Accuracy on a source when nothing of it was trained on, with 6,000 training rows a run to keep it short."""
    rows = []
    draw = random.Random(SEED)
    examples = collect(DATA, seed=SEED, sources=[s for s in SOURCES if s != "routellm"])
    for out in UNSEEN:
        mine = {e.source for e in SOURCES[out](DATA)}
        rest = [e for e in examples if e.source not in mine]
        train = [e for e in rest if e.split == "train"]
        draw.shuffle(train)
        chosen = (
            train[:12000]
            + [e for e in rest if e.split == "calibration"][::3]
            + [e for e in examples if e.source in mine and e.split == "test"]
        )
        tables = tabulate(chosen, embed, seed=SEED)
        fitted = fit(tables["train"], tables["calibration"], epochs=8, seed=SEED)
        p = softmax(fitted.logits(tables["test"].x)["route"])
        m = route_metrics(p, tables["test"].route, fitted.conformal)
        guess, truth = p.argmax(axis=1), tables["test"].route
        wide = np.array([ROUTES.index(Route.RAG) if g == ROUTES.index(Route.EXTRACT) else g for g in guess])
        same = np.array([ROUTES.index(Route.RAG) if t == ROUTES.index(Route.EXTRACT) else t for t in truth])
        rows.append(
            {
                "source left out": out,
                "n": len(truth),
                "accuracy": m["accuracy"],
                "with extract and rag as one": float((wide == same).mean()),
                "too shallow": m["too_shallow"],
                "after abstention": m["too_shallow_after_abstention"],
            }
        )
    print("\nsources never trained on\n" + table(rows))
    return rows


def only_measured(classifier: Classifier, embed: Any) -> list[dict[str, Any]]:
    sets: dict[str, list[tuple[str, str]]] = {}
    for language in ("en", "zh"):
        data = json.loads((DATA / f"xquad/xquad.{language}.json").read_text(encoding="utf-8"))["data"]
        sets[f"xquad_{language} (extract or rag)"] = [
            (q["question"], "extract rag") for a in data for p in a["paragraphs"] for q in p["qas"]
        ]
    for name in ("mt_bench", "vicuna_bench"):
        lines = (
            (DATA / f"mt_bench/fastchat__llm_judge__data__{name}__question.jsonl")
            .read_text(encoding="utf-8")
            .splitlines()
        )
        sets[name] = [(row["turns"][0], MT_BENCH.get(row["category"], "deep")) for row in map(json.loads, lines)]
    rows = []
    for name, items in sets.items():
        features = [read((Message(role="user", content=text),)) for text, _ in items]
        found = classifier.from_features(features, embed([f.focus for f in features]))
        rows.append(
            {
                "set": name,
                "n": len(items),
                "accuracy": sum(f.likely.value in truth.split() for f, (_, truth) in zip(found, items, strict=True))
                / len(items),
                "after abstention": sum(
                    f.route.value in truth.split() for f, (_, truth) in zip(found, items, strict=True)
                )
                / len(items),
            }
        )
    print("\nmeasured only\n" + table(rows))
    return rows


def at_precision(score: np.ndarray, inside: np.ndarray, precision: float) -> tuple[float, float]:
    """(share of outsiders kept out, share of insiders let in) at the lowest threshold with that in-scope precision."""
    order = np.argsort(-score)
    right = np.cumsum(inside[order]) / np.arange(1, len(order) + 1)
    last = np.flatnonzero(right >= precision)
    cut = int(last[-1]) + 1 if len(last) else 0
    return 1 - (~inside[order][:cut]).sum() / (~inside).sum(), inside[order][:cut].sum() / inside.sum()


def scope(embed: Any) -> list[dict[str, Any]]:
    """CLINC: an FAQ of its 150 training intents, asked its test part and the 1,000 out-of-scope requests."""
    groups = groups_of(DATA)["clinc"]
    texts = [(t, g) for g, ts in groups["test"].items() for t in ts]
    outside = clinc_oos(DATA, "test")
    known = [(t, g) for g, ts in groups["train"].items() for t in ts]
    vectors, asked = embed([t for t, _ in known]), embed([t for t, _ in texts] + outside)
    inside = np.r_[np.ones(len(texts), dtype=bool), np.zeros(len(outside), dtype=bool)]
    names = sorted(groups["train"])
    owner = np.array([names.index(g) for _, g in known])
    near = asked @ vectors.T
    centroids = np.array([vectors[owner == i].mean(axis=0) for i in range(len(names))])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    k = np.sort(near, axis=1)[:, -10:].mean(axis=1)
    best = np.array([near[:, owner == i].max(axis=1) for i in range(len(names))]).T
    ranked = np.sort(best, axis=1)
    scoring = Scoring.shipped()
    rows = []
    for name, score in (
        ("best cosine", near.max(axis=1)),
        ("mean of 10 nearest", k),
        ("nearest centroid", (asked @ centroids.T).max(axis=1)),
        (
            "FAQ score (cosine and lead)",
            scoring.cosine * ranked[:, -1] + scoring.lead * (ranked[:, -1] - ranked[:, -2]),
        ),
    ):
        out, let_in = at_precision(score, inside, 0.95)
        rows.append({"score": name, "out-of-scope recall": float(out), "in-scope let in": float(let_in)})
    print("\nout of scope (CLINC test, at 95% in-scope precision)\n" + table(rows))
    return rows


def answers(embed: Any) -> list[dict[str, Any]]:
    conflict = same_question(default_embedder())
    rows = [
        row
        for each in faqs(DATA, "test", random.Random(SEED))
        for row in ask(*each, Remembering(default_embedder(), OUT / "router_embeddings.npz"), conflict)
    ]
    found = measure(Scoring.shipped(), rows)
    print("\nFAQ (test parts; half known, a quarter near-misses, a quarter from elsewhere)\n" + table(found))
    return found


def timed(call: Callable[[int], Any], n: int) -> dict[str, float]:
    taken = []
    for i in range(n):
        began = time.perf_counter()
        call(i)
        taken.append((time.perf_counter() - began) * 1e3)
    taken.sort()
    return {"p50 ms": taken[n // 2], "p95 ms": taken[int(n * 0.95)], "p99 ms": taken[int(n * 0.99)]}


def speed() -> list[dict[str, Any]]:
    """One core: the first decision of a process, new requests, remembered ones, batches, with the guard."""
    from shoal.router.guard import Guard

    os.sched_setaffinity(0, {next(iter(os.sched_getaffinity(0)))})
    began = time.perf_counter()
    embed = default_embedder()
    classifier = Classifier.load(embed)
    texts = [e.text for e in collect(DATA, seed=SEED, sources=("nq", "cmrc", "banking", "gsm8k")) if e.split == "test"]
    random.Random(SEED).shuffle(texts)
    load_ms = (time.perf_counter() - began) * 1e3
    as_messages = [(Message(role="user", content=t),) for t in texts]
    classifier.predict(as_messages[0])
    rows = [{"what": "new request, embedding included", **timed(lambda i: classifier.predict(as_messages[i + 1]), 500)}]
    rows.append({"what": "remembered request", **timed(lambda i: classifier.predict(as_messages[i + 1]), 500)})
    guard = Guard(embed)
    guard.check(as_messages[0])
    rows.append({"what": "guard", **timed(lambda i: guard.check(as_messages[i + 600]), 300)})
    both = [read(m) for m in as_messages[1000:1064]]
    rows.append(
        {"what": "batch of 64", **timed(lambda i: classifier.from_features(both, embed([f.focus for f in both])), 20)}
    )
    rows.append(
        {
            "what": f"load embedder and classifier (once, read data: {len(texts)} texts)",
            "p50 ms": load_ms,
            "p95 ms": load_ms,
            "p99 ms": load_ms,
        }
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\ntime on one core; peak memory {memory:.0f} MB, the benchmark's data included\n" + table(rows))
    return rows


def main() -> None:
    embed = embeddings()
    classifier = Classifier.load(default_embedder())
    tables = tabulate(collect(DATA, seed=SEED), embed, seed=SEED)
    result = routes(classifier, tables)
    result["measured only"] = only_measured(classifier, embed)
    result["out of scope"] = scope(embed)
    result["FAQ"] = answers(embed)
    result["sources never trained on"] = never_seen(embed, classifier)
    result["summary"] = {"parameters": classifier.parameters, "asset bytes": ASSET.stat().st_size}
    print(f"\nparameters {classifier.parameters}")
    result["time on one core"] = speed()
    write("router", "Routes, FAQ and decision time (R1, R3)", result)


if __name__ == "__main__":
    main()
