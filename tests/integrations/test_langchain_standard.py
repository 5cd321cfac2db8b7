"""The standard suites of `langchain-tests`, on the real model, cache server, knowledge base and encoder.

What the default model cannot do is xfailed with its reason, each test still running for real.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.caches import BaseCache
from langchain_core.embeddings import Embeddings
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import (
    AsyncCacheTestSuite,
    ChatModelIntegrationTests,
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    SyncCacheTestSuite,
)
from langchain_tests.unit_tests import ChatModelUnitTests, EmbeddingsUnitTests

from shoal import CognitiveRouter, DepthCache, KnowledgeBase
from shoal.router.decision import CacheControl
from shoal.router.integrations.langchain import ChatShoal, KnowledgeBaseRetriever, ShoalCache, ShoalEmbeddings

NO_TOOLS = "no tool calling: bind_tools raises NotImplementedError, tools are refused and never ignored"
TOOL_TESTS = (
    "test_tool_calling",
    "test_tool_calling_async",
    "test_bind_runnables_as_tools",
    "test_tool_message_histories_string_content",
    "test_tool_message_histories_list_content",
    "test_tool_choice",
    "test_tool_calling_with_no_arguments",
    "test_tool_message_error_status",
    "test_structured_few_shot_examples",
    "test_agent_loop",
    "test_unicode_tool_call_integration",
)


UNENDING = (
    "held to the schema, but the tiny default model may fill an unbounded string until max_tokens cuts it off; "
    "test_answers_held_to_a_schema has bounded ones"
)


def unsupported(reason: str, *names: str, **how: Any) -> Callable[[type], type]:
    """Marks inherited tests as expected to be refused with NotImplementedError, or as `how` says; they still run."""
    how = how or {"raises": NotImplementedError, "strict": True}

    def mark(cls: type) -> type:
        for name in names:
            inherited = getattr(cls, name)

            if inspect.iscoroutinefunction(inherited):

                @functools.wraps(inherited)
                async def test(*args: Any, _inherited: Any = inherited, **kwargs: Any) -> None:
                    await _inherited(*args, **kwargs)

            else:

                @functools.wraps(inherited)
                def test(*args: Any, _inherited: Any = inherited, **kwargs: Any) -> None:
                    _inherited(*args, **kwargs)

            test.pytestmark = [
                *getattr(inherited, "pytestmark", []),
                pytest.mark.xfail(reason=reason, **how).mark,
            ]
            setattr(cls, name, test)
        return cls

    return mark


@unsupported(NO_TOOLS, "test_bind_tool_pydantic")
class TestChatShoalUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatShoal

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "smollm2-135m"}


@pytest.mark.model
@unsupported(NO_TOOLS, *TOOL_TESTS)
@unsupported(
    UNENDING,
    "test_structured_output",
    "test_structured_output_async",
    "test_structured_output_pydantic_2_v1",
    raises=OutputParserException,
    strict=False,
)
class TestChatShoalIntegration(ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _on(self, bare: CognitiveRouter, request: pytest.FixtureRequest) -> None:
        self.router = bare
        self.tokens = 120 if "structured" in request.node.name else 8  # JSON that is cut off is none

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatShoal

    @property
    def chat_model_params(self) -> dict[str, Any]:
        """Every answer made anew, so that the streams are real ones."""
        return {
            "router": self.router,
            "max_tokens": self.tokens,
            "cache_control": CacheControl(read=False, write=False),
        }


class TestShoalCacheSync(SyncCacheTestSuite):
    @pytest.fixture
    def cache(self) -> Iterator[BaseCache]:
        store = DepthCache()
        yield ShoalCache(store)
        store.close()


class TestShoalCacheAsync(AsyncCacheTestSuite):
    @pytest.fixture
    async def cache(self) -> Any:
        store = DepthCache()
        yield ShoalCache(store)
        store.close()


class TestShoalEmbeddingsUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return ShoalEmbeddings


class TestShoalEmbeddingsIntegration(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return ShoalEmbeddings


class TestKnowledgeBaseRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _on(self, kb: KnowledgeBase) -> None:
        self.kb = kb

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return KnowledgeBaseRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"kb": self.kb}

    @property
    def retriever_query_example(self) -> str:
        return "When does the library open?"
