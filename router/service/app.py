"""Puts the service together: one router, one set of options, one ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from ... import __version__
from ..accounting import Ledger
from ..telemetry import Telemetry
from . import chat, console, decisions, errors, knowledge, ops, traces, usage
from .admission import Admission
from .edge import OPEN_PATHS, Edge
from .keys import KeyRing
from .openapi import refusals, secured
from .options import ServiceOptions
from .regating import Regating
from .shared_limits import SharedLimits
from .state import Service


def create_app(router: Any, options: ServiceOptions | None = None) -> FastAPI:
    """The ASGI application over a `CognitiveRouter`, whose model is loaded now if it was not yet.

    `app.state.service` is the running state: `drain()` and `abort()` are what a server calls when it stops.
    """
    options = options or ServiceOptions()
    service = _service(router, options)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        beats = [asyncio.create_task(every) for every in (service.beat(), service.regating.watch())]
        yield
        service.drain()
        service.abort()
        await asyncio.to_thread(service.pool.shutdown, cancel_futures=True)
        for beat in beats:
            beat.cancel()
        await asyncio.gather(*beats, return_exceptions=True)
        service.regating.close()
        if service.shared is not None:
            service.shared.close()
        if service.ledger is not None:
            service.ledger.close()

    app = FastAPI(
        title="Shoal",
        version=__version__,
        summary="OpenAI-compatible answers with as little thinking as they need",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would be built from the Host header
        responses=refusals(),
        telemetry={"tracing": False, "metrics": False, "logs": False},  # it would record what callers send
    )
    app.state.service = service
    errors.install(app)
    parts = [part.routes(service) for part in (chat, decisions, knowledge, usage, traces, console, ops)]
    for part in parts:
        app.include_router(part)
    service.telemetry.endpoints = frozenset(route.path for part in parts for route in part.routes)
    if not service.keys.open:
        secured(app, OPEN_PATHS)
    app.add_middleware(
        Edge, keys=service.keys, admission=service.admission, telemetry=service.telemetry, options=options
    )
    return app


def _service(router: Any, options: ServiceOptions) -> Service:
    llm, total = router.llm, int(router.total)
    shared = SharedLimits(options.redis_url) if options.redis_url is not None else None
    telemetry = Telemetry(
        total=total, min_depth=float(llm.min_depth) if llm is not None else 0.0, span_text=options.span_text
    )
    store = getattr(getattr(router, "recorder", None), "store", None)
    return Service(
        router=router,
        options=options,
        keys=KeyRing(options.keys_path),
        admission=Admission(concurrent=options.concurrent, queue=options.queue, wait_s=options.queue_s, shared=shared),
        telemetry=telemetry,
        pool=ThreadPoolExecutor(options.concurrent, thread_name_prefix="shoal-work"),
        model=str(router.model_name),
        llm=llm,
        total=total,
        ledger=_ledger(options),
        regating=Regating(llm, None if store is None else store.path, telemetry, after=options.gates_after),
        shared=shared,
    )


def _ledger(options: ServiceOptions) -> Ledger | None:
    if options.ledger_path is None:
        return None
    options.ledger_path.parent.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(options.ledger_path)
    ledger.recover()
    return ledger
