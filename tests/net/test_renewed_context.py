"""Certificates renewed while the broker runs: who connects later sees them, who is connected notices nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka.admin import AdminClient

from broker.errors import ConfigError
from broker.net.tls import RenewedContext
from broker.security.stores import StoreSettings
from tests.support.broker_process import BrokerProcess
from tests.support.listening import answer_with, read_frame, request, serving
from tests.support.waiting import eventually


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    return made


def issue(authority: trustme.CA, store: Path, name: str) -> None:
    """Put a new key and certificate in the place of those before, at once, as certbot and Kubernetes do."""
    new = store.with_suffix(".new")
    new.unlink(missing_ok=True)
    authority.issue_cert("localhost", "127.0.0.1", common_name=name).private_key_and_cert_chain_pem.write_to_path(new)
    new.replace(store)


def name_seen(port: int, ca: Path) -> str:
    """The common name of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return common_name(secured.getpeercert() or {})


def common_name(certificate: Mapping[str, Any]) -> str:
    return next(str(value) for part in certificate["subject"] for key, value in part if key == "commonName")


async def test_who_connects_later_sees_the_new_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    store, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    issue(authority, store, "first")
    settings: dict[str, Any] = {"listeners": ("SSL://127.0.0.1:0",), "ssl_keystore_location": str(store)}
    async with serving(lambda *_: answer_with("x"), **settings) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port, ssl=ssl.create_default_context(cafile=str(ca)))
        assert await asyncio.to_thread(name_seen, port, ca) == "first"
        issue(authority, store, "second")
        listeners.renew_certificates()
        assert await asyncio.to_thread(name_seen, port, ca) == "second"
        writer.write(request(1))
        assert await read_frame(reader), "the connection from before goes on"
        writer.close()
        await writer.wait_closed()


async def test_a_client_of_a_new_authority_is_let_in(authority: trustme.CA, tmp_path: Path) -> None:
    store, trust, ca = tmp_path / "server.pem", tmp_path / "trust.pem", tmp_path / "ca.pem"
    issue(authority, store, "server")
    shutil.copy(ca, trust)
    newcomers = trustme.CA()
    own = tmp_path / "client.pem"
    newcomers.issue_cert("ann@example.org", common_name="ann").private_key_and_cert_chain_pem.write_to_path(own)
    settings: dict[str, Any] = {
        "listeners": ("SSL://127.0.0.1:0",),
        "ssl_keystore_location": str(store),
        "ssl_truststore_location": str(trust),
        "ssl_client_auth": "required",
    }
    async with serving(lambda _, client: answer_with(client.principal), **settings) as (host, port, listeners):

        async def is_let_in() -> bool:
            context = ssl.create_default_context(cafile=str(ca))
            context.load_cert_chain(own)
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(request(1))
                return b"User:CN=ann" in await read_frame(reader)
            except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
                return False
            finally:
                writer.transport.abort()

        assert not await is_let_in()
        with trust.open("ab") as file:
            file.write(newcomers.cert_pem.bytes())
        listeners.renew_certificates()
        assert await is_let_in()


def test_files_that_cannot_be_used_are_told_once_and_change_nothing(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "server.pem"
    issue(authority, store, "good")

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(store)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{store}: {error}") from error
        return context

    renewed = RenewedContext("listener SSL", StoreSettings(ssl_keystore_location=str(store)), make)
    first = renewed.context
    assert not renewed.renew()
    whole = store.read_bytes()
    store.write_bytes(whole[: len(whole) // 2])
    assert [renewed.renew() for _ in range(3)] == [False] * 3
    store.unlink()
    assert not renewed.renew()
    assert renewed.context is first
    assert [text.count("listener SSL: the changed certificates cannot be used") for text in caplog.messages] == [1, 1]
    issue(authority, store, "better")
    assert renewed.renew()
    assert renewed.context is not first
    assert not renewed.renew()


def test_a_touched_file_of_the_same_size_is_read_again(authority: trustme.CA, tmp_path: Path) -> None:
    store = tmp_path / "server.pem"
    issue(authority, store, "one")
    made: list[ssl.SSLContext] = []

    def make() -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        return made[-1]

    renewed = RenewedContext("x", StoreSettings(ssl_keystore_location=str(store)), make)
    os.utime(store, ns=(1, 1))
    assert renewed.renew()
    assert len(made) == 2


def test_a_running_broker_and_a_client_of_another_make(
    authority: trustme.CA, broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    store, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    issue(authority, store, "first")
    broker = broker_factory(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            "ssl.keystore.location": str(store),
            "log.flush.scheduler.interval.ms": "100",
        }
    )
    port = int(broker.listeners["SSL"].rpartition(":")[2])
    assert name_seen(port, ca) == "first"
    issue(authority, store, "second")
    eventually(lambda: name_seen(port, ca) == "second")
    settings = {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "SSL", "ssl.ca.location": str(ca)}
    assert AdminClient({**settings, "log_level": 0}).list_topics(timeout=30).brokers
