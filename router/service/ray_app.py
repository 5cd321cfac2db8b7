"""The same application on Ray Serve (S7): many light replicas of the API, few of the model, each scaled by itself.

`serve run shoal.router.service.ray_app:build`, the same `import_path` in a config for `serve deploy`, or `shoal serve
--ray`. Ray places, restarts and scales processes; nothing here schedules. What Serve leaves unbounded (requests under
way, requests waiting, time of a request, time to shut down) is bounded, and the application's own admission lies below
Ray's limits, so that a full server answers in the API's own words.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors import MissingExtra, RouterError
from ..settings import Settings, load_settings
from .options import ServiceOptions
from .ray_model import Facts, Pool, RayModel, Replica
from .server import check_open, options_of

try:
    from ray import serve
except ImportError as error:
    raise MissingExtra("Ray Serve", "ray") from error

_SPARE = 8  # requests that a replica of the API takes beyond its own limits, to refuse them in its own words


class Scale(BaseModel):
    """Replicas of one deployment: `least` to `most`, aiming at `target` requests under way in each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    least: int = Field(default=1, ge=1)
    most: int = Field(default=1, ge=1)
    target: float = Field(default=4.0, gt=0)
    cpus: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least is {self.least} and most is {self.most}; give most=least for a fixed number")
        return self

    def options(self) -> dict[str, Any]:
        """As Serve takes it."""
        size: dict[str, Any] = {"num_replicas": self.least}
        if self.most > self.least:
            scaling = {"min_replicas": self.least, "max_replicas": self.most, "target_ongoing_requests": self.target}
            size = {"autoscaling_config": scaling}
        return {**size, "ray_actor_options": {"num_cpus": self.cpus}}


class RayOptions(BaseModel):
    """Arguments of `build`, or the table `ray` of `shoal.toml`. All other settings come from `SHOAL_*` and `shoal.toml`
    where `build` runs.

    `shallow`: a pool of model replicas of its own for budgets of up to `shallow_below` layers. `at_once`: requests that
    a model replica works on together; `waiting`: those that may wait for one. `open`: callers need no key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    api: Scale = Scale(cpus=0.5)
    model: Scale = Scale()
    shallow: Scale | None = None
    shallow_below: float | None = Field(default=None, gt=0)
    at_once: int = Field(default=16, ge=1)
    waiting: int = Field(default=64, ge=1)
    open: bool = False


def build(args: Mapping[str, Any] | RayOptions | None = None) -> serve.Application:
    """The application for `serve run`. Raises RouterError where several replicas have no Redis to share."""
    settings = load_settings()
    return application(settings, args if isinstance(args, RayOptions) else options_for(settings, args or {}))


def options_for(settings: Settings, args: Mapping[str, Any]) -> RayOptions:
    """The settings' own table with `args` over it. Raises RouterError naming what is wrong."""
    try:
        return RayOptions.model_validate({**settings.ray, **args})
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise RouterError(f"ray: {wrong}") from None


def application(settings: Settings, options: RayOptions, *, host: str = "0.0.0.0") -> serve.Application:
    """The deployments of these settings, bound to each other. `host`: where Ray listens, all addresses if not known.

    Raises RouterError, NotOpen.
    """
    if settings.redis_url is None and (options.api.least > 1 or options.api.most > 1):
        raise RouterError(
            "several replicas of the API need one Redis to share answers and limits: set SHOAL_REDIS_URL, or api.most=1"
        )
    if (options.shallow is None) != (options.shallow_below is None):
        raise RouterError("a pool for shallow requests needs both: shallow (its size) and shallow_below (in layers)")
    service = options_of(settings, host=host)
    check_open(host, service, open_access=options.open)
    told = settings.model_dump(mode="json")
    pools: list[tuple[float, serve.Application]] = []
    if not settings.router_only:
        scales = {"model": (options.model, float("inf"))}
        if options.shallow is not None and options.shallow_below is not None:
            scales["shallow"] = (options.shallow, options.shallow_below)
        pools = [(deepest, _replica(name, scale, options, service).bind(told, options.at_once))
                 for name, (scale, deepest) in scales.items()]  # fmt: skip
    limit = service.concurrent + service.queue + _SPARE
    api = _deployed(
        serve.ingress()(Api),
        name="api",
        max_ongoing_requests=limit,
        max_queued_requests=limit,
        graceful_shutdown_timeout_s=service.drain_s,
        **options.api.options(),
    )
    bound_api: serve.Application = api.bind(
        told, service.keys_path is not None, [deepest for deepest, _ in pools], *(bound for _, bound in pools)
    )
    return bound_api


def _replica(name: str, scale: Scale, options: RayOptions, service: ServiceOptions) -> Any:
    """A pool of the model. Its queue is what Ray holds for it; beyond that a request is told that all are busy."""
    return _deployed(
        Replica,
        name=name,
        max_ongoing_requests=options.at_once,
        max_queued_requests=options.waiting,
        graceful_shutdown_timeout_s=service.drain_s,
        health_check_timeout_s=service.between_s,
        **scale.options(),
    )


def _deployed(one: type, **options: Any) -> Any:
    deployment: Any = serve.deployment(one)  # Ray's annotations make it a decorator only
    return deployment.options(**options)


class Api:
    """One replica of the API: the ASGI application over a router whose model is elsewhere."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: dict[str, Any], keyed: bool, deepest: list[float], *handles: Any
    ) -> None:
        self._settings, self._keyed = Settings(**settings), keyed
        pools = [Pool(deepest=most, handle=handle) for most, handle in zip(deepest, handles, strict=True)]
        facts: Facts | None = await handles[0].facts.remote() if handles else None
        self._model = RayModel(facts, pools) if facts is not None else None

    def __serve_build_asgi_app__(self) -> Any:
        from ..wiring import build_router
        from .app import create_app

        router, options = build_router(self._settings, model=self._model), options_of(self._settings)
        if self._keyed:  # also where this machine has not heard of any yet: then nobody is let in
            options = replace(options, keys_path=self._settings.key_path)
        return create_app(router, options)


def run(settings: Settings, options: RayOptions) -> None:
    """Serves on the settings' host and port until SIGTERM or Ctrl-C. Raises RouterError, NotOpen."""
    app = application(settings, options, host=settings.host)
    longest = ServiceOptions.of(settings.service).total_s + _SPARE
    http = {"host": settings.host, "port": settings.port, "request_timeout_s": longest}
    serve.start(http_options=http, proxy_location="HeadOnly")
    try:
        serve.run(app, name="shoal", blocking=True)
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
