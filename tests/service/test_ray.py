"""The application on Ray Serve: answers and errors as on uvicorn, pools by depth, and replicas that are lost."""

import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from shoal.gated_llm.weights import home_folder
from shoal.rag.chunk import Chunk
from shoal.rag.errors import RagError
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
def cluster() -> Iterator[None]:
    """Ray, started once. Its workers usually run at niceness 15: beside other tests that is never."""
    import ray

    system = {"worker_niceness": 0}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20,
             _system_config=system)  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def proxy(settings: Settings, cluster: None) -> Iterator[str]:
    """Ray Serve with nothing behind it yet."""
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": settings.port, "request_timeout_s": 120})
    yield f"http://127.0.0.1:{settings.port}"
    serve.shutdown()


@pytest.fixture(scope="module")
def client(settings: Settings, proxy: str) -> Iterator[openai.OpenAI]:
    """A client of an application with one replica of the API, one of the model, and one for shallow requests."""
    from ray import serve

    from shoal.router.service.ray_app import RayOptions, application

    key, _ = create_key(settings.key_path, name="test", admin=True)
    options = RayOptions.model_validate({"shallow": {"cpus": 0.5}, "shallow_below": 20, "model": {"cpus": 0.5}})
    serve.run(application(settings, options), name="shoal")
    with openai.OpenAI(base_url=f"{proxy}/v1", api_key=key, max_retries=0) as made:
        yield made


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


def test_a_knowledge_base_made_and_audited_on_ray_data_is_the_local_one_to_the_last_byte(
    cluster: None, shoal: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    draw, words = random.Random(0), ("sea", "storm", "village", "boat", "fish", "letter", "road", "moon", "river")
    for n in range(18):
        parts = [" ".join(draw.choice(words) for _ in range(50)).capitalize() + "." for _ in range(1 + n % 5)]
        text = "".join(draw.choice("abcdef0123456789") for _ in range(400)) if n % 6 == 0 else "\n\n".join(parts)
        path = tmp_path / "docs" / f"{n:02}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    reports = []
    for name, more in (("local", []), ("ray", ["--ray"])):
        code, _, said = shoal("kb", "add", "docs", "--kb", name, *more)
        assert (code, "18 added" in said) == (0, True), said
        asked = ("--limit", "0.95", "--allow-loss", "1", "--scores", "predicted", "--json")
        code, out, said = shoal("kb", "audit", "--kb", name, *asked, *more)
        assert code == 0, said
        reports.append({**json.loads(out), "made": 0, "seconds": 0, "html": 0})
    assert reports[0] == reports[1]
    assert (reports[0]["documents"]["split"] > 0, reports[0]["quarantine"]["passages"] > 0) == (True, True)
    for file, tables in {"kb.sqlite": ("documents", "chunks", "aside"), "audit/scores.sqlite": ("scores",)}.items():
        found = []
        for name in ("local", "ray"):
            with closing(sqlite3.connect(tmp_path / name / file)) as base:
                found.append([sorted(base.execute(f"SELECT * FROM {table}")) for table in tables])
        assert all(found[0])
        assert found[0] == found[1]


def test_workers_with_another_embedder_are_told(cluster: None) -> None:
    from shoal.router.ray_data import RayEncode

    chunk = Chunk(chunk_id="a", start=0, end=3, heading="", text="sea")
    with pytest.raises(RagError, match="same version"):
        RayEncode(fingerprint="another")([("", [chunk])])


def test_the_service_does_on_ray_serve_what_it_does_on_uvicorn(
    proxy: str, router: Any, schemathesis: Any, tmp_path: Path
) -> None:
    """The suite of the `openai` client and, shorter, of the OpenAPI document, over the same scripted router."""
    from ray import cloudpickle, serve

    scripted, folder = type(router), tmp_path
    cloudpickle.register_pickle_by_value(sys.modules[scripted.__module__])
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    secret, _ = create_key(folder / "keys.json", name="fuzz", admin=True, quota=1e12)

    class Scripted:
        def __serve_build_asgi_app__(self) -> Any:
            from shoal import KnowledgeBase
            from shoal.router.service.app import create_app
            from shoal.router.service.options import ServiceOptions
            from shoal.router.traces import Recorder, TraceStore

            made = scripted()
            made.kb = KnowledgeBase.open(folder / "kb")
            made.recorder = Recorder(TraceStore(folder / "traces.sqlite"))
            options = ServiceOptions(keys_path=folder / "keys.json", ledger_path=folder / "ledger.sqlite")
            return create_app(made, options)

    deployed: Any = serve.deployment(serve.ingress()(Scripted))
    serve.run(deployed.options(max_ongoing_requests=64, ray_actor_options={"num_cpus": 0.5}).bind(), name="scripted")
    try:
        schemathesis(proxy, secret, folder, 1, "fuzzing")
        inside = "not settings and not several_answers_to and not form_of"  # these look into the router
        suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", inside]
        there = {**os.environ, "SHOAL_SERVICE_URL": proxy, "SHOAL_SERVICE_KEY": secret}
        found = subprocess.run(
            [*suite, str(Path(__file__).with_name("test_openai_client.py"))], env=there, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stdout[-6000:]
        assert int(found.stdout.split(" passed")[0].split()[-1]) > 40
    finally:
        serve.delete("scripted")


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


def test_the_layers_of_all_model_replicas_are_told_of(client: openai.OpenAI) -> None:
    chat(client)
    chat(client, extra={"max_depth": 18})
    health = client.get("/layers/health", cast_to=dict[str, Any])
    assert (health["requests"] >= 2, health["tokens"] > 0, len(health["layers"])) == (True, True, 30)
    assert 0 < health["layers"]["layer_4"]["run_rate"] < 1  # the shallow ones left it out


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
    create_key(own.key_path, name="one")
    assert application(own, RayOptions())._bound_deployment.init_args[1] is True  # replicas ask for keys as well
    api = application(load_settings(home=tmp_path / "none"), RayOptions(open=True))._bound_deployment
    assert api.init_args[1] is False
    deployments = [api, *(bound._bound_deployment for bound in api.init_args[3:])]
    assert [one.name for one in deployments] == ["api", "model"]
    for one in deployments:
        assert 0 < one.max_queued_requests <= 64
        assert 0 < one.max_ongoing_requests <= 64
        assert 0 < one._deployment_config.graceful_shutdown_timeout_s <= 60
