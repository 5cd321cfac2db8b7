"""What kind of request this is: route, depth and cacheability with calibrated probabilities (R1). numpy only.

Knows no knowledge base, FAQ or cache: it says what a request looks like, the pipeline decides what can answer it.
`faq` is a support request, `extract` a fact that one sentence can answer, `rag` a question that takes passages,
`direct` small talk or work on a text that is given, `deep` reasoning, maths, code, planning or longer writing.
Where the conformal set holds more than one route the one that does most work is taken.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from .decision import Message, Route
from .errors import RouterError
from .features import CHEAP, Embed, Features, FloatArray, read

ASSET = Path(__file__).parent / "assets" / "classifier.safetensors"
FORMAT = 2
# what abstention prefers: each route does at least the work of those before it (`extract` falls back to `rag`)
_SAFETY = {Route.DIRECT: 0, Route.FAQ: 1, Route.EXTRACT: 2, Route.RAG: 3, Route.DEEP: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """`route` after abstention; `likely` before it. `depth` sums to one over shallow, middle and deep buckets.

    `confidence` is the probability of `route` or something shallower that it may stand in for, so abstaining never
    lowers it. `cacheable` and `weak_ok` (a weak model would do as well as a strong one) are probabilities.
    """

    route: Route
    likely: Route
    routes: Mapping[Route, float]
    candidates: tuple[Route, ...]
    confidence: float
    depth: tuple[float, float, float]
    cacheable: float
    weak_ok: float

    @property
    def abstained(self) -> bool:
        return len(self.candidates) != 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "route": self.route.value,
            "likely": self.likely.value,
            "routes": {route.value: round(p, 4) for route, p in self.routes.items()},
            "candidates": [route.value for route in self.candidates],
            "depth": [round(p, 4) for p in self.depth],
            "cacheable": round(self.cacheable, 4),
            "weak_ok": round(self.weak_ok, 4),
        }


class Classifier:
    """The shipped network over an embedder. Safe to call from many threads; remembers the last `memory` decisions."""

    def __init__(
        self, tensors: Mapping[str, FloatArray], meta: Mapping[str, Any], embed: Embed, *, memory: int = 4096
    ) -> None:
        if meta.get("format") != FORMAT or list(meta.get("cheap", ())) != list(CHEAP):
            raise RouterError(
                "this is no classifier of this version of Shoal: train it again with `shoal router train`"
            )
        if meta["embedder"] != embed.fingerprint:
            raise RouterError(
                f"this classifier was trained on the embedder {meta['embedder']}, not {embed.fingerprint}: "
                "train it again with `shoal router train`"
            )
        self._w1, self._b1 = (np.asarray(tensors[n], dtype=np.float32) for n in ("w1", "b1"))
        self._w2, self._b2 = (np.asarray(tensors[n], dtype=np.float32) for n in ("w2", "b2"))
        self._weak = np.asarray(tensors["weak"], dtype=np.float32)
        self._routes = tuple(Route(name) for name in meta["routes"])
        self._heads = [(name, int(size), float(meta["temperature"][name])) for name, size in meta["heads"].items()]
        self._conformal = float(meta["conformal"])
        self.meta = dict(meta)
        self._embed, self._limit = embed, memory
        self._known: OrderedDict[str, tuple[Features, Prediction]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def load(cls, embed: Embed, path: str | Path = ASSET, *, memory: int = 4096) -> "Classifier":
        """The classifier in `path`, the shipped one by default. Raises RouterError when missing or of another kind."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="numpy") as file:
                meta = json.loads((file.metadata() or {}).get("shoal", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return cls(tensors, meta, embed, memory=memory)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError) as error:
            raise RouterError(
                f"no readable classifier at {path} ({type(error).__name__}): train one with `shoal router train`"
            ) from error
        except RouterError as error:
            raise RouterError(f"{path}: {error}") from None

    @property
    def parameters(self) -> int:
        return sum(part.size for part in (self._w1, self._b1, self._w2, self._b2, self._weak))

    def predict(self, messages: Sequence[Message], vector: FloatArray | None = None) -> tuple[Features, Prediction]:
        """Features and prediction of a conversation's last turn. `vector` [dim] is the embedding of its `focus`."""
        known = self.recall(messages)
        if known is not None:
            return known
        features = read(messages)
        return features, self.rate(messages, features, self._embed([features.focus])[0] if vector is None else vector)

    def recall(self, messages: Sequence[Message]) -> tuple[Features, Prediction] | None:
        """What was said of this very conversation before, where it is remembered."""
        key = _key(messages)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def rate(self, messages: Sequence[Message], features: Features, vector: FloatArray) -> Prediction:
        """The prediction for a conversation from its features and the embedding [dim] of its focus; remembered."""
        prediction = self.from_features([features], vector[None])[0]
        with self._lock:
            self._known[_key(messages)] = features, prediction
            while len(self._known) > self._limit:
                self._known.popitem(last=False)
        return prediction

    def from_features(self, features: Sequence[Features], vectors: FloatArray) -> list[Prediction]:
        """Predictions of n requests from their features and embeddings [n, dim]."""
        heads = self.probabilities(np.hstack([vectors, np.array([f.cheap for f in features], dtype=np.float32)]))
        return [self._prediction({name: p[i] for name, p in heads.items()}) for i in range(len(features))]

    def probabilities(self, x: FloatArray) -> dict[str, FloatArray]:
        """Calibrated probabilities of each head, [n, classes] ([n] for `weak`), from inputs [n, dim + cheap]."""
        z = np.maximum(x @ self._w1 + self._b1, 0) @ self._w2 + self._b2
        out, at = {}, 0
        for name, size, temperature in self._heads:
            e = np.exp((z[:, at : at + size] - z[:, at : at + size].max(axis=1, keepdims=True)) / temperature)
            out[name], at = e / e.sum(axis=1, keepdims=True), at + size
        out["weak"] = 1 / (1 + np.exp(-(x @ self._weak[:-1] + self._weak[-1])))
        return out

    def _prediction(self, p: Mapping[str, FloatArray]) -> Prediction:
        routes = {route: float(q) for route, q in zip(self._routes, p["route"], strict=True)}
        ranked = sorted(routes, key=lambda route: -routes[route])
        inside = tuple(route for route in ranked if routes[route] >= 1 - self._conformal)
        route = max(inside or ranked[:2], key=_SAFETY.__getitem__)
        return Prediction(
            route=route,
            likely=ranked[0],
            routes=routes,
            candidates=inside,
            confidence=max(routes[route], sum(routes[r] for r in inside)),
            depth=(float(p["depth"][0]), float(p["depth"][1]), float(p["depth"][2])),
            cacheable=float(p["cacheable"][1]),
            weak_ok=float(p["weak"]),
        )


def _key(messages: Sequence[Message]) -> str:
    return sha256("\0".join(f"{m.role}\1{m.content}" for m in messages).encode("utf-8", "replace")).hexdigest()
