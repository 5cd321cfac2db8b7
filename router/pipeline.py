"""The one way a request goes: guard, decide, FAQ, cache, extraction, passages, model, store, trace (R8).

Every shell (Python, command line, HTTP, LangChain, LlamaIndex) calls this and nothing else. Knows no HTTP, no files and
no environment; each part can be left out, and what is left out is skipped.
"""

import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..cache import DepthCache, Entry, Guards, same_question
from .decider import TOTAL_WITHOUT_MODEL, Decider, Reading, as_max_depth, sampling, seeded
from .decision import Answer, Decision, Piece, Prompt, Request, Route, check_thumb
from .deep import Chunk, Deep, Turns, grounded, reminded, reworded, text_tokens, turns
from .errors import InvalidRequest, NoModel
from .experience import Course, Courses, context_layers
from .faq import Faq
from .features import Embed
from .journal import Journal, no_depth
from .pieces import finished, last_piece, replay, whole
from .policy import profile_named
from .probe import STEP, take_probes
from .threads import iterate
from .traces.recorder import Recorder

if TYPE_CHECKING:
    from ..rag import KnowledgeBase
    from ..rag.extract import Extracted

CONTEXT_TOKENS = 512
MIN_SCORE = 0.05  # of a passage in a context; the best one is kept whatever its score
RELEVANT = 0.3  # score the best passage needs for an answer to rest on passages; for a hard question, each of them
UNSURE = 0.35  # mean top-1 probability below which a shallow answer is tried once more, deeper (R9)
_REMEMBERED = 10_000  # answers that feedback can still reach
_AROUND = 1000  # characters on either side of an extracted sentence that count as its passage
_MARGIN = 64  # tokens that templates and citations add
_GROUNDED = "grounded"  # the adapter trained to answer from passages, in English
_GROUNDABLE = frozenset({Route.FAQ, Route.EXTRACT, Route.RAG})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One request on its way: what was asked, what it reads as, what was decided."""

    request: Request
    reading: Reading
    decision: Decision
    journal: Journal
    sampling: dict[str, Any]
    full_trace: bool
    course: Course
    reminder: str
    model: str  # fingerprint of the model as it was when this was asked; its gates may be swapped meanwhile

    def anchored(self, text: str) -> str:
        """The question with the profile's answer form under it, where it has one."""
        features = self.reading.features
        form = self.reading.profile.anchor.get(features.language)
        return f"{text}\n\n{form}" if form and not features.hints.anchors else text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What the model will be given, and which passages it came from."""

    prompt: Turns
    route: Route
    kept: tuple[Mapping[str, Any], ...] = ()
    dropped: tuple[Mapping[str, Any], ...] = ()
    fused: str = ""


class CognitiveRouter:
    """Answers requests with as little thinking as they need.

    Without `llm` the default model is loaded when a request first needs it; `router_only` means that there is none.
    Without `cache` one in memory is used. `remote` is a model that takes the `deep` route in place of `llm` (G19).
    `recorder` keeps traces (G7); `layer_probe` answers `<LAYER_TEST:17>` in prompts (G12). `depth_limit`: passages with
    a lower depth score are left out, but on route `deep` (A3).
    """

    def __init__(
        self,
        *,
        llm: Deep | None = None,
        kb: "KnowledgeBase | None" = None,
        cache: DepthCache | None = None,
        faq: Faq | None = None,
        embed: Embed | None = None,
        remote: Deep | None = None,
        router_only: bool = False,
        load: Callable[[], Deep] | None = None,
        decider: Decider | None = None,
        recorder: Recorder | None = None,
        layer_probe: bool = False,
        depth_limit: float | None = None,
    ) -> None:
        from ..rag.embed import default_embedder

        self.embed: Embed = embed or default_embedder()
        self.kb, self.remote, self.router_only = kb, remote, router_only
        self.faq = faq if faq is not None else Faq(embed=self.embed, conflict=same_question(self.embed))
        self._llm, self._load, self._loading = llm, load or _default_model, threading.Lock()
        self._guards = Guards()
        self._decider = decider or Decider(self.embed)
        self.recorder, self._layer_probe = recorder or Recorder(), layer_probe
        self._depth_limit = depth_limit
        self.cache = cache if cache is not None else DepthCache(embed=self.embed, total=self.total)
        self._courses = Courses()
        self._counters: dict[Deep, Callable[[str], int]] = {}
        self._answered: OrderedDict[str, tuple[str, str]] = OrderedDict()  # answer id -> tenant, cache entry id
        self._lock = threading.Lock()

    # the model

    @property
    def llm(self) -> Deep | None:
        """The local model, loaded now if it was not yet; None when there is none."""
        if self._llm is None and not self.router_only:
            with self._loading:
                self._llm = self._llm or self._load()
        return self._llm

    @property
    def total(self) -> int:
        """Layers of the model; of the default model when there is none."""
        return TOTAL_WITHOUT_MODEL if self.llm is None else self.llm.total

    @property
    def model_name(self) -> str:
        return self.llm.name if self.llm else "shoal-router"

    @property
    def model_fingerprint(self) -> str:
        return self.llm.fingerprint if self.llm else ""

    def usual_tokens(self, profile: str | None = None) -> int:
        """Most tokens of an answer whose request names no limit."""
        return profile_named(profile or "balanced", self._decider.profiles).max_tokens

    @property
    def profiles(self) -> tuple[str, ...]:
        """Names of the profiles a request may choose."""
        return tuple(self._decider.profiles)

    # asking

    def decide(self, prompt: Prompt | Request, **fields: Any) -> Decision:
        """Where the request would go and how deep (R1, R2). Raises `Refused`, `InvalidRequest`, `BudgetError`."""
        request = Request.of(prompt, **fields)
        reading = self._decider.read(request)
        reading.verdict.enforce()
        return self._decider.decide(request, reading, self.llm)

    def ask(self, prompt: Prompt | Request, *, cancel: threading.Event | None = None, **fields: Any) -> Answer:
        """The answer, with the trace that explains it. `fields` are those of `Request`; `cancel` stops it at a token.

        Raises `InvalidRequest`, `BudgetError` (a budget outside the model's range), `Refused` (R4), `NoModel`.
        """
        answer = None
        for piece in self._run(Request.of(prompt, **fields), cancel or threading.Event(), live=False):
            answer = piece.answer
        return whole(answer)

    def ask_stream(
        self, prompt: Prompt | Request, *, cancel: threading.Event | None = None, live: bool = True, **fields: Any
    ) -> Iterator[Piece]:
        """The answer in pieces; the last one carries the whole `Answer`. Setting `cancel` stops at the next token.

        Without `live` the pieces before the last are empty signs of life, so that a shallow answer that turns out
        unsure may still be tried again (R9).
        """
        return self._run(Request.of(prompt, **fields), cancel or threading.Event(), live=live)

    async def aask(self, prompt: Prompt | Request, **fields: Any) -> Answer:
        """`ask` without blocking the event loop; cancelling the task stops the model at the next token."""
        request = Request.of(prompt, **fields)
        answer = None
        async for piece in iterate(lambda cancel: self._run(request, cancel, live=False)):
            answer = piece.answer
        return whole(answer)

    def aask_stream(self, prompt: Prompt | Request, **fields: Any) -> AsyncIterator[Piece]:
        """`ask_stream` without blocking the event loop."""
        request = Request.of(prompt, **fields)
        return iterate(lambda cancel: self._run(request, cancel, live=True))

    def feedback(self, answer_id: str, *, up: bool, tenant: str = "default") -> bool:
        """A thumb on an answer; down retracts it from every cache tier (C5). False when the id is not this tenant's.

        Raises `InvalidRequest` naming the field that has the wrong type.
        """
        check_thumb(answer_id, up, tenant)
        with self._lock:
            known = self._answered.get(answer_id)
        if known is None and (entry := self.recorder.entry_of(answer_id, tenant=tenant)) is not None:
            known = tenant, entry  # another process answered
        if known is None or known[0] != tenant:
            return False
        self.recorder.judged(answer_id, tenant=tenant, up=up)
        if not up and known[1]:
            self.cache.retract(known[1], tenant=tenant)
        return True

    def close(self) -> None:
        """Let go of the cache, the knowledge base, the models and the traces."""
        for part in (self.cache, self.kb, self._llm, self.remote, self.recorder.store):
            if part is not None:
                part.close()

    # one request

    def _run(self, request: Request, cancel: threading.Event, *, live: bool) -> Iterator[Piece]:
        journal = Journal(request.request_id)
        if self._layer_probe:
            request, layers = take_probes(request, self.total)
            if layers:
                with journal.step(STEP) as step:
                    step["layers"] = list(layers)
        for piece in self._steps(request, journal, cancel, live=live):
            if piece.answer is not None:
                self.recorder.keep(request, piece.answer)
            yield piece

    def _steps(self, request: Request, journal: Journal, cancel: threading.Event, *, live: bool) -> Iterator[Piece]:
        with journal.step("decide") as step:
            reading = self._decider.read(request)
            decision = self._decider.decide(request, reading, self.llm)
            step.update(decision.to_dict())
        course = self._courses.before(request)
        asked = _Asked(
            request=request, reading=reading, decision=decision, journal=journal,
            sampling=sampling(request, reading.profile), full_trace=self.recorder.wants_tokens(request),
            course=course, reminder=course.reminder(request.messages, context_layers(self.llm)),
            model=self.model_fingerprint,
        )  # fmt: skip
        if request.schema is None:
            found = self._from_faq(asked) or self._from_cache(asked) or self._from_kb(asked)
        else:  # words of an FAQ or a document fit no schema
            found = self._from_cache(asked)
        if found is not None:
            yield from replay(found)
            return
        reading.verdict.enforce()  # what needed no thinking is exempt (R4)
        if request.cache.read and self._repeatable(asked):
            yield from self._think_once(asked, cancel, live=live)
        else:
            yield from self._think(asked, cancel, live=live)

    def _think_once(self, asked: _Asked, cancel: threading.Event, *, live: bool) -> Iterator[Piece]:
        """One generation for all who ask the same at the same time (R7)."""
        age = asked.request.cache.max_age_s
        with self.cache.single_flight(**self._key(asked), budget=asked.decision.budget, max_age_s=age) as flight:
            if not flight.leader:
                reason, entry_id, kept = self._landed(flight.result)
                answer = self._answer(
                    asked, flight.result.text, Route.CACHE, tier="flight", entry_id=entry_id, kept=kept
                )
                yield from replay(replace(answer, finish_reason=reason))
                return
            for piece in self._think(asked, cancel, live=live, fence=flight.fence):
                if piece.answer is not None and piece.answer.finish_reason != "cancelled":
                    flight.share(piece.answer)
                yield piece

    def _landed(self, result: Answer | Entry) -> tuple[str, str, tuple[Mapping[str, Any], ...]]:
        """How an answer that another caller's flight brought ended, the id it is stored under, and its passages."""
        if isinstance(result, Entry):  # what another process stored had its end
            return "stop", result.id, tuple(result.meta.get("kept", ()))
        return result.finish_reason, self._answered.get(result.trace.id, ("", ""))[1], result.trace.kept

    def _from_faq(self, asked: _Asked) -> Answer | None:
        if not len(self.faq) or asked.reading.features.follow_up:
            return None
        with asked.journal.step("faq") as step:
            hit = self.faq.match(asked.reading.features.text)
            step["hit"] = hit is not None
            if hit is None:
                return None
            step.update(entry=hit.entry_id, score=round(hit.score, 4), question=hit.question)
        return self._answer(asked, hit.answer, Route.FAQ)

    def _from_cache(self, asked: _Asked) -> Answer | None:
        request = asked.request
        if not (request.cache.read and self._repeatable(asked)):
            return None
        with asked.journal.step("cache") as step:
            entry = self.cache.get(**self._key(asked), budget=asked.decision.budget, max_age_s=request.cache.max_age_s)
            step["tier"] = entry.tier if entry else None
            if entry is None:
                return None
            step.update(score=round(entry.score, 4), made_at_budget=entry.budget, made_at_depth=entry.depth)
            step["entry"] = entry.id
        kept = tuple(entry.meta.get("kept", ()))
        return self._answer(asked, entry.text, Route.CACHE, tier=entry.tier, entry_id=entry.id, kept=kept)

    def _from_kb(self, asked: _Asked) -> Answer | None:
        if self.kb is None or not len(self.kb) or asked.decision.route not in _GROUNDABLE:
            return None
        if asked.reading.features.follow_up:  # what it asks stands in an earlier turn
            return None
        with asked.journal.step("extract") as step:
            found = self.kb.extract(asked.reading.features.text)
            step["hit"] = found is not None
            if found is None or (reason := self._unsupported(asked.reading.features.text, found)):
                step.update({"hit": False, "unsupported": reason} if found is not None else {})
                return None
            step.update(doc_id=found.doc_id, span=list(found.span), confidence=round(found.confidence, 4))
        passage = {
            "doc_id": found.doc_id, "span": list(found.span), "score": found.confidence, "depth_score": None,
            "text": found.text,
        }  # fmt: skip
        text = f"{found.text} {found.citation}"
        entry_id = self._store(asked, text, depth=0.0, kept=(passage,))
        return self._answer(asked, text, Route.EXTRACT, kept=(passage,), entry_id=entry_id)

    def _unsupported(self, question: str, found: "Extracted") -> str | None:
        """What the question names that the sentence contradicts or the text around it does not hold."""
        document = self.kb.document(found.doc_id) if self.kb is not None else None
        if document is None:  # deleted meanwhile
            return "its document is gone"
        start, end = found.span
        around = f"{document.title}\n{document.text[max(0, start - _AROUND) : end + _AROUND]}"
        return self._guards.unsupported(question, found.text, around)

    def _think(
        self, asked: _Asked, cancel: threading.Event, *, live: bool, fence: int | None = None
    ) -> Iterator[Piece]:
        model = self._model_for(asked.decision)
        prepared = self._prepare(asked, model)
        text, layer_tokens, budget = "", 0.0, asked.decision.budget
        for attempt in ("generate", "escalate"):
            with asked.journal.step(attempt) as step:
                text, seen = "", None
                for chunk in self._stream(asked, model, prepared, budget, cancel):
                    text, seen = text + chunk.text, chunk
                    if chunk.text:
                        yield Piece(text=chunk.text if live else "", depth=chunk.depth.max)
                last, usage = finished(seen)
                layer_tokens += usage.layer_tokens
                step.update(budget=budget, depth=last.depth.max, confidence=round(last.confidence or 0.0, 4))
            deeper = None if live or cancel.is_set() else self._deeper(asked, model, budget, last)
            if deeper is None:
                break
            budget = deeper
        depth = last.depth.to_dict()
        deepest, reason, kept = float(depth["max"]), last.finish_reason, prepared.kept
        entry_id = self._store(asked, text, depth=deepest, finish_reason=reason, fence=fence, kept=kept)
        answer = self._answer(
            asked, text, prepared.route, depth=depth, layer_tokens=layer_tokens, entry_id=entry_id,
            kept=kept, dropped=prepared.dropped, fused=prepared.fused, min_depth=model.min_depth,
        )  # fmt: skip
        answer = replace(
            answer,
            finish_reason=last.finish_reason or "stop",
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            tokens=last.trace,
        )
        yield last_piece(answer, "" if live else text)

    def _model_for(self, decision: Decision) -> Deep:
        model = self.remote if self.remote is not None and decision.route is Route.DEEP else self.llm or self.remote
        if model is None:
            raise NoModel(
                "no FAQ entry, cached answer or passage answers this, and this router has no language model: "
                "start it without --router-only, or add the answer with `shoal faq import` or `shoal kb add`"
            )
        return model

    def _prepare(self, asked: _Asked, model: Deep) -> _Prepared:
        """The prompt, with passages where the route calls for them and the knowledge base has any.

        Passages that are not about the question are left out; without any it is a plain question.
        """
        text, deep = asked.reading.features.text, asked.decision.route is Route.DEEP
        route = asked.decision.route if asked.decision.route not in _GROUNDABLE else Route.DIRECT
        if asked.reminder:
            with asked.journal.step("remind") as step:
                step["characters"] = len(asked.reminder)
        prompt = reminded(reworded(asked.request.messages, asked.anchored(text)), asked.reminder)
        plain = _Prepared(prompt=prompt, route=route)
        if not self._uses_kb(asked.decision):
            return plain
        assert self.kb is not None
        with asked.journal.step("retrieve") as step:
            room = model.context - model.count_tokens(plain.prompt) - asked.sampling["max_tokens"] - _MARGIN
            context = self.kb.context(
                asked.reading.features.focus,  # a follow-up with the turn that gives it its meaning
                token_budget=max(_MARGIN, min(CONTEXT_TOKENS, room)),
                count_tokens=self._counter(model),
                min_score=RELEVANT if deep else MIN_SCORE,
                depth_limit=None if deep else self._depth_limit,
            )
            kept = tuple(_passage(hit) for hit in context.kept)
            dropped = tuple({**_passage(d.hit), "reason": d.reason} for d in context.dropped)
            hard = sum(one.reason == "depth" for one in context.dropped)
            step.update(kept=len(kept), dropped=len(dropped), tokens=context.tokens, hard=hard)
            step["drop_rate"] = round(hard / max(1, len(kept) + len(dropped)), 3)
        if not kept or context.kept[0].score < RELEVANT:
            return replace(plain, dropped=(*({**passage, "reason": "score"} for passage in kept), *dropped))
        prompt = grounded(asked.request.messages, text, context.text, asked.reading.features.language)
        prompt, grounded_route = reminded(prompt, asked.reminder), Route.DEEP if deep else Route.RAG
        return _Prepared(prompt=prompt, route=grounded_route, kept=kept, dropped=dropped, fused=context.text)

    def _counter(self, model: Deep) -> Callable[[str], int]:
        return self._counters.get(model) or self._counters.setdefault(model, text_tokens(model))

    def _uses_kb(self, decision: Decision) -> bool:
        """Whether an answer on this route may rest on the knowledge base, whose fingerprint is then in the key (C3)."""
        return self.kb is not None and decision.route is not Route.DIRECT and len(self.kb) > 0

    def _stream(
        self, asked: _Asked, model: Deep, prepared: _Prepared, budget: float, cancel: threading.Event
    ) -> Iterator[Chunk]:
        settings = seeded(asked.sampling)
        if "schema" in settings and not getattr(model, "holds_schema", False):
            raise InvalidRequest(f"{model.name} cannot hold its answer to a JSON schema", "response_format")
        trained = prepared.route is Route.RAG and asked.reading.features.language == "en"
        if trained and _GROUNDED in getattr(model, "adapters", ()):
            settings["adapter"] = _GROUNDED
        return model.stream(
            prepared.prompt, max_depth=as_max_depth(budget, model), cancel=cancel, partition=asked.request.tenant,
            trace=asked.full_trace, **settings,
        )  # fmt: skip

    def _deeper(self, asked: _Asked, model: Deep, budget: float, last: Chunk) -> float | None:
        """The budget to try again with, when a shallow answer is unsure and caller, hint and profile allow it (R9)."""
        unsure = last.confidence is not None and last.confidence < UNSURE
        ours = asked.request.max_depth in (None, "auto")
        most = min(float(model.total), asked.decision.deepest or model.total)
        return most if unsure and ours and budget < most else None

    # cache

    def _repeatable(self, asked: _Asked) -> bool:
        """Whether the same request gives the same answer, or the caller takes any sample (C5)."""
        sampled = asked.sampling["temperature"] > 0
        return not sampled or asked.request.seed is not None or asked.request.cache.sampled

    def _key(self, asked: _Asked) -> dict[str, Any]:
        told: dict[str, Any] = {"reminded": True} if asked.reminder else {}
        told |= {} if self._depth_limit is None else {"depth_limit": self._depth_limit}
        return {
            "prompt": turns(asked.request.messages), "tenant": asked.request.tenant, "model": asked.model,
            "kb": self.kb.fingerprint if self.kb is not None and self._uses_kb(asked.decision) else "",
            "request": {**asked.sampling, "profile": asked.decision.profile, **told},
        }  # fmt: skip

    def _store(
        self, asked: _Asked, text: str, *, depth: float, finish_reason: str | None = "stop", fence: int | None = None,
        kept: tuple[Mapping[str, Any], ...] = (),
    ) -> str:  # fmt: skip
        """Store the answer where that is allowed; the id of the entry, or nothing."""
        if not (asked.request.cache.write and asked.decision.cacheable and self._repeatable(asked)):
            return ""
        with asked.journal.step("store") as step:
            entry = self.cache.put(
                **self._key(asked),
                text=text, budget=asked.decision.budget, depth=depth, finish_reason=finish_reason or "stop",
                latency_ms=asked.journal.elapsed_ms(), sampled=asked.request.cache.sampled, fence=fence,
                meta={"kept": [dict(passage) for passage in kept]} if kept else {},
            )  # fmt: skip
            step.update(stored=entry is not None, entry=entry.id if entry else "")
        return entry.id if entry else ""

    def _answer(
        self, asked: _Asked, text: str, route: Route, *, entry_id: str = "", tier: str | None = None,
        depth: Mapping[str, Any] | None = None, min_depth: float = 0.0, **more: Any,
    ) -> Answer:  # fmt: skip
        depth = no_depth(asked.decision.total, asked.decision.budget) if depth is None else depth
        course = asked.course.then(depth, min_depth=min_depth)
        self._courses.note(asked.request, text, course)
        if course.change is not None:
            with asked.journal.step("experience") as step:
                step.update(course.change.to_dict())
        trace = asked.journal.trace(
            route, asked.decision, depth, tier=tier, experience=course.state.value, **more
        )  # fmt: skip
        with self._lock:
            self._answered[trace.id] = (asked.request.tenant, entry_id)
            while len(self._answered) > _REMEMBERED:
                self._answered.popitem(last=False)
        return Answer(text=text, trace=trace, event=course.change)


def _passage(hit: Any) -> dict[str, Any]:
    return {
        "doc_id": hit.doc_id, "span": list(hit.span), "score": round(hit.score, 4), "depth_score": hit.depth_score,
        "text": hit.text,
    }  # fmt: skip


def _default_model() -> Deep:
    from ..gated_llm import GatedLLM

    return GatedLLM.load()
