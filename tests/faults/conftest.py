"""A proxy in front of a server that can be slow or cut replies in half."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest


class Proxy:
    """Forwards to `port`; `delay_s` holds replies back, `cut_after` bytes of a reply the connection is reset."""

    def __init__(self, port: int) -> None:
        self._target, self.delay_s, self.cut_after = port, 0.0, -1
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._sockets += [client, server]
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, reply: bool) -> None:
        try:
            while data := source.recv(65536):
                if reply and self.delay_s:
                    time.sleep(self.delay_s)
                if reply and 0 <= self.cut_after < len(data):
                    sink.sendall(data[: self.cut_after])
                    sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    break
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    def close(self) -> None:
        self._server.close()
        for one in self._sockets:
            one.close()


@pytest.fixture
def proxy(redis_server) -> Iterator[Proxy]:  # type: ignore[no-untyped-def]
    made = Proxy(redis_server.port)
    yield made
    made.close()
