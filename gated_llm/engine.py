"""GatedLLM: a local model that answers within a depth budget (G2, G6, G8, G17).

Puts prompt, plan, passes and sampler together; requests run side by side in one batch. torch is imported when a model
is loaded. Knows no routing, retrieval or HTTP.
"""

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .config import DecoderConfig
from .errors import GatedError, PromptError
from .gating import new_gating, run_mask
from .health import LayerHealth
from .policy import Budget, Plan, resolve_budget
from .prefix import PrefixStore
from .report import Chunk, Generation
from .request import Cancel, Request, Work
from .sampler import Sampling, stop_words
from .scheduler import Scheduler
from .tokenizer import ChatTokenizer, Prompt
from .weights import DEFAULT_MODEL, Progress, locate

if TYPE_CHECKING:
    from torch import Tensor

    from .passes import Model

_ASSETS = Path(__file__).parent / "assets"
_DTYPES = ("auto", "fp32", "bf16", "int8", "int4")
_PREFIX_BYTES = 64 << 20
_KV_BYTES = 1 << 30


class GatedLLM:
    """One loaded model. Thread-safe: requests are batched step by step, each with its own cache and sampler."""

    def __init__(
        self,
        model: "Model",
        tokenizer: ChatTokenizer,
        plan: Plan,
        *,
        name: str,
        model_fingerprint: str,
        quality: float = 0.003,
        kv_bytes: int = _KV_BYTES,
        prefix_bytes: int = _PREFIX_BYTES,
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
        self._closing = threading.Lock()
        self.scheduler = Scheduler(most_bytes=kv_bytes)
        self.prefix = PrefixStore(prefix_bytes)
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
        ones wait.
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
        model = _place(config, weights, dtype, reader=not edge)
        del weights
        llm = cls(
            model,
            ChatTokenizer(folder),
            find_plan(folder, config, model_fingerprint),
            name=folder.name,
            model_fingerprint=model_fingerprint,
            quality=quality,
            kv_bytes=kv_bytes,
            prefix_bytes=0 if edge else _PREFIX_BYTES,
        )
        _give_back()
        return llm

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
        drafts: bool = True,
        store_skipped: bool = False,
        partition: str = "",
    ) -> Iterator[Chunk]:
        """Chunks of the answer as they are made; the last one has `finish_reason`, `usage` and `confidence`.

        `prompt`: messages, or a string that is one user turn (with `raw`, text to continue). Every generated token is
        chosen by a pass within `max_depth`; the prompt before it is read at full depth unless `gate_prefill`.
        `drafts`: guess tokens ahead and verify them, which changes the time and nothing else (G16). `store_skipped`:
        a skipped attention branch still stores its keys and values. `partition`: whose prompt it is; only prompts of
        one partition share what was read of a common beginning. Settings are checked before the first chunk is asked
        for. Raises PromptError, BudgetError, SamplingError, and LogitsError from a damaged checkpoint.
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
        model = self._model
        if model is None:
            raise GatedError("This model is closed: load it again.")
        work = self._work(model, ids, budget, sampling, gate_prefill, store_skipped, partition, cancel)
        return self._run(work)

    def _work(
        self,
        model: "Model",
        ids: list[int],
        budget: Budget,
        sampling: Sampling,
        gate_prefill: bool,
        store_skipped: bool,
        partition: str,
        cancel: Cancel | None,
    ) -> Work:
        drops = [point.drop for point in self.plan.points[: budget.dropped]]
        mask = run_mask(self.plan, drops, store=store_skipped)
        full, room = budget.dropped == 0, min(sampling.max_tokens, self.context - len(ids))
        gated = gate_prefill and not full
        return Work(
            model=model,
            tokenizer=self.tokenizer,
            ids=ids,
            room=room,
            sampling=sampling,
            gating=new_gating(
                "plan" if budget.dropped else "full", self.plan, budget, seed=sampling.seed, store=store_skipped
            ),
            full=full,
            gated_prompt=mask if gated else None,
            prefill_depth=self.plan.depth_at(budget.dropped) if gated else float(self.total),
            capacity=[(0 if gated else len(ids)) + (room + gated * len(ids)) * bool(a) for a in mask[:, 0].tolist()],
            budget=budget.depth,
            policy=budget.policy,
            gate_fingerprint=self.plan.fingerprint,
            cancel=cancel,
            partition=partition,
        )

    def _run(self, work: Work) -> Iterator[Chunk]:
        request = Request(work, self.prefix)
        size = sum(work.capacity) * work.model.token_bytes
        try:
            yield from self.scheduler.run(request, size)
        finally:
            report = work.gating
            self._health.add(request.made, tuple(map(tuple, report.branch_runs.tolist())))

    def set_threads(self, threads: int) -> None:
        """CPU threads of the whole process, from the next pass on; answers stay the same to the bit in the kernel."""
        import torch

        torch.set_num_threads(threads)
        if self._model is not None:
            self._model.set_threads(threads)

    def get_layer_health(self) -> dict[str, Any]:
        """Per layer, how often it and each of its branches ran over the last requests, 0 to 1."""
        return self._health.report()

    def close(self) -> None:
        """Ends what is being generated and frees the weights; the model cannot generate any more."""
        with self._closing:
            self.scheduler.close()
            model, self._model = self._model, None
            if model is not None:
                model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _place(config: DecoderConfig, weights: "dict[str, Tensor]", dtype: str, *, reader: bool) -> "Model":
    """The model in memory: on a GPU by torch, on a CPU by the native kernel where there is one for it."""
    import torch

    from .model import Decoder
    from .passes import KernelModel, TorchModel

    cuda = torch.cuda.is_available()
    if dtype in ("int4", "int8") or (dtype == "auto" and not cuda):
        model = KernelModel.load(config, weights, bits={"int4": 4, "int8": 8}.get(dtype), reader=reader)
        if model is not None:
            return model
    chosen = ("bf16" if cuda else "exact") if dtype == "auto" else dtype
    device = "cuda" if cuda and chosen in ("bf16", "fp32") else "cpu"
    return TorchModel(Decoder(config, weights, dtype=chosen, device=device))


def _give_back() -> None:
    """Hands what loading needed back to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def find_plan(folder: Path, config: DecoderConfig, model_fingerprint: str) -> Plan:
    """The plan in the model's folder, else the one that ships under its name, else none: full depth only.

    Raises PlanError.
    """
    for path in (folder / "plan.json", _ASSETS / f"{folder.name}.plan.json"):
        if path.exists():
            return Plan.read(path, model_fingerprint=model_fingerprint)
    return Plan(total=config.layers, attention_share=config.attention_share, model_fingerprint=model_fingerprint)
