"""Request bodies as pydantic models: OpenAI's fields plus Shoal's own (`max_depth`, `profile`, `cache`, `trace`).

Unknown fields are ignored as OpenAI does; a known field of the wrong type is refused by name. Fields that would change
the answer and that Shoal does not do (tools, log-probabilities) are refused clearly, never ignored.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from ...cache import CacheInputError, Control
from ..decision import CacheControl
from .errors import ApiError


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text holds half of a surrogate pair, which is not a character") from None
    return text


MOST_ANSWERS = 8  # of one request
MOST_LEVELS = 64  # of objects and arrays in a schema
Text = Annotated[str, AfterValidator(_whole)]
Name = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_whole)]


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class TextPart(Body):
    type: str
    text: Text | None = None


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | list[TextPart] | None = None

    def plain(self, index: int) -> dict[str, str]:
        """The message as the router takes it; raises `ApiError` for what is not text."""
        where = f"messages.{index}"
        if self.role in ("tool", "function"):
            raise _unsupported(f"{where}.role", "Tool messages are not supported.")
        if self.content is None:
            raise ApiError(400, f"{where}.content must be text.", param=f"{where}.content")
        if isinstance(self.content, str):
            text = self.content
        else:
            if any(part.type != "text" or part.text is None for part in self.content):
                raise _unsupported(f"{where}.content", "Only content parts of type text are supported.")
            text = "\n".join(part.text or "" for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class CacheOptions(Body):
    """What the answer cache may do for this request (C5). `max_age_s` in seconds."""

    read: bool = True
    write: bool = True
    max_age_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    sampled: bool = False


def _shallow(schema: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [schema]
    for _ in range(MOST_LEVELS):
        inner = [each for value in level for each in (value.values() if isinstance(value, dict) else value)]
        level = [each for each in inner if isinstance(each, dict | list)]
    if level:
        raise ValueError(f"a schema may have at most {MOST_LEVELS} levels")
    return schema


class JsonSchema(Body):
    """OpenAI's wrapper around a JSON schema; `strict` makes no difference: an answer is always held to it."""

    name: Name
    schema_: Annotated[dict[str, Any], AfterValidator(_shallow)] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """How the answer is to look: any text, any JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Body):
    include_usage: bool | None = None


class Generation(Body):
    """What chat and plain completions have in common."""

    model: Name
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    stop: Text | list[Text] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: int | None = Field(default=None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    logit_bias: dict[str, Any] | None = None
    user: Text | None = None
    max_depth: int | Text | None = Field(default=None, description='layers, a share such as "60%", or "auto"')
    profile: Name | None = None
    cache: bool | CacheOptions | None = None
    trace: Literal["off", "light", "full"] | None = Field(default=None, description="how much of it is kept (G7)")

    def limit(self) -> int | None:
        return self.max_tokens

    def held_to(self) -> dict[str, Any] | None:
        """The JSON schema that the answer must fit."""
        return None

    @property
    def usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...] | None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        return tuple(stop) if stop else None

    def cache_control(self, header: str | None) -> CacheControl:
        """The `cache` field, else the Cache-Control header (`no-cache`, `no-store`, `max-age=N`)."""
        if isinstance(self.cache, bool):
            return CacheControl(read=self.cache, write=self.cache)
        if self.cache is not None:
            return CacheControl(**self.cache.model_dump())
        return _cache_header(header or "")

    def check(self) -> None:
        """Raises `ApiError` for what OpenAI's API has and Shoal does not do."""
        if (self.n or 1) > MOST_ANSWERS:
            raise ApiError(400, f"n may be at most {MOST_ANSWERS}.", param="n")
        if self.presence_penalty or self.frequency_penalty:
            raise _unsupported("presence_penalty", "Penalties are not supported; leave them out or at 0.")
        if self.logit_bias:
            raise _unsupported("logit_bias", "logit_bias is not supported.")
        if self.stops and (len(self.stops) > 16 or any(not s or len(s) > 256 for s in self.stops)):
            raise ApiError(400, "stop takes up to 16 strings of 1 to 256 characters.", param="stop")
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options is only for stream: true.", param="stream_options")


