"""Runs the application on uvicorn: slow callers bounded, SIGTERM drained, open to others only when asked for."""

import asyncio
import ipaddress
import logging
import socket
from dataclasses import replace
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from threadpoolctl import ThreadpoolController
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import RouterError
from ..prices import PriceTable
from ..settings import Settings
from .app import create_app
from .errors import ApiError
from .keys import list_keys, share_keys
from .options import ServiceOptions
from .state import Service


class NotOpen(RouterError):
    """The address is taken, or can be reached by others with no API key to guard it."""


def serve(router: Any, settings: Settings, *, options: ServiceOptions | None = None, open_access: bool = False) -> None:
    """Serves until SIGTERM or SIGINT on the settings' host and port.

    Keys made by `shoal keys create` are asked for when there are any. Raises `NotOpen` when there are none, the host is
    not loopback, and `open_access` does not allow that.
    """
    options = options or options_of(settings)
    check_open(settings.host, options, open_access=open_access)
    check_free(settings.host, settings.port)
    # requests are the parallelism here: numpy's small products on several threads cost each answer three times the CPU
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    server(create_app(router, options), options, host=settings.host, port=settings.port).run()


def options_of(settings: Settings, *, host: str | None = None) -> ServiceOptions:
    """What the settings say of the service, with the keys that others share. Raises `BadOptions` and `BadPrices`.

    Where Redis does not tell whether there are keys, there are, unless `host`, which is listened on, is this one alone.
    """
    told = share_keys(settings.key_path, settings.redis_url)
    keyed = bool(list_keys(settings.key_path)) or not (told or _loopback(host or settings.host))
    return replace(
        ServiceOptions.of(settings.service),
        redis_url=settings.redis_url,
        keys_path=settings.key_path if keyed else None,
        ledger_path=settings.ledger_path,
        prices=PriceTable.of(settings.prices),
    )


def check_free(host: str, port: int) -> None:
    """Raises `NotOpen` when another program listens there, before anything is loaded or promised."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            raise NotOpen(f"{host}:{port} cannot be listened on ({error.strerror}); choose another --port") from None


def check_open(host: str, options: ServiceOptions, *, open_access: bool) -> None:
    if options.keys_path is None and not open_access and not _loopback(host):
        raise NotOpen(
            f"{host} can be reached by others and there are no API keys: make one with `shoal keys create NAME`, "
            "listen on 127.0.0.1, or allow it with --open"
        )


def server(app: FastAPI, options: ServiceOptions, *, host: str, port: int) -> "Server":
    """A uvicorn server for the application; `.run()` blocks."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_protocol(options),
        ws="none",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=int(options.drain_s) + 5,
    )
    return Server(config, app.state.service, options.drain_s)


class Server(uvicorn.Server):
    """On a signal: not ready, nothing new admitted; after `drain_s` whatever still runs is ended with an error."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_s: float) -> None:
        super().__init__(config)
        self._service, self._drain_s = service, drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # drained and done is exit code 0

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.drain()
        timer = asyncio.get_running_loop().call_later(self._drain_s, self._service.abort)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def _protocol(options: ServiceOptions) -> type[H11Protocol]:
    """uvicorn's HTTP/1.1 with a bound on connections and on the time a request's head may take."""

    class Bounded(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > options.max_connections:
                transport.write(_raw(ApiError(503, "Too many connections.", code="overloaded", retry_after=1)))
                transport.close()
            else:
                self._timer = self.loop.call_later(options.head_s, self._too_slow)

        def data_received(self, data: bytes) -> None:
            seen = self.cycle
            super().data_received(data)
            if self.cycle is not seen:
                self._stop_timer()
            elif self._timer is None and (self.cycle is None or self.cycle.response_complete):
                self._timer = self.loop.call_later(options.head_s, self._too_slow)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            self.transport.write(_raw(ApiError(400, "This is not an HTTP request.")))
            self.transport.close()

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_slow(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.write(_raw(ApiError(408, "The request's head took too long to arrive.")))
                self.transport.close()

    return Bounded


def _raw(error: ApiError) -> bytes:
    """An error as a whole HTTP/1.1 response, for where no request could be read."""
    response = error.response()
    body = bytes(response.body)
    head = [f"HTTP/1.1 {error.status_code} Error", "Connection: close"]
    head += [f"{name}: {value}" for name, value in response.headers.items()]
    return "\r\n".join([*head, "", ""]).encode() + body


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
