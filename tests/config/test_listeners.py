"""Listeners, their names, what they speak, what they advertise, and their own settings."""

from __future__ import annotations

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.listener import Listener, advertised_listeners
from broker.errors import ConfigError

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


def test_settings_of_kafka_that_mean_nothing_here_are_let_pass() -> None:
    extra = {"security.inter.broker.protocol": "SASL_SSL", "sasl.mechanism.inter.broker.protocol": "PLAIN"}
    assert BrokerConfig.load(None, {**NAMED, **extra}) == BrokerConfig.load(None, NAMED)
