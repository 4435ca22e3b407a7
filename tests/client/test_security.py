"""TLS and SASL in our client: every spelling of its settings, and what each mistake is called."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from broker.client.authentication import client_context
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.errors import AuthenticationFailed, ConfigError, PykafkaError
from broker.protocol.api_keys import ApiKey
from tests.support.proxy_server import ProxyServer
from tests.support.secured import SCRAM_PASSWORD, SCRAM_USER, Certificates, SecuredBroker
from tests.support.tcp_peer import TcpPeer

QUICK = {"socket.connection.setup.timeout.ms": "30000", "default.api.timeout.ms": "1000"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[SecuredBroker]:
    directory = tmp_path_factory.mktemp("client-security")
    certificates = Certificates.make(directory)
    with SecuredBroker(directory / "data", certificates, f"{zookeeper}/client-security") as process:
        yield process
    assert "Traceback" not in process.output


def error_of(properties: dict[str, str]) -> PykafkaError:
    with Cluster({**QUICK, **properties}) as cluster, pytest.raises(PykafkaError) as caught:
        cluster.topics()
    return caught.value


class TestSettings:
    def test_javas_names_work_as_librdkafkas(self, secured: SecuredBroker) -> None:
        files = secured.certificates
        properties = {
            "bootstrap.servers": secured.listeners["MTLS"],
            "security.protocol": "ssl",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(files.ca),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(files.client),
        }
        with Cluster(properties) as cluster:
            assert cluster.cluster_id()

    def test_a_jaas_config_logs_in(self, secured: SecuredBroker) -> None:
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        properties = {
            **secured.properties("SASL_SSL"),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f'{module} required username="{SCRAM_USER}" password="{SCRAM_PASSWORD}";',
        }
        with Cluster(properties) as cluster:
            assert cluster.cluster_id()

    def test_the_end_of_a_brokers_certificate_is_known(self, secured: SecuredBroker) -> None:
        certificate = x509.load_pem_x509_certificate(secured.certificates.server.read_bytes())
        with Cluster(secured.properties("SSL")) as cluster:
            assert cluster.any_connection().certificate_ends_s == certificate.not_valid_after_utc.timestamp()
        with Cluster(secured.listeners["PLAINTEXT"]) as cluster:
            assert cluster.any_connection().certificate_ends_s is None

    def test_a_directory_of_authorities_may_be_named(self, secured: SecuredBroker, tmp_path: Path) -> None:
        properties = {**secured.properties("SSL"), "ssl.ca.location": str(tmp_path)}
        assert "its certificate is not trusted" in str(error_of(properties))

    @pytest.mark.parametrize(
        ("properties", "complaint"),
        [
            ({"ssl.ca.location": "/no/such"}, r"ssl\.ca\.location=/no/such: No such file"),
            ({"ssl.ca.location": __file__}, r"ssl\.ca\.location=.*: there is no PEM certificate in it"),
            ({"ssl.keystore.location": __file__}, r"ssl\.keystore\.location=.*: not a PKCS12 file"),
            (
                {"ssl.certificate.location": __file__, "ssl.key.location": __file__},
                r"ssl\.certificate\.location=.*, ssl\.key\.location: there is no private key in it",
            ),
        ],
    )
    def test_files_that_cannot_be_used_are_named(self, properties: dict[str, str], complaint: str) -> None:
        settings = ClientSettings.from_properties({"security.protocol": "SSL", **properties})
        with pytest.raises(ConfigError, match=complaint):
            client_context(settings)


class TestMistakes:
    """Each is told in one sentence, at once, with the setting to look at."""

    def test_tls_to_a_plaintext_listener(self, secured: SecuredBroker) -> None:
        error = error_of(secured.properties("SSL") | {"bootstrap.servers": secured.listeners["PLAINTEXT"]})
        assert "is it a TLS listener, or does it want security.protocol=PLAINTEXT?" in str(error)

    def test_plaintext_to_a_tls_listener(self, secured: SecuredBroker) -> None:
        error = error_of({"bootstrap.servers": secured.listeners["SSL"]})
        assert isinstance(error, AuthenticationFailed)
        assert "speaks TLS: set security.protocol=SSL" in str(error)

    def test_no_login_where_one_is_asked_for(self, secured: SecuredBroker) -> None:
        error = error_of({"bootstrap.servers": secured.listeners["SASL_PLAINTEXT"]})
        assert "if its listener asks for a login or speaks TLS, set security.protocol" in str(error)

    def test_a_login_where_none_is_asked_for(self, secured: SecuredBroker) -> None:
        properties = secured.properties("SASL_PLAINTEXT", "PLAIN")
        error = error_of(properties | {"bootstrap.servers": secured.listeners["PLAINTEXT"]})
        assert "requires no login: set security.protocol to PLAINTEXT or SSL" in str(error)

    def test_an_authority_that_is_not_the_brokers(self, secured: SecuredBroker) -> None:
        error = error_of(secured.properties("SSL") | {"ssl.ca.location": str(secured.certificates.stranger_ca)})
        assert isinstance(error, AuthenticationFailed)
        assert "its certificate is not trusted" in str(error)
        assert "set ssl.ca.location or ssl.truststore.location" in str(error)

    def test_a_name_that_is_not_in_the_certificate_unless_that_is_left_out(self, secured: SecuredBroker) -> None:
        port = secured.listeners["SSL"].rpartition(":")[2]
        properties = secured.properties("SSL") | {"bootstrap.servers": f"127.0.0.2:{port}"}
        with socket.create_server(("127.0.0.2", 0)) as front:  # the broker listens on 127.0.0.1 only
            properties["bootstrap.servers"] = f"127.0.0.2:{front.getsockname()[1]}"
            threading.Thread(target=forward, args=(front, int(port)), daemon=True).start()
            error = error_of(properties)
            assert isinstance(error, AuthenticationFailed)
            assert "127.0.0.2" in str(error)
            assert "ssl.endpoint.identification.algorithm=none" in str(error)
            with Cluster(properties | {"ssl.endpoint.identification.algorithm": ""}) as cluster:
                assert cluster.cluster_id()

    @pytest.mark.parametrize(
        ("own", "hint"),
        [(None, "it requires a client certificate; set ssl.keystore.location"), ("stranger", "does not trust the cl")],
    )
    def test_a_certificate_that_is_missing_or_unknown(self, secured: SecuredBroker, own: str | None, hint: str) -> None:
        properties = secured.properties("SSL") | {"bootstrap.servers": secured.listeners["MTLS"]}
        if own:
            properties["ssl.keystore.location"] = str(getattr(secured.certificates, own))
        error = error_of(properties)
        assert isinstance(error, AuthenticationFailed)
        assert hint in str(error)

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
    def test_a_wrong_password(self, secured: SecuredBroker, mechanism: str) -> None:
        error = error_of(secured.properties("SASL_SSL", mechanism, password="wrong-s3cret"))
        assert isinstance(error, AuthenticationFailed)
        assert "are sasl.username and sasl.password right?" in str(error)
        assert "s3cret" not in str(error)

    def test_a_mechanism_that_is_not_enabled(self, secured: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("broker.client.sasl_settings._mechanism", lambda value: None)
        settings = ClientSettings.from_properties(secured.properties("SASL_SSL", "PLAIN"))
        object.__setattr__(settings, "sasl_mechanism", "SCRAM-SHA-1")
        with Cluster(settings) as cluster, pytest.raises(AuthenticationFailed) as caught:
            cluster.topics()
        offered = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"
        assert f"does not offer sasl.mechanism=SCRAM-SHA-1; it has {offered}" in str(caught.value)

    def test_a_producer_hears_of_it_too(self, secured: SecuredBroker, topic: str) -> None:
        properties = secured.properties("SASL_SSL", "PLAIN", password="wrong-s3cret")
        with Producer({**QUICK, **properties}) as producer, pytest.raises(AuthenticationFailed):
            producer.send(topic, b"x").result(60)


def forward(front: socket.socket, port: int) -> None:
    """Pass connections of `front` on to the broker."""
    while True:
        try:
            inner, _ = front.accept()
        except OSError:
            return
        outer = socket.create_connection(("127.0.0.1", port))
        for source, sink in ((inner, outer), (outer, inner)):
            threading.Thread(target=pump, args=(source, sink), daemon=True).start()


def pump(source: socket.socket, sink: socket.socket) -> None:
    with source, sink:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_a_peer_that_never_shakes_hands_is_given_up() -> None:
    with TcpPeer(lambda sock: None) as peer:
        error = error_of(
            {
                "bootstrap.servers": f"127.0.0.1:{peer.port}",
                "security.protocol": "SSL",
                "socket.connection.setup.timeout.ms": "300",
            }
        )
    assert "did not finish the TLS handshake within 0.3 s" in str(error)


def test_an_idle_connection_is_usable_although_tickets_came(secured: SecuredBroker) -> None:
    with Cluster(secured.properties("SSL")) as cluster:
        connection = cluster.any_connection()
        for _ in range(3):
            assert connection.usable
            connection.request(ApiKey.METADATA, {"topics": []})
        assert cluster.any_connection() is connection
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        assert context.check_hostname, "Python's default, which ours relies on"


@pytest.mark.parametrize("scheme", ["socks5", "http"])
def test_tls_and_a_login_go_through_a_proxy(secured: SecuredBroker, scheme: str) -> None:
    """The certificate is checked against the broker's name, not against the proxy's."""
    with ProxyServer() as proxy:
        properties = {**secured.properties("SASL_SSL", "SCRAM-SHA-256"), "proxy.url": proxy.url(scheme)}
        with Cluster(properties) as cluster:
            assert cluster.cluster_id()
        assert properties["bootstrap.servers"] in proxy.log
