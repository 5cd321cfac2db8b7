"""GatedLLM: a local model that answers within a depth budget (G2, G6, G8).

Puts prompt, plan, passes and sampler together, one request at a time per step. torch is imported when a model is
loaded. Knows no routing, retrieval or HTTP.
"""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from .config import DecoderConfig
from .errors import GatedError, PromptError
from .health import LayerHealth
from .policy import Budget, Plan, resolve_budget
from .report import Chunk, DepthReport, Generation, Usage
from .sampler import Sampler, Sampling, StopText, stop_words
from .tokenizer import ChatTokenizer, Prompt, TextStream
from .weights import DEFAULT_MODEL, Progress, locate

if TYPE_CHECKING:
    from torch import Tensor

    from .model import RunMask
    from .passes import Model, Passes

_PREFILL = 512  # tokens read in one pass
_ASSETS = Path(__file__).parent / "assets"
_DTYPES = ("auto", "fp32", "bf16", "int8", "int4")


class Cancel(Protocol):
    """Asked before every token; threading.Event and asyncio.Event fit."""

    def is_set(self) -> bool: ...


class GatedLLM:
    """One loaded model. Thread-safe: requests take turns step by step, each with its own cache and sampler."""

    def __init__(
        self,
        model: "Model",
        tokenizer: ChatTokenizer,
        plan: Plan,
        *,
        name: str,
        model_fingerprint: str,
        quality: float = 0.003,
    ) -> None:
        if not 0 <= quality < 1:
            raise GatedError(f"quality={quality!r}: give the share of likelihood that `auto` may lose, from 0 up to 1.")
        self.name = name
        self.plan = plan
        self.total = plan.total
        self.min_depth = plan.min_depth
        self.context = model.config.context
        self.fingerprint = f"{model_fingerprint}-{plan.fingerprint}"
        self.quality = quality
        self.tokenizer = tokenizer
        self._model: Model | None = model
        self._step = threading.Lock()
        self._health = LayerHealth(self.total)

    @classmethod
    def load(
        cls,
        source: str | Path = DEFAULT_MODEL,
        *,
        dtype: str = "auto",
        threads: int | None = None,
        home: str | Path | None = None,
        quality: float = 0.003,
        progress: Progress | None = None,
    ) -> Self:
        """Loads a model by name, folder, hub id or GGUF file, fetching it first where needed.

        `dtype`: "fp32" (reference), "bf16", "int8" or "int4" (weights only), or "auto": bf16 on a GPU; on a CPU int4
        where it holds the weights without loss, else int8, by the native kernel where a C++ compiler is at hand.
        `threads`: CPU threads of the whole process. `quality`: the share of likelihood that the budget "auto" may lose.
        Raises WeightsError, PlanError.
        """
        if dtype not in _DTYPES:
            raise GatedError(f"dtype={dtype!r}: give one of {', '.join(_DTYPES)}.")
        try:
            import torch

            from .checkpoint import fingerprint, read_tensors
        except ImportError as error:
            raise GatedError(f"A local model needs the extra: pip install 'shoal[llm]' ({error}).") from error
        if threads is not None:
            torch.set_num_threads(threads)
        folder = locate(source, home=home, progress=progress)
        config = DecoderConfig.from_folder(folder)
        weights = read_tensors(folder)
        model_fingerprint = fingerprint(weights)
        return cls(
            _place(config, weights, dtype),
            ChatTokenizer(folder),
            find_plan(folder, config, model_fingerprint),
            name=folder.name,
            model_fingerprint=model_fingerprint,
            quality=quality,
        )

    def resolve_budget(self, max_depth: object = "auto") -> Budget:
        """The budget that `max_depth` (int layers, "60%", "auto") means on this model. Raises BudgetError."""
        return resolve_budget(max_depth, self.plan, quality=self.quality)

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
    ) -> Iterator[Chunk]:
        """Chunks of the answer as they are made; the last one has `finish_reason`, `usage` and `confidence`.

        `prompt`: messages, or a string that is one user turn (with `raw`, text to continue). Every generated token is
        chosen by a pass within `max_depth`; the prompt before it is read at full depth unless `gate_prefill`. Settings
        are checked before the first chunk is asked for. Raises PromptError, BudgetError, SamplingError, and LogitsError
        from a damaged checkpoint.
        """
        if adapter is not None:
            raise GatedError(f"{self.name} has no adapter {adapter[:40]!r}; adapter=None is the bare model.")
        sampling = Sampling(
            max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop=stop_words(stop), seed=seed
        )
        budget = self.resolve_budget(max_depth)
        ids = self.tokenizer.encode_prompt(prompt, raw=raw)
        if len(ids) >= self.context:
            raise PromptError(
                f"The prompt has {len(ids)} tokens; {self.name} reads {self.context} with room for at least one more. "
                "Shorten it."
            )
        if self._model is None:
            raise GatedError("This model is closed: load it again.")
        request = _Request(self, self._model, ids, budget, sampling, gate_prefill=gate_prefill)
        return request.run(cancel)

    def get_layer_health(self) -> dict[str, Any]:
        """Per layer, how often it and each of its branches ran over the last requests, 0 to 1."""
        return self._health.report()

    def close(self) -> None:
        """Frees the weights; the model cannot generate any more."""
        with self._step:
            model, self._model = self._model, None
            if model is not None:
                model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _place(config: DecoderConfig, weights: "dict[str, Tensor]", dtype: str) -> "Model":
    """The model in memory: on a GPU by torch, on a CPU by the native kernel where there is one for it."""
    import torch

    from .model import Decoder
    from .passes import KernelModel, TorchModel

    cuda = torch.cuda.is_available()
    if dtype in ("int4", "int8") or (dtype == "auto" and not cuda):
        model = KernelModel.load(config, weights, bits={"int4": 4, "int8": 8}.get(dtype))
        if model is not None:
            return model
    chosen = ("bf16" if cuda else "exact") if dtype == "auto" else dtype
    device = "cuda" if cuda and chosen in ("bf16", "fp32") else "cpu"
    return TorchModel(Decoder(config, weights, dtype=chosen, device=device))


