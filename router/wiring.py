"""From settings to a router: model, embedder, cache, knowledge base and FAQ put together, each said once if missing."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..cache import DepthCache, Guards, same_question
from ..rag.embed import default_embedder
from .classifier import ASSET, Classifier
from .decider import TOTAL_WITHOUT_MODEL, Decider
from .deep import Deep
from .errors import MissingExtra
from .faq import Faq
from .features import Embed
from .pipeline import CognitiveRouter
from .policy import profiles_of
from .settings import Settings
from .traces import Recorder, TraceStore

if TYPE_CHECKING:
    from ..gated_llm import GatedLLM
    from ..rag import DepthScore, KnowledgeBase

REFILLED = 256  # answers that a new process without Redis takes over from the log on disk
Progress = Callable[[str, float, float], None]


def build_router(
    settings: Settings,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda message: None,
    remote: Deep | None = None,
    model: Deep | None = None,
) -> CognitiveRouter:
    """The router that the settings describe. `say` hears, once, of each part that is left out. `model` stands in for
    the local one, which is then not loaded.

    Raises `MissingExtra` when the model or the search libraries are not installed, and what the parts raise.
    """
    embed = default_embedder()
    decider = decider_of(settings, embed)
    local = None if settings.router_only or model else load_local(settings, progress)
    llm = model or local
    total = llm.total if llm else TOTAL_WITHOUT_MODEL
    if settings.redis_url is None:
        say("no Redis (SHOAL_REDIS_URL): answers are cached in this process and logged on disk for the next one")
    guards = Guards()
    cache = DepthCache(
        settings.redis_url,
        embed,
        cold_path=settings.cold_path,
        total=total,
        guards=guards,
        ttl_s=settings.cache_ttl_s,
        max_bytes=settings.cache_max_bytes,
    )
    if settings.redis_url is None and settings.cold_path is not None:
        cache.rehydrate(newest=REFILLED)
    return CognitiveRouter(
        llm=llm,
        kb=with_depths(open_kb(settings), local),
        cache=cache,
        faq=Faq.open(settings.faq_path, embed=embed, conflict=same_question(embed, guards)),
        embed=embed,
        remote=remote,
        router_only=settings.router_only,
        decider=decider,
        recorder=Recorder(open_traces(settings), mode=settings.trace, keep_text=settings.trace_text),
        layer_probe=settings.layer_probe,
        depth_limit=settings.depth_limit,
    )


def open_traces(settings: Settings, path: Path | None = None) -> TraceStore:
    """The trace store, or another in `path`; its file is opened, or made, when it is first used."""
    path = path or settings.trace_path
    return TraceStore(path, max_age_s=settings.trace_days * 86_400, max_bytes=settings.trace_max_bytes)


def build_decider(settings: Settings) -> CognitiveRouter:
    """A router that only decides: no model, knowledge base, FAQ or shared cache is opened."""
    embed = default_embedder()
    return CognitiveRouter(embed=embed, cache=DepthCache(), router_only=True, decider=decider_of(settings, embed))


def decider_of(settings: Settings, embed: Embed) -> Decider:
    """What decides, with the classifier that is set or the shipped one; RouterError where that is not for `embed`."""
    classifier = Classifier.load(embed, settings.classifier or ASSET)
    return Decider(embed, classifier=classifier, profiles=profiles_of(settings.profiles))


def load_local(settings: Settings, progress: Progress | None = None) -> "GatedLLM":
    """The local model, fetched and converted first where needed. Raises `MissingExtra` without torch."""
    if not (find_spec("torch") and find_spec("transformers")):
        raise MissingExtra("The language model's part (torch, transformers)", "llm")
    from ..gated_llm import GatedLLM

    return GatedLLM.load(
        settings.model,
        dtype=settings.dtype,
        threads=settings.threads,
        home=settings.home,
        progress=(lambda what, share: progress(what, share, 1.0)) if progress else None,
    )


def open_kb(settings: Settings) -> "KnowledgeBase | None":
    """The knowledge base, when a folder for one is named or there."""
    if not (settings.kb or settings.kb_path.is_dir()):
        return None
    from ..rag import KnowledgeBase

    return KnowledgeBase.open(settings.kb_path)


def with_depths(kb: "KnowledgeBase | None", llm: "GatedLLM | None") -> "KnowledgeBase | None":
    """The knowledge base with depth scores on its hits: those that the model gave its passages, else predicted ones."""
    if kb is not None:
        from ..rag.depth import Depths
        from ..rag.reading import default_reader

        kb.depth_probe = Depths(default_reader(), folder=kb.path, scorer=depth_scorer(llm))
    return kb


def depth_scorer(llm: "GatedLLM | None") -> "DepthScore | None":
    """What gives texts their raw depth scores (A3), None where the model cannot."""
    if llm is None:
        return None
    from ..gated_llm import GatedError
    from ..gated_llm.skim import Skim

    try:
        return Skim(llm)
    except GatedError:
        return None
