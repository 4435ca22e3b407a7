"""Listeners, their names, what they speak, what they advertise, and their own settings."""

from __future__ import annotations

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.listener import Listener, advertised_listeners
from broker.errors import ConfigError
from broker.security.password_login import password_login

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="s3cret";'
NAMED = {
    "listeners": "INTERNAL://0.0.0.0:0,EXTERNAL://[::1]:9093",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL",
}


def test_listeners_have_names_and_a_protocol_each() -> None:
    config = BrokerConfig.load(None, NAMED)
    assert config.parsed_listeners() == [
        Listener("INTERNAL", "0.0.0.0", 0, "PLAINTEXT"),
        Listener("EXTERNAL", "::1", 9093, "SASL_SSL"),
    ]
    assert [str(one) for one in config.parsed_listeners()] == ["INTERNAL://0.0.0.0:0", "EXTERNAL://[::1]:9093"]


def test_what_is_advertised_goes_by_name() -> None:
    bound = [Listener("INTERNAL", "0.0.0.0", 41), Listener("EXTERNAL", "::1", 42, "SASL_SSL")]
    assert [str(one) for one in advertised_listeners(bound, [])] == ["INTERNAL://localhost:41", "EXTERNAL://[::1]:42"]
    told = [Listener("EXTERNAL", "broker.example.org", 0, "SASL_SSL")]
    assert [str(one) for one in advertised_listeners(bound, told)] == ["EXTERNAL://broker.example.org:42"]


def test_a_listener_overrides_what_all_have() -> None:
    config = BrokerConfig.load(
        None,
        {
            **NAMED,
            "ssl.keystore.location": "all.pem",
            "listener.name.external.ssl.keystore.location": "external.pem",
            "listener.name.external.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.external.plain.sasl.jaas.config": PLAIN,
            "listener.name.external.scram-sha-256.sasl.jaas.config": "a.ScramLoginModule required;",
        },
    )
    own = config.listener_security()
    assert own["INTERNAL"].settings.ssl_keystore_location == "all.pem"
    assert own["EXTERNAL"].settings.ssl_keystore_location == "external.pem"
    assert own["EXTERNAL"].settings.sasl_enabled_mechanisms == ("PLAIN",)
    assert own["EXTERNAL"].plain_users == {"alice": "s3cret"}
    for shown in (config, own, own["EXTERNAL"], own["EXTERNAL"].settings):
        assert "s3cret" not in repr(shown)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"listeners": "INTERNAL://a:1,INTERNAL://b:2"}, "there is already a listener INTERNAL"),
        ({"listeners": "OTHER://a:1"}, "Add OTHER:PROTOCOL to listener.security.protocol.map"),
        ({"listener.security.protocol.map": "INTERNAL"}, "=INTERNAL: expected NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "INTERNAL:TLS"}, "PROTOCOL of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"listener.security.protocol.map": "INTERNAL:SSL,INTERNAL:SSL"}, "INTERNAL is there twice"),
        ({"advertised.listeners": "PUBLIC://a:1"}, "Add PUBLIC:PROTOCOL"),
        ({"inter.broker.listener.name": "PUBLIC"}, "inter.broker.listener.name=PUBLIC: there is no such listener"),
        ({"listener.name.publik.ssl.client.auth": "none"}, "there is no listener PUBLIK in listeners"),
        ({"listener.name.external.num.partitions": "1"}, "'num.partitions' cannot be set for one listener"),
        ({"listener.name.external.ssl.client.auth": "maybe"}, "'maybe' is not one of none, requested, required"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI is not supported; choose from PLAIN"),
        ({"sasl.enabled.mechanisms": ""}, "listener EXTERNAL: name a mechanism in sasl.enabled.mechanisms"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "set listener.name.external.plain.sasl.jaas.config="),
        ({"listener.name.external.plain.sasl.jaas.config": "s3cret"}, "plain.sasl.jaas.config: expected"),
        ({"listener.name.external.oauthbearer.sasl.jaas.config": "a.OAuthLoginModule required;"}, "is not supported"),
        ({"ssl.keystore.type": "BKS"}, "'BKS' is not one of PEM, PKCS12, JKS"),
        ({"ssl.enabled.protocols": "SSLv3"}, "'SSLv3' is not one of TLSv1.2, TLSv1.3"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(changes: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(None, {**NAMED, **changes})
    assert complaint in str(caught.value)
    assert "s3cret" not in str(caught.value)


LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="kafka" password="s3cret";'
BROKERS = {
    "listeners": "CLIENTS://:1,BROKERS://:2",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SASL_SSL",
    "inter.broker.listener.name": "brokers",
    "listener.name.brokers.scram-sha-512.sasl.jaas.config": LOGIN.replace("plain.Plain", "scram.Scram"),
}


def test_brokers_log_in_to_each_other_with_the_users_of_their_listener() -> None:
    between = BrokerConfig.load(None, BROKERS).inter_broker()
    assert between.security.listener.name == "BROKERS"
    assert between.login == password_login("SCRAM-SHA-512", "kafka", "s3cret")
    assert "s3cret" not in repr(between)
    several = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "listener.name.brokers.plain.sasl.jaas.config": LOGIN.replace(";", ' user_kafka="s3cret";'),
    }
    for mechanism, expected in ({}, "PLAIN"), ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "PLAIN"):
        login = BrokerConfig.load(None, {**BROKERS, **several, **mechanism}).inter_broker().login
        assert login == password_login(expected, "kafka", "s3cret")


@pytest.mark.parametrize(
    ("listeners", "chosen"),
    [
        ("SASL_SSL://:1,SSL://:2,PLAINTEXT://:3", "PLAINTEXT"),
        ("SASL_PLAINTEXT://:1,SSL://:2", "SSL"),
        ("PLAINTEXT://:1", "PLAINTEXT"),
    ],
)
def test_by_default_brokers_use_a_listener_without_a_login(listeners: str, chosen: str) -> None:
    between = BrokerConfig.load(None, {"listeners": listeners}).inter_broker()
    assert (between.security.listener.name, between.login) == (chosen, None)


def test_one_broker_needs_no_login_for_others() -> None:
    config = BrokerConfig.load(None, {"listeners": "SASL_SSL://:1"})
    with pytest.raises(ConfigError, match=r"set listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org\."):
        config.inter_broker()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"security.inter.broker.protocol": "SSL"}, "set inter.broker.listener.name or security.inter.broker.protocol"),
        ({"inter.broker.listener.name": "x"}, "=x: there is no such listener in listeners (CLIENTS, BROKERS)"),
        (
            {"inter.broker.listener.name": "", "security.inter.broker.protocol": "SSL"},
            "security.inter.broker.protocol=SSL: there is no such listener",
        ),
        ({"advertised.listeners": "CLIENTS://a:1"}, "advertised.listeners does not have BROKERS"),
        ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "=PLAIN: listener BROKERS does not offer it; add it to"),
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "GSSAPI is not supported; choose from"),
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"},
            "cannot log in to each other on listener BROKERS: set listener.name.brokers.scram-sha-256.sasl.jaas.config",
        ),
        ({"listener.name.brokers.super.users": "User:a"}, "'super.users' cannot be set for one listener"),
        ({"super.users": "User:a; b"}, "super.users=User:a; b: expected User:name;User:name, found 'b'"),
        (
            {
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SSL",
                "listener.name.brokers.ssl.client.auth": "required",
            },
            "set super.users to the names in those of the brokers",
        ),
    ],
)
def test_what_keeps_brokers_from_each_other_is_said(changes: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(None, {**BROKERS, **changes})
    assert complaint in str(caught.value)
