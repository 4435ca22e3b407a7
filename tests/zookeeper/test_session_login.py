"""Sessions with a ZooKeeper that serves nobody without a Kerberos ticket; it and the KDC are real (four seconds)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pyspark
import pytest

from broker.client.cluster import Cluster
from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError, ConnectionFailed
from broker.security.kerberos import KerberosIdentity
from broker.security.kerberos_login import KerberosLogin
from broker.zookeeper import embedded_server
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.embedded_server import EmbeddedZooKeeper
from tests.support.broker_process import BrokerProcess
from tests.support.kerberos import Kdc, keytab_module, principal_of
from tests.support.waiting import eventually

OURS, THEIRS = "broker/localhost", "zookeeper/localhost"


@pytest.fixture(scope="module")
def keytab(kerberos: Kdc) -> Path:
    return kerberos.principal(OURS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kerberos: Kdc) -> Iterator[EmbeddedZooKeeper]:
    directory = tmp_path_factory.mktemp("zookeeper")
    module = keytab_module(kerberos.principal(THEIRS), principal_of(THEIRS))
    (directory / "jaas.conf").write_text(f"Server {{ {module} }};")
    properties = {
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "sasl",
    }
    options = f"-Djava.security.krb5.conf={kerberos.config} -Djava.security.auth.login.config={directory}/jaas.conf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", options)
        # Its logins load classes of Netty, which a server without them does not need.
        jars = Path(pyspark.__file__).parent / "jars"
        patch.setattr(embedded_server, "zookeeper_classpath", lambda: f"{jars}/*")
        with EmbeddedZooKeeper(directory / "data", properties=properties) as started:
            yield started


@pytest.fixture
def address(server: EmbeddedZooKeeper) -> str:
    return f"localhost:{server.port}"


def login(keytab: Path, service: str = "zookeeper") -> KerberosLogin:
    identity = KerberosIdentity(principal_of(OURS), str(keytab))
    return KerberosLogin("GSSAPI", identity.principal, identity, service)


def test_who_logs_in_is_served(address: str, keytab: Path) -> None:
    with ZooKeeper(address, login=login(keytab)) as zookeeper:
        assert zookeeper.create("/served", b"x") == "/served"


def test_who_does_not_is_not_served(address: str) -> None:
    with ZooKeeper(address, operation_timeout_s=0.5) as zookeeper, pytest.raises(Exception, match="Sasl|no answer"):
        zookeeper.create("/refused", b"x")


def test_who_cannot_is_told_why(address: str, keytab: Path) -> None:
    def refusal() -> str:
        with pytest.raises(ConnectionFailed) as caught:
            ZooKeeper(address, connection_timeout_ms=1500, login=login(keytab, "nobodys")).start()
        return str(caught.value)

    # A KDC on a busy machine may answer later than that, and then only the time is told.
    eventually(lambda: "the KDC knows no service nobodys/localhost" in refusal())


def test_a_login_that_failed_is_tried_again(
    server: EmbeddedZooKeeper, address: str, keytab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = []

    def fail(self: KerberosLogin, host: str) -> NoReturn:
        failed.append(host)
        raise ConnectionFailed("no KDC answers")

    with ZooKeeper(address, login=login(keytab)) as zookeeper:
        zookeeper.create("/before", b"x")
        with monkeypatch.context() as away:
            away.setattr(KerberosLogin, "begin", fail)
            server.kill()
            server.start()
            eventually(lambda: len(failed) > 1)
        assert zookeeper.get("/before") is not None


def test_a_broker_logs_in(server: EmbeddedZooKeeper, address: str, keytab: Path, tmp_path: Path) -> None:
    settings = {"zookeeper.sasl.jaas.config": keytab_module(keytab, principal_of(OURS))}
    with (
        BrokerProcess(tmp_path, settings, zookeeper=f"{address}/broker") as broker,
        Cluster(broker.bootstrap) as cluster,
    ):
        assert cluster.cluster_id()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"zookeeper.sasl.jaas.config": keytab_module(Path("/k"), "a@R")}, "it needs zookeeper.connect"),
        ({"zookeeper.connect": "a", "zookeeper.sasl.jaas.config": "PlainLoginModule required x=y;"}, "Krb5LoginModule"),
        (
            {"zookeeper.connect": "a", "zookeeper.sasl.jaas.config": "Krb5LoginModule required a=b;"},
            "option a=b is not",
        ),
    ],
)
def test_what_cannot_log_in_is_refused(tmp_path: Path, settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"zookeeper.sasl.jaas.config: .*{complaint}"):
        BrokerConfig.load(None, {"log.dirs": str(tmp_path), **settings})
