"""`DepthCache` as LangChain's answer cache: exact hits, in memory and in Redis, for any chat model.

The key is LangChain's own: the serialised prompt, and under it the model string, which names model, gates and depth.
For look-up by meaning and for reuse across depths put the cache into a `CognitiveRouter`: only the router knows
what a prompt asks and how deep an answer was thought.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from langchain_core.caches import BaseCache
from langchain_core.messages import AIMessage, message_to_dict, messages_from_dict
from langchain_core.outputs import ChatGeneration, Generation

from ....cache import DepthCache
from ...errors import InvalidRequest
from .messages import finish_reason

_TAG = "langchain"


class ShoalCache(BaseCache):
    """`set_llm_cache(ShoalCache(DepthCache(redis_url=...)))`. Cut-off and refused answers are not stored (C5)."""

    def __init__(self, cache: DepthCache, *, tenant: str = "default") -> None:
        if not isinstance(cache, DepthCache):
            raise InvalidRequest(f"cache must be a DepthCache, not {type(cache).__name__}", "cache")
        self.cache, self.tenant = cache, tenant

    def lookup(self, prompt: str, llm_string: str) -> Sequence[Generation] | None:
        entry = self.cache.get(**self._key(prompt, llm_string), budget=self.cache.total, semantic=False)
        return _decode(entry.text) if entry is not None else None

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        if (record := self._record(prompt, llm_string, return_val)) is not None:
            self.cache.put(**record)

    async def alookup(self, prompt: str, llm_string: str) -> Sequence[Generation] | None:
        entry = await self.cache.aget(**self._key(prompt, llm_string), budget=self.cache.total, semantic=False)
        return _decode(entry.text) if entry is not None else None

    async def aupdate(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        if (record := self._record(prompt, llm_string, return_val)) is not None:
            await self.cache.aput(**record)

    def clear(self, **kwargs: Any) -> None:
        """Forgets what LangChain stored for this tenant; the router's own entries stay."""
        self.cache.invalidate(tenant=self.tenant, tag=_TAG)

    def _key(self, prompt: str, llm_string: str) -> dict[str, Any]:
        # A role of its own keeps serialised prompts out of every look-up by meaning.
        model = hashlib.sha256(llm_string.encode("utf-8", "surrogatepass")).hexdigest()
        return {"prompt": [{"role": _TAG, "content": prompt}], "tenant": self.tenant, "model": model}

    def _record(self, prompt: str, llm_string: str, generations: Sequence[Generation]) -> dict[str, Any] | None:
        details = [_details(generation) for generation in generations]
        unfinished = any(finish_reason(detail) != "stop" for detail in details)
        if not generations or unfinished or (text := _encode(generations)) is None:
            return None
        depth = max((d["depth"]["max"] for d in details if isinstance(d.get("depth"), dict)), default=0.0)
        key = self._key(prompt, llm_string)
        return {**key, "text": text, "budget": self.cache.total, "depth": depth, "tags": (_TAG,)}


def _details(generation: Generation) -> dict[str, Any]:
    metadata = generation.message.response_metadata if isinstance(generation, ChatGeneration) else {}
    return {**(generation.generation_info or {}), **metadata}


def _encode(generations: Sequence[Generation]) -> str | None:
    """JSON of the generations; None when they hold something JSON cannot, which is then not cached."""
    items = []
    for generation in generations:
        item: dict[str, Any] = {"text": generation.text, "info": generation.generation_info}
        if isinstance(generation, ChatGeneration):
            item["message"] = message_to_dict(generation.message)
        items.append(item)
    try:
        return json.dumps(items)
    except (TypeError, ValueError):
        return None


def _decode(text: str) -> list[Generation]:
    generations: list[Generation] = []
    for item in json.loads(text):
        if "message" in item:
            (message,) = messages_from_dict([item["message"]])
            if isinstance(message, AIMessage):
                generations.append(ChatGeneration(message=message, generation_info=item["info"]))
        else:
            generations.append(Generation(text=item["text"], generation_info=item["info"]))
    return generations
