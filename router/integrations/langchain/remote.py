"""Any LangChain chat model as the router's deep path (G19): vLLM, Ollama, a vendor's API, or another Shoal.

Has the face the pipeline asks of a model (`router.deep.Deep`). The depth is what the other side reports in its
`X-Compute-Depth` header; where it sends none, every token counts as `total` layers deep, since nothing else is known.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langchain_core.messages.utils import count_tokens_approximately

from ...deep import Turns
from ...errors import InvalidRequest, MissingExtra, RemoteFailed, RouterError
from .messages import finish_reason

_DEPTH = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(\d+)\s*")
_FIXED = re.compile(r"(azure_)?openai:(gpt-5|o\d)")  # models that refuse a temperature
_MAX_TOKENS = ("max_tokens", "num_predict", "max_output_tokens")  # names this field has in chat models


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBudget:
    depth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReport:
    """Depth of a remote answer in layers: the deepest token, which is all that a header says."""

    max: float
    total: int
    policy: str

    def to_dict(self) -> dict[str, Any]:
        layers = {"layers": {}, "runs": [], "per_token": [], "gate_fingerprint": ""}
        depths = {"max": self.max, "mean": self.max, "prefill": self.max, "budget": float(self.total)}
        return {"total": self.total, **depths, **layers, "policy": self.policy}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteUsage:
    prompt_tokens: int
    completion_tokens: int
    layer_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteChunk:
    text: str
    depth: RemoteReport
    finish_reason: str | None = None
    usage: RemoteUsage | None = None
    confidence: float | None = None
    trace: None = None


class RemoteLLM:
    """`CognitiveRouter(remote=RemoteLLM(init_chat_model("ollama:qwen3")))`.

    `total`: layers to count where the other side reports none. `streaming=False` asks for whole answers: an
    OpenAI-compatible Shoal knows the depth only then when it sends its headers (`include_response_headers=True`).
    Sampling arguments reach the chat model through its own fields of that name; what it lacks stays as configured.
    `sampling=False` leaves temperature, top_p and seed alone, for models that refuse them (gpt-5, o-series).
    """

    min_depth = 1.0

    def __init__(
        self,
        chat_model: BaseChatModel,
        *,
        total: int = 30,
        context: int = 8192,
        streaming: bool = True,
        sampling: bool = True,
    ) -> None:
        if not isinstance(chat_model, BaseChatModel):
            raise InvalidRequest(f"a LangChain chat model is needed, not {type(chat_model).__name__}", "chat_model")
        for name, value in (("total", total), ("context", context)):
            if not isinstance(value, int) or value < 1:
                raise InvalidRequest(f"{name} must be a whole number from 1, not {value!r}", name)
        self._chat, self.total, self.context, self._streaming = chat_model, total, context, streaming
        self._sampling = sampling
        known = chat_model._get_ls_params()
        self.name = f"{known.get('ls_provider', 'remote')}:{known.get('ls_model_name', 'unknown')}"
        url = getattr(chat_model, "openai_api_base", None) or getattr(chat_model, "base_url", None) or ""
        self.fingerprint = f"remote:{self.name}@{url}"

    def resolve_budget(self, max_depth: int | str) -> RemoteBudget:
        """The whole model: how deep a remote one thinks is its own affair."""
        return RemoteBudget(depth=float(self.total))

    def count_tokens(self, prompt: str | Turns) -> int:
        """About four characters a token; the real tokenizer is on the other side."""
        return count_tokens_approximately(convert_to_messages([prompt] if isinstance(prompt, str) else prompt))

    def stream(
        self,
        prompt: str | Turns,
        *,
        max_depth: int | str = "auto",
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = 0,
        cancel: Event | None = None,
        partition: str = "",
        adapter: str | None = None,
        trace: bool = False,
    ) -> Iterator[RemoteChunk]:
        """Chunks as they come; the last one has usage and depth, never a `trace`. `cancel` closes the connection.

        Raises `RemoteFailed` for whatever the chat model raises, which is its cause.
        """
        messages = convert_to_messages([prompt] if isinstance(prompt, str) else prompt)
        sampling: dict[str, Any] = {"temperature": temperature, "seed": seed} if self._sampling else {}
        if top_p < 1 and self._sampling:  # 1 changes nothing, and some vendors take temperature or top_p, not both
            sampling["top_p"] = top_p
        chat = self._configured({**sampling, **dict.fromkeys(_MAX_TOKENS, max_tokens)})
        final: AIMessage | None = None
        text, unknown = "", RemoteReport(max=0.0, total=self.total, policy="remote")
        for piece in self._messages(chat, messages, list(stop)):
            final = piece if final is None else cast("AIMessage", final + piece)
            text += piece.text
            if piece.text:
                yield RemoteChunk(text=str(piece.text), depth=unknown)
            if cancel is not None and cancel.is_set():
                break
        yield self._last(final or AIMessage(""), messages, text, cancelled=cancel is not None and cancel.is_set())

    def get_layer_health(self) -> dict[str, Any]:
        raise InvalidRequest(f"{self.name} is remote; ask its own server for the health of its layers")

    def close(self) -> None:
        """Nothing is held between requests."""

    def _configured(self, values: Mapping[str, Any]) -> BaseChatModel:
        fields = type(self._chat).model_fields
        return self._chat.model_copy(update={name: value for name, value in values.items() if name in fields})

    def _messages(self, chat: BaseChatModel, messages: list[BaseMessage], stop: list[str]) -> Iterator[AIMessage]:
        try:
            if self._streaming:
                yield from chat.stream(messages, stop=stop or None)
            else:
                yield chat.invoke(messages, stop=stop or None)
        except RouterError:  # the chat model is another router's
            raise
        except Exception as error:  # each vendor has errors of its own
            raise RemoteFailed.of(self.name, error) from error

    def _last(self, final: AIMessage, messages: list[BaseMessage], text: str, *, cancelled: bool) -> RemoteChunk:
        metadata = final.response_metadata
        report = _report(metadata.get("headers") or {}, self.total)
        usage = final.usage_metadata
        read = usage["input_tokens"] if usage else count_tokens_approximately(messages)
        written = usage["output_tokens"] if usage else count_tokens_approximately([AIMessage(text)])
        return RemoteChunk(
            text="",
            depth=report,
            finish_reason="cancelled" if cancelled else finish_reason(metadata),
            usage=RemoteUsage(
                prompt_tokens=read, completion_tokens=written, layer_tokens=(read + written) * report.max
            ),
        )


def connect(model: str, *, url: str | None = None) -> RemoteLLM:
    """The chat model that LangChain knows as `PROVIDER:MODEL`, at `url` where given; keys come from its own variables.

    Raises MissingExtra without `langchain`, RouterError when the provider's package or its key is missing.
    """
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise MissingExtra("langchain", "remote") from error
    more: dict[str, Any] = {"base_url": url} if url else {}
    if model.startswith("openai:"):
        more["include_response_headers"] = True
    try:
        return RemoteLLM(init_chat_model(model, **more), sampling=not _FIXED.match(model))
    except Exception as error:  # each provider has errors of its own for a missing package or key
        raise RouterError(f"the chat model {model!r} cannot be set up ({type(error).__name__}): {error}") from error


def _report(headers: Mapping[str, str], total: int) -> RemoteReport:
    """`X-Compute-Depth: 24/30` (G6) where sent and well formed; else the whole model."""
    sent = {name.lower(): value for name, value in headers.items()}.get("x-compute-depth", "")
    found = _DEPTH.fullmatch(sent)
    if found is None:
        return RemoteReport(max=float(total), total=total, policy="remote, depth not reported")
    return RemoteReport(max=float(found[1]), total=int(found[2]), policy="remote, depth from header")
