"""What both frameworks' adapters need before a request: the router to ask, and who answers what.

A name becomes a bare model behind a router, loaded once per process. Knows neither LangChain nor LlamaIndex.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import cache
from threading import Event, Lock
from typing import Any, cast

from ..decision import CacheControl, Decision, Piece, Prompt, Route
from ..errors import InvalidRequest
from ..pipeline import CognitiveRouter
from ..settings import load_settings

FIELDS = ("max_depth", "max_tokens", "temperature", "top_p", "seed", "stop", "tenant", "profile", "cache_control")
_loading = Lock()
# How much of a model's thinking a route asks for, 0 none to 1 all.
THINKING = {Route.FAQ: 0.0, Route.CACHE: 0.0, Route.EXTRACT: 0.0, Route.DIRECT: 0.0, Route.RAG: 0.5, Route.DEEP: 1.0}


@cache
def _load(name: str) -> CognitiveRouter:
    from ...gated_llm import GatedLLM

    settings = load_settings()
    return CognitiveRouter(llm=GatedLLM.load(name, dtype=settings.dtype, threads=settings.threads, home=settings.home))


def router_for(model: str) -> CognitiveRouter:
    """A router around the named model and nothing else: loaded once, then shared."""
    with _loading:
        return _load(model)


def checked(router: object) -> CognitiveRouter:
    """The router given; raises `InvalidRequest` at once for anything else, None among it."""
    if not isinstance(router, CognitiveRouter):
        raise InvalidRequest(f"router must be a CognitiveRouter, not {type(router).__name__}", "router")
    return router


def wrapped(router: CognitiveRouter | None, llm: Any, model: str, *, named: bool) -> CognitiveRouter | None:
    """The router given or one around `llm`; raises `InvalidRequest` for two sources of answers, of which one would be
    left out in silence. `named`: whether the caller gave `model` himself."""
    if router is not None and llm is not None:
        raise InvalidRequest("give router or llm, not both: a router has a model of its own", "llm")
    router = CognitiveRouter(llm=llm) if llm is not None else router
    if router is not None and named and model != router.model_name:
        raise InvalidRequest(f"this router answers with {router.model_name}; leave out model={model!r}", "model")
    return router


def unpicklable(model: object) -> TypeError:
    """For a chat model around a router that the caller made."""
    name = type(model).__name__
    return TypeError(f"a {name} around your own router cannot be pickled: pickle {name}(model=...)")


def routes_of(labels: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Labels by route; raises `InvalidRequest` for what is no mapping and for routes that do not exist."""
    if labels is None:
        return None
    if not isinstance(labels, Mapping):
        raise InvalidRequest(f"labels by route must be a mapping, not {type(labels).__name__}")
    routes = [route.value for route in Route]
    if unknown := sorted(str(name) for name in labels if name not in routes):
        raise InvalidRequest(f"no route {', '.join(unknown)}: use {', '.join(routes)}")
    return labels


def choose(decision: Decision, labels: Sequence[str], labels_of: Mapping[str, str] | None = None) -> int:
    """Index of the label that stands for a decision's route.

    `labels_of` (route to label) decides where given; else a label that is the route's own name; else the labels are
    read as ordered from least to most thinking. Raises `InvalidRequest` when `labels_of` names a label not offered,
    and when none is.
    """
    if not labels:
        raise InvalidRequest("there is nothing to choose from: offer at least one")
    route = decision.route.value
    wanted = (labels_of or {}).get(route, route)
    if wanted in labels:
        return list(labels).index(wanted)
    if labels_of and route in labels_of:
        raise InvalidRequest(f"route {route!r} is mapped to {wanted!r}, which is not among {list(labels)}")
    return round(THINKING[decision.route] * (len(labels) - 1))


def ask_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `router.ask`, those that are None left out; raises `InvalidRequest` on names nobody knows.

    `cache_control` is `router.ask`'s `cache`: both frameworks use that name for something of their own.
    """
    unknown = sorted(set(given) - set(FIELDS))
    if unknown:
        raise InvalidRequest(f"unknown argument {', '.join(unknown)}; known are {', '.join(FIELDS)}", unknown[0])
    control = given.get("cache_control")
    if not isinstance(control, CacheControl | None):
        raise InvalidRequest(f"cache_control must be a CacheControl, not {type(control).__name__}", "cache_control")
    fields = {name: value for name, value in given.items() if value not in (None, [])}
    return {"cache" if name == "cache_control" else name: value for name, value in fields.items()}


@contextmanager
def streamed(router: CognitiveRouter, prompt: Prompt, fields: Mapping[str, Any]) -> Iterator[Iterator[Piece]]:
    """The pieces of an answer; leaving the block stops the model at the next token."""
    cancel = Event()
    try:
        yield router.ask_stream(prompt, cancel=cancel, **fields)
    finally:
        cancel.set()


def astreamed(
    router: CognitiveRouter, prompt: Prompt, fields: Mapping[str, Any]
) -> aclosing[AsyncGenerator[Piece, None]]:
    """As `streamed`, for an event loop, which never waits for the model."""
    return aclosing(cast("AsyncGenerator[Piece, None]", router.aask_stream(prompt, **fields)))
