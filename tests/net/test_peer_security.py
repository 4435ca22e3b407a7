"""A broker that connects to another one through each kind of listener, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from broker.config.broker_config import BrokerConfig
from broker.errors import AuthenticationFailed, PykafkaError
from broker.net.peer_connection import PeerConnection
from broker.net.peer_security import PeerSecurity
from broker.protocol.api_keys import ApiKey
from broker.security.login import PasswordLogin
from broker.security.plain import PlainLogin
from tests.support.secured import (
    PLAIN_PASSWORD,
    PLAIN_USER,
    SCRAM_PASSWORD,
    SCRAM_USER,
    WAYS,
    Certificates,
    SecuredBroker,
    secured_settings,
)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[SecuredBroker]:
    directory = tmp_path_factory.mktemp("peer-security")
    settings = {"connections.max.reauth.ms": "2000"}
    with SecuredBroker(
        directory / "data", Certificates.make(directory), f"{zookeeper}/peer-security", settings
    ) as process:
        yield process
    assert "Traceback" not in process.output


def security_of(secured: SecuredBroker, listener: str, mechanism: str | None = None, **changed: str) -> PeerSecurity:
    settings = {
        **secured_settings(secured.certificates),
        "inter.broker.listener.name": listener,
        "super.users": "User:CN=broker",
        **{key.replace("_", "."): value for key, value in changed.items()},
    }
    if mechanism is not None:
        plain = mechanism == "PLAIN"
        user, password = (PLAIN_USER, PLAIN_PASSWORD) if plain else (SCRAM_USER, SCRAM_PASSWORD)
        key = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
        settings["sasl.mechanism.inter.broker.protocol"] = mechanism
        settings[key] = (
            f'a.{"Plain" if plain else "Scram"}LoginModule required username="{user}" password="{password}" '
            f'user_{PLAIN_USER}="{PLAIN_PASSWORD}";'
        )
    return PeerSecurity.of(BrokerConfig.load(None, settings))


def ask(secured: SecuredBroker, security: PeerSecurity, *, host: str = "127.0.0.1", times: int = 1) -> set[int]:
    """The ids of the brokers that it knows, asked on one connection."""

    async def main() -> set[int]:
        port = int(secured.listeners[security.listener].rpartition(":")[2])
        peer = PeerConnection(host, port, client_id="test", security=security)
        try:
            for time in range(times):
                if time:
                    await asyncio.sleep(1.2)  # twice that is longer than a login lasts
                answer = await peer.request(ApiKey.METADATA, 12, {"topics": []})
            return {int(one.node_id) for one in answer.brokers}
        finally:
            peer.close()

    return asyncio.run(main())


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_a_broker_connects_through_any_listener(secured: SecuredBroker, listener: str, mechanism: str | None) -> None:
    assert ask(secured, security_of(secured, listener, mechanism)) == {0}


def test_a_login_that_expires_is_renewed(secured: SecuredBroker) -> None:
    assert ask(secured, security_of(secured, "SASL_SSL", "SCRAM-SHA-256"), times=3) == {0}


def error_of(secured: SecuredBroker, security: PeerSecurity, host: str = "127.0.0.1") -> PykafkaError:
    with pytest.raises(PykafkaError) as caught:
        ask(secured, security, host=host)
    assert PLAIN_PASSWORD not in str(caught.value)
    assert SCRAM_PASSWORD not in str(caught.value)
    return caught.value


def test_what_it_says_tells_what_to_set(secured: SecuredBroker) -> None:
    right = security_of(secured, "SASL_SSL", "SCRAM-SHA-512")
    assert isinstance(right.login, PasswordLogin)
    wrong = dataclasses.replace(right, login=dataclasses.replace(right.login, password="wrong"))
    error = error_of(secured, wrong)
    assert isinstance(error, AuthenticationFailed)
    assert "are username and password in listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config right?" in str(error)

    files = secured.certificates
    stranger = security_of(secured, "SSL", ssl_truststore_location=str(files.stranger_ca))
    assert "its certificate is not trusted" in str(error_of(secured, stranger))
    mismatch = error_of(secured, security_of(secured, "SSL"), host="127.1")
    assert "ssl.endpoint.identification.algorithm=none" in str(mismatch)
    unchecked = security_of(secured, "SSL", ssl_endpoint_identification_algorithm="")
    assert ask(secured, unchecked, host="127.1") == {0}
    unnamed = security_of(secured, "MTLS", ssl_keystore_location=str(files.stranger))
    assert "does not trust the client's certificate" in str(error_of(secured, unnamed))
    nobody = dataclasses.replace(
        security_of(secured, "SASL_PLAINTEXT", "PLAIN"), login=PlainLogin("PLAIN", "nobody", "x")
    )
    assert "refused the login of user 'nobody' by PLAIN" in str(error_of(secured, nobody))
