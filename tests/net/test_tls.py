"""TLS listeners over real sockets: what goes through, what does not get in, and what a slow or silent peer costs."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.metrics import Metrics
from broker.net import tls
from broker.net.listener import ListenerSet
from broker.net.router import Client
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_response, encode_request
from tests.support.listening import answer_with, closed_by_peer, read_frame, request, serving
from tests.support.secured import Certificates


class Slice(NamedTuple):
    """A file range, as the log hands out."""

    file: Any
    position: int
    length: int


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def tls_settings(certificates: Certificates, **settings: Any) -> dict[str, Any]:
    return {
        "listeners": ("SSL://127.0.0.1:0",),
        "ssl_keystore_location": str(certificates.server),
        "ssl_truststore_location": str(certificates.ca),
        **settings,
    }


def client_context(certificates: Certificates, *, own: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    if own is not None:
        context.load_cert_chain(own)
    return context


def body(frame: bytes) -> Any:
    return decode_response(ApiKey.METADATA, 4, frame)[1]


def echo(request: Request, client: Client) -> Any:
    return answer_with(f"{client.listener} {client.principal}")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [1, 20_000, 3_000_000])
async def test_requests_and_answers_of_any_size_pass(
    certificates: Certificates, tmp_path: Path, version: ssl.TLSVersion, size: int
) -> None:
    """The answer is bytes and ranges of files, larger than what is encrypted at a time."""
    content = bytes(index * 7 % 251 for index in range(size))
    (tmp_path / "segment").write_bytes(b"skip" + content)
    lengths = []
    with (tmp_path / "segment").open("rb", buffering=0) as file:

        def handle(request: Request, client: Client) -> Any:
            lengths.append(sum(len(topic.name) for topic in request.body.topics))
            head = struct.pack(">ii", 4 + 2 * size + 3, request.correlation_id)
            return [head, Slice(file, 4, size), b"end", Slice(file, 4, size)]

        async with serving(handle, **tls_settings(certificates)) as (host, port, _):
            context = client_context(certificates)
            context.minimum_version = context.maximum_version = version
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            for number in range(3):
                writer.write(large_request(number, size))
                assert await read_frame(reader) == struct.pack(">i", number) + content + b"end" + content
            writer.close()
            await writer.wait_closed()
    assert lengths == [size] * 3


def large_request(number: int, size: int) -> bytes:
    """A Metadata request whose topic names have `size` bytes together."""
    names = ["x" * 30_000] * (size // 30_000) + ["y" * (size % 30_000)] * bool(size % 30_000)
    return encode_request(ApiKey.METADATA, 4, number, "t", {"topics": [{"name": name} for name in names]})


async def test_the_certificate_names_the_client(certificates: Certificates) -> None:
    metrics = Metrics()
    async with serving(echo, metrics, **tls_settings(certificates, ssl_client_auth="requested")) as (host, port, _):
        names = []
        for own in (None, certificates.client):
            reader, writer = await asyncio.open_connection(host, port, ssl=client_context(certificates, own=own))
            writer.write(request(1))
            names.append(body(await read_frame(reader)).cluster_id)
            writer.close()
            await writer.wait_closed()
    assert names[0] == "SSL User:ANONYMOUS"
    assert names[1].startswith("SSL User:CN=carol,OU=")
    assert metrics.listeners["SSL"].successful_authentications == 1


async def test_rules_say_what_a_client_is_called(certificates: Certificates) -> None:
    """And one to whom none applies is not let in (KIP-371)."""
    metrics, context = Metrics(), client_context(certificates, own=certificates.client)
    settings = tls_settings(certificates, ssl_client_auth="required")
    rules = {r"ssl_principal_mapping_rules": r"RULE:^CN=(.*?),OU=.*$/$1@mapped/U,DEFAULT"}
    async with serving(echo, metrics, **settings, **rules) as (host, port, _):
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.write(request(1))
        assert body(await read_frame(reader)).cluster_id == "SSL User:CAROL@MAPPED"
        writer.close()
        await writer.wait_closed()
    rules = {"ssl_principal_mapping_rules": "RULE:^UID=(.*)$/$1/"}
    async with serving(echo, metrics, **settings, **rules) as (host, port, _):
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        assert await closed_by_peer(reader)
        writer.close()
    counts = metrics.listeners["SSL"]
    assert (counts.successful_authentications, counts.failed_authentications) == (1, 1)


class TestNotLetIn:
    """Each closes its own connection only, with the reason in the log and in the metrics."""

    @pytest.mark.parametrize(
        ("own", "alert"), [(None, "certificate required"), ("stranger", "unknown ca")], ids=["none", "stranger"]
    )
    async def test_a_client_without_a_certificate_we_trust(
        self, certificates: Certificates, caplog: pytest.LogCaptureFixture, own: str | None, alert: str
    ) -> None:
        metrics = Metrics()
        settings = tls_settings(certificates, ssl_client_auth="required")
        async with serving(echo, metrics, **settings) as (host, port, listeners):
            context = client_context(certificates, own=getattr(certificates, own) if own else None)
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            with pytest.raises(ssl.SSLError, match=alert):
                await reader.read(1)
            writer.close()
            await until_gone(listeners)
        assert metrics.listeners["SSL"].closed["tls"] == 1
        assert "no TLS handshake" in caplog.text

    @pytest.mark.parametrize(
        "garbage",
        [request(1), b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"\x16\x03\x01\x40\x00" + bytes(0x4000), b"\x16"],
    )
    async def test_bytes_that_are_no_tls(self, certificates: Certificates, garbage: bytes) -> None:
        async with serving(echo, **tls_settings(certificates)) as (host, port, listeners):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(garbage)
            if len(garbage) > 1:
                assert (await asyncio.wait_for(reader.read(100), 60))[:1] in (b"\x15", b"")
            writer.close()
            await until_gone(listeners)
            await assert_serves(certificates, host, port)

    async def test_a_client_that_speaks_only_old_versions(self, certificates: Certificates) -> None:
        settings = tls_settings(certificates, ssl_enabled_protocols=("TLSv1.3",))
        async with serving(echo, **settings) as (host, port, _):
            context = client_context(certificates)
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(host, port, ssl=context)


async def test_half_a_handshake_counts_as_a_connection_and_is_closed_in_time(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_TIMEOUT_S", 2.0)
    async with serving(echo, **tls_settings(certificates, max_connections_per_ip=20)) as (host, port, listeners):
        silent = [await asyncio.open_connection(host, port) for _ in range(20)]
        for _, writer in silent[:10]:
            writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the beginning of a ClientHello
        while listeners.connection_count < 20:
            await asyncio.sleep(0.005)
        late_reader, late = await asyncio.open_connection(host, port)
        assert await closed_by_peer(late_reader), "they hold their places"
        for reader, writer in silent:
            assert await closed_by_peer(reader)
            writer.close()
        late.close()
        await until_gone(listeners)
        await assert_serves(certificates, host, port)


async def test_a_reader_that_takes_nothing_costs_little_memory(certificates: Certificates, tmp_path: Path) -> None:
    """Twenty of them ask for 50 MB each."""
    (tmp_path / "segment").write_bytes(bytes(50_000_000))
    with (tmp_path / "segment").open("rb", buffering=0) as file:

        def handle(request: Request, client: Client) -> Any:
            return [struct.pack(">ii", 4 + 50_000_000, request.correlation_id), Slice(file, 0, 50_000_000)]

        async with serving(handle, **tls_settings(certificates)) as (host, port, listeners):
            await assert_serves(certificates, host, port, size=50_000_008)
            gc.collect()
            tracemalloc.start()
            socks = [await asyncio.to_thread(connect_and_ask, certificates, host, port) for _ in range(20)]
            while sum(connection._writer.paused for connection in listeners._connections) < 20:
                await asyncio.sleep(0.005)
            grown, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert grown < 20 * 400_000
            taken = await asyncio.to_thread(take, socks[0], 50_000_008)
            assert taken == 50_000_008, "and who begins to read gets all"
            for sock in socks:
                sock.close()
            await until_gone(listeners)


def connect_and_ask(certificates: Certificates, host: str, port: int) -> ssl.SSLSocket:
    sock = client_context(certificates).wrap_socket(socket.create_connection((host, port)), server_hostname="localhost")
    sock.sendall(request(1))
    return sock


def take(sock: ssl.SSLSocket, size: int) -> int:
    buffer, taken = bytearray(65536), 0
    while taken < size and (count := sock.recv_into(buffer)):
        taken += count
    return taken


async def test_a_connection_lost_in_the_middle_of_a_response_ends_quietly(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "segment").write_bytes(bytes(20_000_000))
    with (tmp_path / "segment").open("rb", buffering=0) as file:

        def handle(request: Request, client: Client) -> Any:
            return [bytes(5_000_000), Slice(file, 0, 20_000_000)]

        async with serving(handle, **tls_settings(certificates)) as (host, port, listeners):
            for _ in range(3):
                sock = await asyncio.to_thread(connect_and_ask, certificates, host, port)
                while not any(connection._writer.sending for connection in listeners._connections):
                    await asyncio.sleep(0.002)
                sock.close()
                await until_gone(listeners)
    assert caplog.text == ""


async def test_pipelined_requests_are_answered_in_order(certificates: Certificates) -> None:
    """More than are queued: reading is paused and goes on."""

    def handle(request: Request, client: Client) -> Any:
        async def slow() -> Any:
            await asyncio.sleep(0.01)
            return answer_with("slow")

        return slow() if request.correlation_id % 7 == 0 else answer_with("fast")

    async with serving(handle, **tls_settings(certificates)) as (host, port, _):
        reader, writer = await asyncio.open_connection(host, port, ssl=client_context(certificates))
        writer.write(b"".join(request(number) for number in range(200)))
        frames = [await asyncio.wait_for(read_frame(reader), 60) for _ in range(200)]
        assert [struct.unpack_from(">i", frame)[0] for frame in frames] == list(range(200))
        writer.close()
        await writer.wait_closed()


async def until_gone(listeners: ListenerSet) -> None:
    deadline = time.monotonic() + 60
    while listeners.connection_count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def assert_serves(certificates: Certificates, host: str, port: int, size: int | None = None) -> None:
    reader, writer = await asyncio.open_connection(host, port, ssl=client_context(certificates))
    writer.write(request(1))
    if size is None:
        await asyncio.wait_for(read_frame(reader), 60)
    else:
        await asyncio.wait_for(reader.readexactly(size), 60)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"ssl_keystore_location": None}, r"listener SSL speaks TLS and has no key: set ssl\.keystore\.location"),
        ({"ssl_keystore_location": "/no/such"}, r"ssl\.keystore\.location=/no/such: No such file"),
        ({"ssl_client_auth": "required", "ssl_truststore_location": None}, r"required needs ssl\.truststore\.location"),
        ({"ssl_cipher_suites": ("ROT13",)}, r"ssl\.cipher\.suites=ROT13: OpenSSL knows none of them"),
    ],
)
def test_a_listener_that_cannot_speak_tls_is_refused(
    certificates: Certificates, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ListenerSet(BrokerConfig(**tls_settings(certificates, **settings))).bind()


def test_a_principal_is_written_as_java_does() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "Big, Inc."),),
        (("commonName", "#carol"), ("userId", "c")),
    )
    assert tls.distinguished_name({"subject": subject}) == r"CN=\#carol+UID=c,O=Big\, Inc.,C=DE"
    assert tls.distinguished_name({}) is None
