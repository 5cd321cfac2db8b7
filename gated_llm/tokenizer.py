"""Text and chat messages to token ids and back, from a folder's `tokenizer.json` and chat template.

Words in a user's text that look like control tokens stay words: they are split out before the template's own control
tokens are read. Reads through `tokenizers` and `jinja2` alone, so no start-up time goes to transformers. Knows no
model.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .errors import PromptError, WeightsError

Prompt = str | Sequence[Mapping[str, Any]]
_OPEN, _SHUT = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([0-9]+){_SHUT}")


class ChatTokenizer:
    """Thread-safe: encoding does not change it."""

    def __init__(self, folder: Path) -> None:
        """Raises WeightsError when the folder has no usable tokenizer."""
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        if not path.exists():
            raise WeightsError(
                f"{folder} has no tokenizer.json: save the tokenizer with transformers' save_pretrained."
            )
        try:
            self._control, self._plain = (Tokenizer.from_str(path.read_text("utf-8")) for _ in range(2))
        except Exception as error:  # tokenizers raises bare Exception
            raise WeightsError(f"{path} cannot be read: {error}") from error
        self._plain.encode_special_tokens = True
        added = self._control.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        names = sorted((added[i].content for i in self.special_ids), key=len, reverse=True)
        self._special = re.compile(
            "|".join(map(re.escape, names)) + f"|[{_OPEN}{_SHUT}]" if names else f"[{_OPEN}{_SHUT}]"
        )
        settings = folder / "tokenizer_config.json"
        self._config: dict[str, Any] = json.loads(settings.read_text("utf-8")) if settings.exists() else {}
        self._template = self._compile(folder)

    def to_json(self) -> str:
        """The whole tokenizer as `tokenizer.json` holds it."""
        return str(self._control.to_str())

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text that is continued as it stands: no template, no control tokens read from it."""
        start = self._control.encode("").ids if text else []
        return start + list(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Ids of messages, or of a string: one user turn where the model has a template, unless `raw`. Raises
        PromptError.
        """
        if isinstance(prompt, str):
            if not prompt.strip():
                raise PromptError("The prompt is empty: give some text or a list of messages.")
            _whole(prompt)
            if raw or self._template is None:
                return self.encode_text(prompt)
            prompt = [{"role": "user", "content": prompt}]
        elif raw:
            raise PromptError("A raw prompt is a string; messages need the chat template.")
        if not isinstance(prompt, Sequence):
            raise PromptError(f"A prompt is text or a list of messages, not {type(prompt).__name__}.")
        messages = [_message(message) for message in prompt]
        if not any(message["content"].strip() for message in messages):
            raise PromptError("The messages are empty: at least one needs content.")
        if self._template is None:
            return self.encode_text("\n\n".join(message["content"] for message in messages))
        words: list[str] = []
        shielded = [{**m, "content": self._shield(m["content"], words)} for m in messages]
        if ids := self._encode_rendered(self._render(shielded), words):
            return ids
        raise PromptError("The model's chat template makes nothing of these messages.")

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without control tokens; an unfinished UTF-8 character shows as U+FFFD."""
        return str(self._control.decode(list(ids), skip_special_tokens=True))

    def _shield(self, text: str, words: list[str]) -> str:
        def mark(match: re.Match[str]) -> str:
            words.append(match.group())
            return f"{_OPEN}{len(words) - 1}{_SHUT}"

        return self._special.sub(mark, text)

    def _encode_rendered(self, rendered: str, words: list[str]) -> list[int]:
        ids: list[int] = []
        for index, piece in enumerate(_MARK.split(rendered)):
            if index % 2:
                ids += self._plain.encode(words[int(piece)], add_special_tokens=False).ids
            elif piece:
                ids += self._control.encode(piece, add_special_tokens=False).ids
        return ids

    def _render(self, messages: list[dict[str, str]]) -> str:
        from jinja2 import TemplateError

        assert self._template is not None
        names = {key: _token(self._config.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        try:
            return str(self._template.render(messages=messages, add_generation_prompt=True, **names))
        except TemplateError as error:
            raise PromptError(f"The model's chat template refuses these messages: {error}") from error

    def _compile(self, folder: Path) -> Any:
        source = self._config.get("chat_template")
        if (own := folder / "chat_template.jinja").exists():
            source = own.read_text("utf-8")
        if isinstance(source, list):
            source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
        if not source:
            return None
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(source)
        except TemplateError as error:
            raise WeightsError(f"The chat template in {folder} cannot be read: {error}") from error


class TextStream:
    """Token ids in, text out as soon as it is whole: no character is cut in the middle."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context, self._read = 0, 0

    def push(self, token_id: int) -> str:
        """Text that `token_id` completes; empty while a character is unfinished."""
        self._ids.append(token_id)
        return self._take(final=False)

    def finish(self) -> str:
        """What is left, with U+FFFD for a character that never became whole."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._context : self._read])
        after = self._tokenizer.decode(self._ids[self._context :])
        if not final and (after.endswith("\ufffd") or len(after) <= len(before)):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return after[len(before) :]


def _message(message: object) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise PromptError(f"A message is a mapping with role and content, not {type(message).__name__}.")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise PromptError('Each message needs a "role": "system", "user" or "assistant".')
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        if len(parts) != len(content):
            raise PromptError("Only text content is supported in messages.")
        content = "".join(str(part) for part in parts)
    if not isinstance(content, str):
        raise PromptError('Each message needs a "content" that is text.')
    _whole(content)
    return {"role": role, "content": content}


def _whole(text: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise PromptError("The prompt is not valid Unicode text: it holds half a character. Decode it as UTF-8.")


def _token(value: Any) -> str:
    return str(value["content"]) if isinstance(value, Mapping) else str(value or "")
