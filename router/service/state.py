"""What every route of a running service shares: the router, limits, keys, metrics, and the way work is done."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request as HttpRequest

from ..accounting import BEAT_S, Balance, Ledger
from ..decision import Answer, Request
from ..errors import Refused, RouterError
from ..telemetry import Telemetry
from .admission import Admission
from .errors import ApiError
from .keys import ApiKey, KeyRing, sync_keys
from .metering import Meter
from .options import ServiceOptions
from .regating import Regating
from .running import Run, unless_gone
from .shared_limits import SharedLimits

T = TypeVar("T")
log = logging.getLogger("shoal.service")


@dataclass(slots=True, kw_only=True)
class Service:
    """Lives as long as the application. `runs` are the answers under way."""

    router: Any
    options: ServiceOptions
    keys: KeyRing
    admission: Admission
    telemetry: Telemetry
    pool: ThreadPoolExecutor
    model: str
    llm: Any
    total: int
    ledger: Ledger | None
    regating: Regating
    shared: SharedLimits | None = None
    runs: set[Run] = field(default_factory=set)

    @property
    def names(self) -> tuple[str, ...]:
        """Model names requests may use, the served one first."""
        return tuple(dict.fromkeys((self.model, *self.options.aliases)))

    def check_model(self, name: str) -> None:
        if name not in self.names:
            message = f"There is no such model here. GET /v1/models lists them; this server's is {self.model}."
            raise ApiError(404, message, code="model_not_found", param="model")

    def measure(self) -> None:
        """Brings the gauges up to date, when someone is about to read them."""
        self.telemetry.load(self.admission.in_flight, self.admission.queued)
        if (scheduler := getattr(self.llm, "scheduler", None)) is not None:
            self.telemetry.engine(scheduler.kv_bytes, self.llm.prefix.bytes_held, scheduler.open)
        here = hasattr(self.llm, "get_layer_health") and not getattr(self.llm, "elsewhere", False)
        layers = self.llm.get_layer_health()["layers"] if here else {}
        cache = self.router.cache
        self.telemetry.health(layers, breaker=cache.stats()["redis"] if cache is not None else None)

    async def beat(self) -> None:
        """Renews what requests under way hold of limits, and learns of keys, until it is cancelled."""
        while True:
            await asyncio.to_thread(self._beat)
            await asyncio.sleep(BEAT_S)

    def _beat(self) -> None:
        try:
            if self.shared is not None:
                self.shared.renew()
                if self.options.keys_path is not None:
                    sync_keys(self.options.keys_path, self.shared.link, namespace=self.shared.namespace)
            if self.ledger is not None:
                self.ledger.renew()
        except (OSError, RouterError, sqlite3.Error) as error:  # the next beat tries again
            log.error("limits could not be renewed: %s", type(error).__name__)

    def balance(self, key: ApiKey) -> Balance | None:
        """What is left of a prepaid key: over all processes, where they share a Redis that answers."""
        own = self.ledger.balance(key.id) if self.ledger is not None and key.quota else None
        if own is None or self.ledger is None or self.shared is None:
            return own
        return self.shared.balance(key.id, granted=own.granted, ledger=self.ledger.id, spent=own.spent) or own

    def drain(self) -> None:
        """Takes nothing new; what is being worked on goes on."""
        self.admission.close()

    def abort(self) -> None:
        """Ends every answer under way with an error its caller sees."""
        for run in list(self.runs):
            run.stop(ApiError(503, "The server is shutting down.", code="shutting_down"))

    async def start(self, request: Request, key: ApiKey, *, whole: bool) -> Run:
        """The request admitted and begun; its slot comes back when the work has ended."""
        slot = await self.admission.enter(key)
        self.telemetry.waited(slot.waited_s)
        run = Run(
            self.router,
            request,
            self.options,
            whole=whole,
            ended=self._ended,
            span=lambda: self.telemetry.span(self.model, request),
            meter=self._meter(request, key),
        )
        run.start(self.pool, slot)
        self.runs.add(run)
        return run

    async def work(self, http: HttpRequest, job: Callable[[], T]) -> T:
        """A blocking job (a search, an embedding, a decision) under the same admission as answers."""

        async def admitted() -> T:
            slot = await self.admission.enter(key_of(http))
            done = asyncio.get_running_loop().run_in_executor(self.pool, job)
            done.add_done_callback(lambda _: slot.release())
            return await asyncio.shield(done)

        try:
            async with asyncio.timeout(self.options.total_s):
                result = await unless_gone(http.receive, admitted())
        except TimeoutError:
            raise ApiError(504, f"This took longer than {self.options.total_s:g} s.") from None
        return result  # type: ignore[return-value]

    def _meter(self, request: Request, key: ApiKey) -> Meter | None:
        if self.ledger is None:
            return None
        return Meter(
            self.ledger, key, request, total=self.total, max_tokens=self.options.max_tokens, shared=self.shared
        )

    def _ended(self, run: Run, answer: Answer | None) -> None:
        self.runs.discard(run)
        if isinstance(run.error, Refused):
            self.telemetry.refused(run.error.code)
        if answer is not None and run.first_s is not None:
            self.telemetry.answer(answer, first_s=run.first_s, total_s=run.total_s)


def key_of(http: HttpRequest) -> ApiKey:
    key: ApiKey = http.state.key
    return key


def admin_only(http: HttpRequest) -> None:
    if not key_of(http).admin:
        raise ApiError(403, "This needs a key made with --admin.")
