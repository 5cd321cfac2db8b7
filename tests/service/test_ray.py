"""The application on Ray Serve: answers and errors as on uvicorn, pools by depth, and replicas that are lost."""

import socket
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from shoal.gated_llm.weights import home_folder
from shoal.router.errors import RouterError
from shoal.router.service.keys import create_key
from shoal.router.settings import Settings, load_settings

pytestmark = [
    pytest.mark.skipif(not find_spec("ray"), reason="the extra ray is not installed"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.model,
]
STORY = [{"role": "user", "content": "Write a long story about a fishing village and the storm that changed it."}]
HELLO = [{"role": "user", "content": "Say hello in French."}]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A home of its own with the models of whoever runs this."""
    home = tmp_path_factory.mktemp("ray") / "home"
    home.mkdir()
    (home / "models").symlink_to(home_folder() / "models")
    return load_settings(home=home, port=free_port(), cold_log=False)


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[openai.OpenAI]:
    """A client of an application with one replica of the API, one of the model, and one for shallow requests."""
    import ray
    from ray import serve

    from shoal.router.service.ray_app import RayOptions, application

    key, _ = create_key(settings.key_path, name="test", admin=True)
    options = RayOptions.model_validate({"shallow": {"cpus": 0.5}, "shallow_below": 20, "model": {"cpus": 0.5}})
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": settings.port, "request_timeout_s": 120})
        serve.run(application(settings, options), name="shoal")
        with openai.OpenAI(base_url=f"http://127.0.0.1:{settings.port}/v1", api_key=key, max_retries=0) as made:
            yield made
        serve.shutdown()
    finally:
        ray.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def chat(client: openai.OpenAI, messages: Any = HELLO, **settings: Any) -> Any:
    extra = {"cache": False, **settings.pop("extra", {})}
    settings = {"max_tokens": 8, **settings}
    return client.chat.completions.create(model="smollm2-135m", messages=messages, extra_body=extra, **settings)


def under_way(pool: str) -> int:
    from ray import serve

    return int(serve.get_deployment_handle(pool, "shoal").under_way.remote().result())


def eventually(true: Callable[[], bool], patience_s: float = 60) -> bool:
    deadline = time.monotonic() + patience_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()


def kill(pool: str) -> None:
    """End the pool's only replica without a goodbye."""
    import ray

    names = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if f"#{pool}#" in a["name"]]
    assert len(names) == 1, names
    ray.kill(ray.get_actor(names[0], namespace="serve"))


def test_whole_and_streamed_answers_and_their_depth(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="smollm2-135m", messages=HELLO, max_tokens=8, extra_body={"cache": False}
    )
    whole = raw.parse().choices[0].message.content
    assert (raw.headers["x-compute-depth"], raw.headers["x-route"]) == ("30/30", "direct")
    chunks = list(chat(client, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].shoal["depth"]["max"] == 30
    shallow = client.chat.completions.with_raw_response.create(
        model="smollm2-135m", messages=HELLO, max_tokens=8, extra_body={"cache": False, "max_depth": 18}
    )
    assert int(shallow.headers["x-compute-depth"].partition("/")[0]) <= 18
    assert len(client.embeddings.create(model="smollm2-135m", input="the sea").data[0].embedding) > 10


def test_errors_keep_their_shape(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nothing", messages=HELLO)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        chat(client, max_tokens=-1)
    with pytest.raises(openai.BadRequestError, match="max_depth"):
        chat(client, extra={"max_depth": 2})
    with pytest.raises(openai.AuthenticationError):
        chat(client.with_options(api_key="wrong"))
    with pytest.raises(openai.BadRequestError, match="tokens"):
        chat(client, [{"role": "user", "content": "sea " * 9000}])
    missing = httpx.get(f"{client.base_url}nowhere", headers={"Authorization": f"Bearer {client.api_key}"})
    assert (missing.status_code, "error" in missing.json()) == (404, True)


def test_shallow_requests_have_replicas_of_their_own(client: openai.OpenAI) -> None:
    with chat(client, STORY, stream=True, max_tokens=1500, extra={"max_depth": 16}, seed=1, temperature=1.0) as shallow:
        next(iter(shallow))
        assert (under_way("shallow"), under_way("model")) == (1, 0)
        with chat(client, STORY, stream=True, max_tokens=1500, seed=1, temperature=1.0) as deep:
            next(iter(deep))
            assert under_way("model") == 1
    assert eventually(lambda: under_way("shallow") + under_way("model") == 0)  # both callers have left


def test_a_replica_that_is_lost_before_it_speaks_is_replaced(client: openai.OpenAI) -> None:
    before = chat(client).choices[0].message.content
    kill("model")
    assert chat(client).choices[0].message.content == before


def test_a_replica_that_is_lost_in_the_middle_is_an_error(client: openai.OpenAI) -> None:
    with chat(client, STORY, stream=True, max_tokens=1500) as answer:
        pieces = iter(answer)
        assert next(pieces).choices[0].delta.role == "assistant"
        assert next(pieces).choices[0].delta.content
        kill("model")
        with pytest.raises(openai.APIError):
            list(pieces)
    assert eventually(lambda: bool(chat(client).choices[0].message.content))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"api": {"least": 2, "most": 2}}, "SHOAL_REDIS_URL"),
        ({"api": {"most": 2}}, "SHOAL_REDIS_URL"),
        ({"shallow": {}}, "shallow_below"),
        ({"model": {"least": 0}}, "model.least"),
        ({"replicas": 3}, "replicas"),
        ({"api": {"least": 3, "most": 2}}, "most"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(table: dict[str, Any], said: str, tmp_path: Path) -> None:
    from shoal.router.service.ray_app import application, options_for

    own = load_settings(home=tmp_path)
    with pytest.raises(RouterError, match=said):
        application(own, options_for(own, {"open": True, **table}))


def test_nothing_is_unbounded_and_nobody_is_let_in_without_a_key(tmp_path: Path) -> None:
    from shoal.router.service.ray_app import RayOptions, application

    own = load_settings(home=tmp_path)
    with pytest.raises(RouterError, match="keys"):
        application(own, RayOptions())
    api = application(own, RayOptions(open=True))._bound_deployment
    deployments = [api, *(bound._bound_deployment for bound in api.init_args[2:])]
    assert [one.name for one in deployments] == ["api", "model"]
    for one in deployments:
        assert 0 < one.max_queued_requests <= 64
        assert 0 < one.max_ongoing_requests <= 64
        assert 0 < one._deployment_config.graceful_shutdown_timeout_s <= 60
