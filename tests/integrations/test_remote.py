"""Any LangChain chat model as the deep path (G19)."""

from collections.abc import Iterator
from threading import Event, Thread
from time import sleep
from typing import Any

import httpx
import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import Field, SecretStr
from starlette.testclient import TestClient

from shoal import CognitiveRouter
from shoal.router.decider import Decider
from shoal.router.errors import InvalidRequest, RemoteFailed
from shoal.router.integrations.langchain import ChatShoal, RemoteLLM
from shoal.router.integrations.langchain.remote import connect
from shoal.router.service.app import create_app
from shoal.router.service.options import ServiceOptions
from shoal.router.service.server import server

HARD = (
    "A farm has 17 hens and 4 goats. Each hen lays 5 eggs a week, each goat gives 9 litres. How many eggs in 3 weeks?"
)


class Unwell(Exception):
    """What a vendor's own client raises; it repeats what was sent."""

    status_code = 429


class FarAway(BaseChatModel):
    """A chat model on another machine, which says in a header how deep it thought."""

    model: str = "far-1"
    temperature: float = 0.7
    max_tokens: int | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    seen: list[dict[str, Any]] = Field(default_factory=list)
    fails_after: int | None = None  # words

    @property
    def _llm_type(self) -> str:
        return "far"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if self.fails_after is not None:
            raise Unwell(messages[-1].text)
        self.seen.append({"temperature": self.temperature, "max_tokens": self.max_tokens, "stop": stop, **kwargs})
        message = AIMessage(
            "far far away",
            response_metadata={"headers": self.headers, "finish_reason": "length"},
            usage_metadata={"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for place, word in enumerate(("far", " far", " away")):
            if place == self.fails_after:
                raise Unwell(messages[-1].text)
            yield ChatGenerationChunk(message=AIMessageChunk(word))
        done = {"finish_reason": "stop", "headers": self.headers}
        yield ChatGenerationChunk(message=AIMessageChunk("", response_metadata=done))


def test_hard_questions_go_to_the_remote_model_and_easy_ones_stay(scripted: Any, decider: Decider) -> None:
    scripted.text = "near"
    router = CognitiveRouter(llm=scripted, remote=RemoteLLM(FarAway()), decider=decider)
    assert router.ask(HARD).text == "far far away"
    assert router.ask("hello there!").text == "near"


def test_the_depth_is_read_from_the_header(scripted: Any, decider: Decider) -> None:
    remote = RemoteLLM(FarAway(headers={"X-Compute-Depth": "24/36"}), streaming=False)
    answer = CognitiveRouter(llm=scripted, remote=remote, decider=decider).ask(HARD)
    assert (answer.trace.depth["max"], answer.trace.depth["total"]) == (24, 36)
    assert answer.trace.depth["policy"] == "remote, depth from header"
    assert answer.trace.layer_tokens == 10 * 24
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("sent", [{}, {"x-compute-depth": "deep"}, {"X-Compute-Depth": "1e9/x"}])
def test_without_a_header_every_layer_counts(sent: dict[str, str]) -> None:
    *_, last = RemoteLLM(FarAway(headers=sent), total=28).stream("hi")
    assert (last.depth.max, last.depth.total) == (28, 28)
    assert last.depth.policy == "remote, depth not reported"
    assert last.finish_reason == "stop"


def test_sampling_reaches_the_models_own_fields_only() -> None:
    far = FarAway()
    list(RemoteLLM(far, streaming=False).stream("hi", temperature=0.2, max_tokens=9, top_p=0.5, stop=["x"], seed=3))
    assert far.seen == [{"temperature": 0.2, "max_tokens": 9, "stop": ["x"]}]
    assert far.temperature == 0.7


def test_cancelling_closes_the_stream() -> None:
    cancel = Event()
    chunks = []
    for chunk in RemoteLLM(FarAway()).stream("hi", cancel=cancel):
        chunks.append(chunk)
        cancel.set()
    assert [c.text for c in chunks] == ["far", ""]
    assert chunks[-1].finish_reason == "cancelled"


def test_a_router_with_only_a_remote_model(decider: Decider) -> None:
    router = CognitiveRouter(remote=RemoteLLM(FarAway()), router_only=True, decider=decider)
    assert ChatShoal(router=router).invoke("Write a rhyme.").content == "far far away"


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_vendors_failure_is_told_without_the_prompt(decider: Decider, streaming: bool, after: int) -> None:
    remote = RemoteLLM(FarAway(fails_after=after), streaming=streaming)
    router = CognitiveRouter(remote=remote, router_only=True, decider=decider)
    with pytest.raises(RemoteFailed, match=r"far-1 failed \(Unwell, status 429\): check its address") as failed:
        router.ask(HARD)
    assert isinstance(failed.value.__cause__, Unwell)
    assert "hens" not in str(failed.value)
    with pytest.raises(RemoteFailed):
        list(router.ask_stream(HARD))


def test_a_routers_own_refusal_passes_through() -> None:
    class Refusing(FarAway):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            raise InvalidRequest("max_tokens must be above 0", "max_tokens")

    with pytest.raises(InvalidRequest, match="above 0"):
        list(RemoteLLM(Refusing(), streaming=False).stream("hi"))


def test_the_service_answers_a_vendors_failure_in_openais_shape(decider: Decider) -> None:
    router = CognitiveRouter(remote=RemoteLLM(FarAway(fails_after=0)), router_only=True, decider=decider)
    asked = {"model": "shoal", "messages": [{"role": "user", "content": HARD}]}
    with TestClient(create_app(router)) as http:
        reply = http.post("/v1/chat/completions", json=asked)
        streamed = http.post("/v1/chat/completions", json={**asked, "stream": True})
    assert reply.status_code == 502
    assert reply.json()["error"] == {
        "message": "the remote model faraway:far-1 failed (Unwell, status 429): check its address, key and quota, "
        "then try again",
        "type": "server_error", "param": None, "code": "remote_failed",
    }  # fmt: skip
    assert '"code":"remote_failed"' in streamed.text
    assert "hens" not in reply.text + streamed.text


def test_another_shoal_as_the_deep_path(scripted: Any, plain: CognitiveRouter, decider: Decider) -> None:
    """The unmodified `langchain-openai` client against our own service, which sends its depth in a header."""
    options = ServiceOptions()
    far = server(create_app(plain, options), options, host="127.0.0.1", port=0)
    thread = Thread(target=far.run, daemon=True)
    thread.start()
    while not far.started:
        sleep(0.02)
    port = far.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(trust_env=False) as http:
            chat = ChatOpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key=SecretStr("none"), model="scripted",
                include_response_headers=True, http_client=http, max_retries=0, extra_body={"max_depth": 24},
            )  # fmt: skip
            remote = RemoteLLM(chat, streaming=False)
            answer = CognitiveRouter(remote=remote, router_only=True, decider=decider).ask(HARD)
    finally:
        far.should_exit = True
        thread.join(20)
    assert answer.text == "It is forty two."
    assert answer.trace.depth["policy"] == "remote, depth from header"
    assert (answer.trace.depth["max"], answer.trace.depth["total"]) == (24, 30)


def test_models_that_refuse_a_temperature_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    assert [connect(f"openai:{name}")._sampling for name in ("gpt-5", "o3-mini", "gpt-4.1")] == [False, False, True]
    chat = FarAway()
    for sampling, sent in ((True, 0.2), (False, 0.7)):
        list(RemoteLLM(chat, streaming=False, sampling=sampling).stream("Hello.", temperature=0.2, max_tokens=9))
        assert (chat.seen[-1]["temperature"], chat.seen[-1]["max_tokens"]) == (sent, 9)