class ChatBody(Generation):
    messages: list[ChatMessage] = Field(min_length=1, max_length=1000)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    modalities: list[str] | None = None

    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def check(self) -> None:
        Generation.check(self)
        if self.tools or self.functions or self.tool_choice not in (None, "none", "auto"):
            raise _unsupported("tools", "Tool calling is not supported: leave tools out.")
        form = self.response_format
        if form is not None and form.type == "json_schema" and form.json_schema is None:
            raise ApiError(400, "response_format.json_schema is missing.", param="response_format.json_schema")
        if self.logprobs:
            raise _unsupported("logprobs", "logprobs are not supported.")
        if self.modalities not in (None, ["text"]):
            raise _unsupported("modalities", "Only text is supported.")

    def held_to(self) -> dict[str, Any] | None:
        form = self.response_format
        if form is None or form.type == "text":
            return None
        return form.json_schema.schema_ or {"type": "object"} if form.json_schema else {"type": "object"}

    def prompt_messages(self) -> list[dict[str, str]]:
        return [message.plain(index) for index, message in enumerate(self.messages)]


class CompletionBody(Generation):
    prompt: Text | list[Text] | list[int] | list[list[int]]
    echo: bool | None = None
    suffix: Text | None = None
    best_of: int | None = None
    logprobs: int | None = None

    def check(self) -> None:
        Generation.check(self)
        for name, value in (("echo", self.echo), ("suffix", self.suffix), ("logprobs", self.logprobs)):
            if value:
                raise _unsupported(name, f"{name} is not supported.")
        if (self.best_of or 1) > 1:
            raise _unsupported("best_of", "Only best_of=1 is supported.")

    def prompt_messages(self) -> list[dict[str, str]]:
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if len(prompts) != 1 or not isinstance(prompts[0], str):
            raise _unsupported("prompt", "prompt must be one text; token lists and batches are not supported.")
        return [{"role": "user", "content": prompts[0]}]


class EmbeddingBody(Body):
    model: Name
    input: Text | list[Text] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(default=None, ge=1)

    def texts(self) -> list[str]:
        texts: Sequence[object] = [self.input] if isinstance(self.input, str) else self.input
        if not texts or any(not isinstance(text, str) or not text for text in texts):
            raise _unsupported("input", "input must be a text or a list of texts, none of them empty.")
        return [str(text) for text in texts]


class RouteBody(Body):
    """A question to decide about without answering it."""

    input: Text | list[ChatMessage]
    max_depth: int | Text | None = None
    profile: Name | None = None

    def prompt_messages(self) -> list[dict[str, str]]:
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return [message.plain(index) for index, message in enumerate(self.input)]


def own_id(value: str) -> str:
    """Our part of an `X-Request-Id`: proxies, such as Ray Serve's, put theirs after it."""
    return value.partition(",")[0].strip()


class FeedbackBody(Body):
    """A thumb for one answer; `request_id` is the answer's `X-Request-Id`, without what a proxy adds after a comma."""

    request_id: Name
    up: bool

    @field_validator("request_id")
    @classmethod
    def _own(cls, value: str) -> str:
        return own_id(value)


class KbDocument(Body):
    id: Name
    text: Text = Field(min_length=1)
    labels: list[Text] = Field(default_factory=list, max_length=64)
    meta: dict[Text, Text | float | bool] = Field(default_factory=dict, max_length=64)


class KbAddBody(Body):
    documents: list[KbDocument] = Field(min_length=1, max_length=1000)


class KbSearchBody(Body):
    query: Text = Field(min_length=1)
    k: int = Field(default=5, ge=1, le=50)
    labels: list[Text] = Field(default_factory=list, max_length=64)
    where: dict[Text, Text | float | bool] = Field(default_factory=dict, max_length=16)


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """OpenAI's error shape."""

    error: ErrorDetail


def _unsupported(param: str, message: str) -> ApiError:
    return ApiError(400, message, code="unsupported_parameter", param=param)


def _cache_header(header: str) -> CacheControl:
    try:
        told = Control.parse(header)
    except CacheInputError as error:
        raise ApiError(400, str(error), param="cache-control") from None
    return CacheControl(read=not (told.no_cache or told.no_store), write=not told.no_store, max_age_s=told.max_age_s)