def find_plan(folder: Path, config: DecoderConfig, model_fingerprint: str) -> Plan:
    """The plan in the model's folder, else the one that ships under its name, else none: full depth only.

    Raises PlanError.
    """
    for path in (folder / "plan.json", _ASSETS / f"{folder.name}.plan.json"):
        if path.exists():
            return Plan.read(path, model_fingerprint=model_fingerprint)
    return Plan(total=config.layers, attention_share=config.attention_share, model_fingerprint=model_fingerprint)


class _Request:
    """One generation under way."""

    def __init__(
        self, llm: GatedLLM, model: "Model", ids: list[int], budget: Budget, sampling: Sampling, *, gate_prefill: bool
    ) -> None:
        self._llm, self._model, self._budget, self._sampling = llm, model, budget, sampling
        self._prompt = ids
        self._room = min(sampling.max_tokens, llm.context - len(ids))
        self._mask = llm.plan.mask(budget.dropped)
        self._depth = llm.plan.depth_at(budget.dropped)
        self._gate_prefill = gate_prefill
        self._confidences: list[float] = []

    @property
    def _full(self) -> bool:
        return self._budget.dropped == 0

    def _read(self) -> "tuple[Passes, Tensor]":
        """Reads the prompt; returns the request's passes and the logits that choose the first token.

        The last prompt token chooses it, so under a budget that token has a pass of its own, within the budget.
        """
        ids = self._prompt
        gated = self._gate_prefill and not self._full
        kept = [len(ids) + self._room if attention else len(ids) for attention, _ in self._mask]
        passes = self._model.passes(kept)
        mask = self._mask if gated else None
        whole = len(ids) if self._full or gated else len(ids) - 1
        logits: Tensor | None = None
        for start in range(0, whole, _PREFILL):
            logits = self._pass(passes, ids[start : min(start + _PREFILL, whole)], mask)
        if whole < len(ids) or logits is None:
            logits = self._pass(passes, ids[whole:], self._mask)
        return passes, logits

    def _pass(self, passes: "Passes", ids: list[int], mask: "RunMask | None") -> "Tensor":
        with self._llm._step:
            return passes(ids, mask)

    def run(self, cancel: Cancel | None) -> Iterator[Chunk]:
        sampler, text, stops = Sampler(self._sampling), TextStream(self._llm.tokenizer), StopText(self._sampling.stop)
        ends = self._model.config.eos
        mask = None if self._full else self._mask
        reason, token, passes = "length", -1, None
        try:
            while len(self._confidences) < self._room:
                if cancel is not None and cancel.is_set():
                    reason = "cancelled"
                    break
                if passes is None:
                    passes, logits = self._read()
                else:
                    logits = self._pass(passes, [token], mask)
                token, confidence = sampler.choose(logits)
                self._confidences.append(confidence)
                if token in ends:
                    reason = "stop"
                    break
                piece, met = stops.push(text.push(token))
                if met:
                    yield self._last(piece, "stop")
                    return
                if piece:
                    yield Chunk(text=piece, depth=self._report())
            piece, met = stops.push(text.finish())
            yield self._last(piece + stops.finish(), "stop" if met else reason)
        finally:
            self._llm._health.add(len(self._confidences), self._branch_runs())

    def _last(self, text: str, reason: str) -> Chunk:
        made = len(self._confidences)
        usage = Usage(
            prompt_tokens=len(self._prompt),
            completion_tokens=made,
            # the last prompt token's pass chooses the first new token and is counted as its depth
            layer_tokens=(len(self._prompt) - 1) * self._prefill_depth + made * self._depth,
        )
        confidence = sum(self._confidences) / made if made else 0.0
        return Chunk(text=text, depth=self._report(), finish_reason=reason, usage=usage, confidence=confidence)

    @property
    def _prefill_depth(self) -> float:
        return self._depth if self._gate_prefill else float(self._llm.total)

    def _branch_runs(self) -> tuple[tuple[int, int], ...]:
        made = len(self._confidences)
        return tuple((made * attention, made * mlp) for attention, mlp in self._mask)

    def _report(self) -> DepthReport:
        return DepthReport(
            total=self._llm.total,
            budget=self._budget.depth,
            prefill=self._prefill_depth,
            per_token=(self._depth,) * len(self._confidences),
            branch_runs=self._branch_runs(),
            policy=self._budget.policy,
            gate_fingerprint=self._llm.plan.fingerprint,
        )
