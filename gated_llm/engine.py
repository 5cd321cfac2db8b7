"""GatedLLM: a local model that answers within a depth budget (G2, G6, G8, G17).

Puts prompt, plan, passes and sampler together; requests run side by side in one batch. torch is imported when a model
is loaded. Knows no routing, retrieval or HTTP.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from .constrain import Grammars
from .draft import Draft
from .errors import GatedError, PromptError
from .gates import Gates, Thrift
from .gating import Policy, new_gating, run_mask
from .health import LayerHealth
from .policy import Budget, resolve_budget
from .prefix import PrefixStore
from .report import Chunk, Generation
from .request import Cancel, Request, Work
from .rules import choose_policy
from .sampler import Sampling, stop_words
from .scheduler import Scheduler
from .served import Folder, Served
from .tokenizer import ChatTokenizer, Prompt
from .trace import points_of
from .weights import DEFAULT_MODEL, Progress, locate

if TYPE_CHECKING:
    from .passes import Model

_DTYPES = ("auto", "fp32", "bf16", "int8", "int4")
_PREFIX_BYTES = 64 << 20
_KV_BYTES = 1 << 30


class GatedLLM:
    """One loaded model. Thread-safe: requests are batched step by step, each with its own cache and sampler.

    `adapters`: names of what can be merged into its weights (`adapter=` of `stream`); each is loaded when first used.
    """

    holds_schema = True  # `schema=` of `stream`
    folder: Path | None = None  # where the weights lie

    def __init__(
        self,
        served: Served,
        tokenizer: ChatTokenizer,
        *,
        name: str,
        quality: float = 0.003,
        kv_bytes: int = _KV_BYTES,
        prefix_bytes: int = _PREFIX_BYTES,
        adapters: Mapping[str, str] | None = None,
        adapt: Callable[[str], Served] | None = None,
        regate: Callable[[str | None, str], Gates | None] | None = None,
    ) -> None:
        if not 0 <= quality < 1:
            raise GatedError(f"quality={quality!r}: give the share of likelihood that `auto` may lose, from 0 up to 1.")
        self.name, self.plan = name, served.plan
        self.total, self.min_depth = self.plan.total, self.plan.min_depth
        self.context = served.model.config.context
        self._known: dict[str | None, str] = {None: served.fingerprint}
        self._known.update(adapters or {})
        self._prints = self._known | {None: f"{served.fingerprint}-{served.gate_fingerprint}"}
        self.quality = quality
        self.tokenizer = tokenizer
        self.adapters = tuple(adapters or ())
        self._adapt, self._regate, self._loading = adapt, regate, threading.Lock()
        self._served: dict[str | None, Served] | None = {None: served}
        self.scheduler = Scheduler(most_bytes=kv_bytes)
        self.prefix = PrefixStore(prefix_bytes)
        self._health = LayerHealth(self.total)
        self._made_grammars: Grammars | None = None

    @classmethod
    def load(
        cls,
        source: str | Path = DEFAULT_MODEL,
        *,
        dtype: str = "auto",
        threads: int | None = None,
        home: str | Path | None = None,
        quality: float = 0.003,
        edge: bool = False,
        kv_bytes: int = _KV_BYTES,
        progress: Progress | None = None,
    ) -> Self:
        """Loads a model by name, folder, hub id or GGUF file, fetching it first where needed.

        `dtype`: "fp32" (reference), "bf16", "int8" or "int4" (weights only), or "auto": bf16 on a GPU; on a CPU int4
        where it holds the weights without loss, else int8, by the native kernel where a C++ compiler is at hand.
        `threads`: CPU threads of the whole process. `quality`: the share of likelihood that the budget "auto" may lose.
        `edge`: for small machines; the kernel alone, which reads long prompts more slowly, and no prompt is kept for
        the next one that begins alike. `kv_bytes`: most memory for keys and values of all requests that run; further
        ones wait. Raises WeightsError, PlanError.
        """
        if dtype not in _DTYPES:
            raise GatedError(f"dtype={dtype!r}: give one of {', '.join(_DTYPES)}.")
        try:
            import torch
        except ImportError as error:
            raise GatedError(f"A local model needs the extra: pip install 'shoal[llm]' ({error}).") from error
        if threads is not None:
            if isinstance(threads, bool) or threads < 1:
                raise GatedError(f"threads={threads!r}: give a whole number of at least 1.")
            torch.set_num_threads(threads)
        path = locate(source, home=home, progress=progress)
        folder = Folder(path, dtype=dtype, reader=not edge)
        tokenizer = ChatTokenizer(path)
        made = cls(
            folder.serve(),
            tokenizer,
            name=path.name,
            quality=quality,
            kv_bytes=kv_bytes,
            prefix_bytes=0 if edge else _PREFIX_BYTES,
            adapters=folder.adapters,
            adapt=folder.serve,
            regate=folder.gates,
        )
        made.folder = path
        return made

    @property
    def fingerprint(self) -> str:
        """Changes with weights, plan, thresholds, adapters, and gates that are swapped."""
        return "-".join(self._prints.values())

    @property
    def model(self) -> "Model":
        """What makes the passes, without an adapter. Raises GatedError once closed."""
        return self._with(None).model

    def resolve_budget(self, max_depth: object = "auto", *, adapter: str | None = None) -> Budget:
        """The budget that `max_depth` (int layers, "60%", "auto") means on this model, or on it with an adapter.

        Raises BudgetError.
        """
        plan = self.plan if adapter is None else self._with(adapter).plan
        return resolve_budget(max_depth, plan, quality=self.quality)

    def count_tokens(self, prompt: Prompt, *, raw: bool = False) -> int:
        """Prompt tokens that `generate` would read, chat template included."""
        return len(self.tokenizer.encode_prompt(prompt, raw=raw))

    def generate(self, prompt: Prompt, **settings: Any) -> Generation:
        """The whole answer to a prompt; the settings are those of `stream`. Raises as `stream` does."""
        chunks = list(self.stream(prompt, **settings))
        last = chunks[-1]
        assert last.finish_reason is not None
        assert last.usage is not None
        return Generation(
            text="".join(chunk.text for chunk in chunks),
            finish_reason=last.finish_reason,
            usage=last.usage,
            depth=last.depth,
            confidence=last.confidence or 0.0,
            trace=last.trace,
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        max_depth: int | str = "auto",
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: str | Sequence[str] | None = (),
        seed: int = 0,
        gate_prefill: bool = False,
        cancel: Cancel | None = None,
        raw: bool = False,
        adapter: str | None = None,
        schema: Mapping[str, Any] | None = None,
        drafts: bool = True,
        store_skipped: bool = False,
        partition: str = "",
        trace: bool = False,
        policy: Policy | Literal["auto"] = "auto",
        work: str | None = None,
    ) -> Iterator[Chunk]:
        """Chunks of the answer as they are made; the last one has `finish_reason`, `usage` and `confidence`.

        `prompt`: messages, or a string that is one user turn (with `raw`, text to continue). Every generated token is
        chosen by a pass within `max_depth`; the prompt before it is read at full depth unless `gate_prefill`.
        `schema`: a JSON schema that the answer is held to, unless `max_tokens` cuts it off.
        `drafts`: guess tokens ahead and verify them, which changes the time and nothing else (G16). `store_skipped`:
        a skipped attention branch still stores its keys and values. `partition`: whose prompt it is; only prompts of
        one partition share what was read of a common beginning. `trace`: the last chunk holds every decision (G7).
        `policy`: "full", "plan", or one that decides token by token within the stated quality: "signals", "hybrid",
        "random" where thresholds were calibrated, "gates" where gates were trained; "auto" takes the shallowest of all
        for this kind of `work` ("chat", "grounded", "scoring").
        Settings are checked before the first chunk is asked for. Raises PromptError, BudgetError, SamplingError,
        PlanError, Busy, and LogitsError from a damaged checkpoint.
        """
        served = self._with(adapter)
        sampling = Sampling(
            max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop=stop_words(stop), seed=seed
        )
        plan, ids = served.plan, self._read(prompt, raw=raw)
        rules = served.rules if served.model.exact_rows else None  # signals come from the kernel
        chosen = choose_policy(
            max_depth, plan, rules, gates=served.gates, quality=self.quality, policy=policy, work=work
        )
        budget, full = chosen.budget, chosen.budget.dropped == 0
        thrift = None if chosen.thrift is None else Thrift(value=chosen.thrift, store=store_skipped)
        room = min(sampling.max_tokens, self.context - len(ids))
        gated = gate_prefill and not (full and thrift is None)
        mask = run_mask(plan, [point.drop for point in plan.points[: budget.dropped]], store=store_skipped)
        drafted = drafts and served.model.exact_rows and chosen.policy in ("full", "plan")
        request = Work(
            model=served.model,
            tokenizer=self.tokenizer,
            ids=ids,
            room=room,
            sampling=sampling,
            gating=new_gating(
                chosen.policy, plan, budget, rule=chosen.rule, seed=seed, store=store_skipped, thrift=thrift
            ),
            full=full,
            gated_prompt=mask if gated else None,
            prompt_thrift=thrift if gated else None,
            prefill_depth=plan.depth_at(budget.dropped) if gated else float(plan.total),
            attention_share=plan.attention_share,
            capacity=[(0 if gated else len(ids)) + (room + gated * len(ids)) * bool(a) for a in mask[:, 0].tolist()],
            budget=budget.depth,
            policy=chosen.policy,
            gate_fingerprint=served.gate_fingerprint,
            drafter=Draft(served.draft, ends=served.model.config.eos) if drafted else None,
            constraint=None if schema is None else self._grammars().json(schema),
            cancel=cancel,
            partition=f"{adapter or ''}\n{partition}",
            points=points_of(plan, budget.dropped) if trace else None,
            gates=served.gates,
        )
        return self._run(request)

    def swap_gates(self, gates: Gates | None, *, adapter: str | None = None) -> None:
        """Answers that are asked for from now on are made with `gates`, None for none; those under way end with the
        set they began with. Raises PlanError where the gates were trained for other weights.
        """
        served = self._with(adapter)
        if gates is not None:
            gates.check(self.total, served.model.config.hidden, served.fingerprint)
        with self._loading:
            if self._served is None:
                raise GatedError("This model is closed: load it again.")
            self._served[adapter] = served = replace(self._served[adapter], gates=gates)
            self._prints[adapter] = f"{self._known[adapter]}-{served.gate_fingerprint}"

    def reload_gates(self) -> tuple[str, ...]:
        """Swaps in the gates that lie beside the model, where they are others than those in use; says whose: "" the
        model's own, else an adapter's name. Raises PlanError where a file is damaged or of other weights.
        """
        changed = []
        for adapter, served in list((self._served or {}).items()):
            found = None if self._regate is None else self._regate(adapter, served.fingerprint)
            if _print(found) != _print(served.gates):
                self.swap_gates(found, adapter=adapter)
                changed.append(adapter or "")
        return tuple(changed)

    def set_threads(self, threads: int) -> None:
        """CPU threads of the whole process, from the next pass on; answers stay the same to the bit in the kernel."""
        import torch

        torch.set_num_threads(threads)
        with self._loading:
            for served in (self._served or {}).values():
                served.model.set_threads(threads)

    def get_layer_health(self) -> dict[str, Any]:
        """Per layer, how often it and each of its branches ran over the last requests, 0 to 1."""
        return self._health.report()

    def close(self) -> None:
        """Ends what is being generated and frees the weights; the model cannot generate any more."""
        with self._loading:
            self.scheduler.close()
            served, self._served = self._served, None
            for one in (served or {}).values():
                one.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, prompt: Prompt, *, raw: bool) -> list[int]:
        ids = self.tokenizer.encode_prompt(prompt, raw=raw)
        if len(ids) >= self.context:
            raise PromptError(
                f"The prompt has {len(ids)} tokens; {self.name} reads {self.context} with room for at least one more. "
                "Shorten it."
            )
        return ids

    def _with(self, adapter: str | None) -> Served:
        """The model with an adapter in its weights, or without; loads it where it is asked for the first time.

        Nobody but those who want the same adapter waits for it to load.
        """
        known = self._served
        if known is None:
            raise GatedError("This model is closed: load it again.")
        if adapter in known:
            return known[adapter]
        if adapter is None or adapter not in self.adapters or self._adapt is None:
            raise GatedError(
                f"{self.name} has no adapter {adapter!r:.42}; there is {', '.join(self.adapters) or 'none'}."
            )
        with self._loading:
            if self._served is None:
                raise GatedError("This model is closed: load it again.")
            if adapter not in self._served:
                self._served[adapter] = self._adapt(adapter)
            return self._served[adapter]

    def _grammars(self) -> Grammars:
        config = self.model.config
        with self._loading:
            if self._made_grammars is None:
                self._made_grammars = Grammars(self.tokenizer.to_json(), vocab=config.vocab, eos=config.eos)
            return self._made_grammars

    def _run(self, work: Work) -> Iterator[Chunk]:
        request, trace = Request(work, self.prefix), None
        try:
            for chunk in self.scheduler.run(request, sum(work.capacity) * work.model.token_bytes):
                trace = chunk.trace
                yield chunk
        finally:
            if trace is not None:  # with what its signals said
                self._health.add_trace(trace)
            else:
                self._health.add(request.made, work.gating.runs)


def _print(gates: Gates | None) -> str:
    return "" if gates is None else gates.fingerprint
