"""The client's properties: read, checked, refused."""

from __future__ import annotations

import pickle

import pytest

from broker.client.client_settings import ClientSettings, isolation_id, parse_bootstrap
from broker.errors import ConfigError
from broker.security.mechanisms import MECHANISMS
from broker.security.plain import PlainLogin
from broker.security.scram import ScramMechanism
from broker.settings import settings_of


def test_defaults_are_kafkas() -> None:
    settings = ClientSettings()
    assert settings.request_timeout_ms == 30_000
    assert settings.required_acks == -1
    assert settings.enable_idempotence
    assert settings.partition_assignment_strategy == ("range", "cooperative-sticky")


def test_every_key_has_a_doc_and_a_group_and_is_its_field_in_kafkas_spelling() -> None:
    for name, declared in settings_of(ClientSettings).items():
        assert declared.doc
        assert declared.group in ("client", "consumer", "producer", "security")
        assert declared.attribute == name.replace(".", "_")


def test_values_may_be_text_numbers_booleans_or_lists() -> None:
    settings = ClientSettings.from_properties(
        {"bootstrap.servers": ["a:1", "b:2"], "linger.ms": 7, "check.crcs": False, "acks": "all"}
    )
    assert settings.bootstrap_servers == ("a:1", "b:2")
    assert settings.linger_ms == 7
    assert not settings.check_crcs


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"fetch.min.byte": 1}, "did you mean 'fetch.min.bytes'"),
        ({"acks": "2"}, "'2' is not one of 0, 1, -1, all"),
        ({"linger.ms": "soon"}, "linger.ms=soon: expected a value of type int"),
        ({"linger.ms": -1}, "linger.ms=-1: must be at least 0"),
        ({"security.protocol": "TLS"}, "'TLS' is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, r"set sasl\.mechanism to one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl.mechanism": "GSSAPI"}, "GSSAPI, Kafka's default, is not built in"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, r"set sasl\.username and sasl\.password"),
        ({"security.protocol": "SASL_SSL", "sasl.jaas.config": "secret"}, r"^sasl\.jaas\.config: expected"),
        ({"ssl.key.location": "k.pem"}, r"ssl\.certificate\.location and ssl\.key\.location go together"),
        ({"ssl.keystore.type": "BKS"}, "'BKS' is not one of PEM, PKCS12, JKS"),
        ({"bootstrap.servers": "localhost:"}, "'localhost:' is not host or host:port"),
        ({"bootstrap.servers": "localhost:x"}, "'localhost:x' is not host or host:port"),
        ({"bootstrap.servers": "::1"}, "'::1' is not host or host:port"),
        ({"bootstrap.servers": "h:1,h:99999"}, "'h:99999' is not host or host:port"),
        ({"isolation.level": "committed"}, "is not one of read_uncommitted, read_committed"),
        ({"acks": 1, "enable.idempotence": True}, "needs acks=all"),
        ({"max.in.flight.requests.per.connection": 6}, "at most 5"),
        ({"group.id": "g", "heartbeat.interval.ms": 50_000}, "must be below session.timeout.ms=45000"),
        ({"partition.assignment.strategy": "stick"}, "'stick' is not one of range, roundrobin, sticky, cooper"),
        ({"group.protocol": "share"}, "'share' is not one of classic, consumer"),
        (
            {"group.protocol": "consumer", "session.timeout.ms": 9000},
            "session.timeout.ms cannot be set with group.prot",
        ),
        ({"group.remote.assignor": "range"}, "group.remote.assignor cannot be set with group.protocol=classic"),
        ({"transactional.id": "t", "enable.idempotence": False}, "transactional.id=t needs enable.idempotence=true"),
        ({"transactional.id": "t", "acks": 1}, "transactional.id=t needs enable.idempotence=true and acks=all"),
    ],
)
def test_what_is_wrong_is_said(properties: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ClientSettings.from_properties(properties)


@pytest.mark.parametrize(
    "names",
    [
        {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": 'pa"ss'},
        {"sasl.mechanisms": "PLAIN", "sasl.username": "alice", "sasl.password": 'pa"ss'},
        {"sasl.jaas.config": r'a.b.PlainLoginModule required username="alice" password="pa\"ss";'},
    ],
)
def test_a_login_is_taken_in_every_spelling_and_its_password_never_shown(names: dict[str, str]) -> None:
    settings = ClientSettings.from_properties({"security.protocol": "SASL_PLAINTEXT", **names})
    login = settings.login()
    assert login == PlainLogin("PLAIN", "alice", 'pa"ss')
    for shown in (repr(settings), str(settings), repr(login)):
        assert 'pa"ss' not in shown
        assert r"pa\"ss" not in shown
    assert pickle.loads(pickle.dumps(settings)).login() == login


def test_less_than_all_acks_turns_idempotence_off_as_in_kafka() -> None:
    assert not ClientSettings.from_properties({"acks": "1"}).enable_idempotence


def test_assignors_may_be_named_by_kafkas_classes() -> None:
    package = "org.apache.kafka.clients.consumer."
    names = f"{package}RoundRobinAssignor, {package}RangeAssignor, {package}CooperativeStickyAssignor"
    settings = ClientSettings.from_properties({"partition.assignment.strategy": names})
    assert settings.partition_assignment_strategy == ("roundrobin", "range", "cooperative-sticky")


@pytest.mark.parametrize(
    "source", ["h:1", ["h:1"], {"bootstrap.servers": "h:1"}, ClientSettings(bootstrap_servers=("h:1",))]
)
def test_settings_come_from_whatever_a_caller_has(source: object) -> None:
    assert ClientSettings.of(source).bootstrap_servers == ("h:1",)  # type: ignore[arg-type]


def test_an_address_wins_over_the_one_in_the_properties() -> None:
    assert ClientSettings.of("h:1", {"bootstrap.servers": "h:2"}).bootstrap_servers == ("h:1",)


@pytest.mark.parametrize("source", ["", [], {}])
def test_a_missing_address_is_asked_for(source: object) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        ClientSettings.of(source)  # type: ignore[arg-type]


def test_an_address_may_be_ipv6_in_brackets_and_lack_the_port() -> None:
    """librdkafka and kafka-python take 9092 then; Kafka's Java client refuses such an address."""
    given = ("[::1]:9093", "host:1", "host", "[::1]")
    assert parse_bootstrap(given) == [("::1", 9093), ("host", 1), ("host", 9092), ("::1", 9092)]


def test_settings_travel_to_executors() -> None:
    settings = ClientSettings.of("h:1", {"client.id": "x"})
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_an_unknown_isolation_level_is_refused_by_name() -> None:
    assert [isolation_id("read_uncommitted"), isolation_id("read_committed")] == [0, 1]
    with pytest.raises(ConfigError, match=r"isolation\.level=serializable"):
        isolation_id("serializable")


def test_every_mechanism_of_scram_is_known() -> None:
    assert {one.value for one in ScramMechanism} < set(MECHANISMS)
