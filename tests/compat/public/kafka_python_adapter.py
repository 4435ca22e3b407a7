"""A pytest plugin for kafka-python's own integration tests: where they start an Apache Kafka, they get our broker.

Loaded by tests/compat/test_public_suites.py into a pytest of its own, in the unpacked source distribution. Their
fixtures and tests stay as they are; replaced are the class that starts a server, before anything imports it, and
what the distribution leaves out.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, Self

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from tests.conftest import SESSION_SETTINGS
from tests.support.secured import PLAIN_PASSWORD, PLAIN_USER, SCRAM_PASSWORD, SIMPLE_USER, Certificates, SecuredBroker


class Server:
    """What their tests use of their `KafkaFixture`."""

    child: Server
    zookeeper = None
    replicas = 1
    host = "localhost"

    @classmethod
    def instance(cls, broker_id: int, **params: Any) -> Self:
        """Theirs takes much more, none of which matters to a server that is not Apache's."""
        assert broker_id == 0
        known = {"transport", "sasl_mechanism", "partitions", "tmp_dir"}
        assert params.keys() <= known, params.keys() - known
        return cls(params.get("transport", "PLAINTEXT"), params.get("sasl_mechanism"), params.get("partitions", 4))

    def __init__(self, transport: str, sasl_mechanism: str | None, partitions: int) -> None:
        self.transport, self.sasl_mechanism, self.partitions = transport, sasl_mechanism, partitions
        self.child = self
        plain = sasl_mechanism == "PLAIN"
        self.broker_user = PLAIN_USER if plain else SIMPLE_USER
        self.broker_password = PLAIN_PASSWORD if plain else SCRAM_PASSWORD
        self._directory = Path(tempfile.mkdtemp(prefix="kafka-python-"))
        certificates = Certificates.make(self._directory)
        self.ssl_dir = str(self._directory)
        shutil.copy(certificates.ca, self._directory / "ca-cert")
        ports = {name: _fixtures.get_open_port() for name in dict.fromkeys(["PLAINTEXT", transport])}
        addresses = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        settings = {
            **SESSION_SETTINGS,
            "listeners": addresses,
            "advertised.listeners": addresses,  # they look whether it is set
            "group.min.session.timeout.ms": "1000",  # as in their own server.properties
            "num.partitions": str(partitions),
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",  # both as in their own
            "allow.everyone.if.no.acl.found": "true",
        }
        self._broker = SecuredBroker(self._directory / "data", certificates, "", settings).start()
        self.port = ports[transport]

    @property
    def sasl_enabled(self) -> bool:
        return self.transport.startswith("SASL")

    @property
    def ssl_enabled(self) -> bool:
        return self.transport.endswith("SSL")

    def bootstrap_server(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """It runs already."""

    def dump_logs(self) -> None:
        print(self._broker.output[-20_000:])

    def close(self) -> None:
        self._broker.stop()
        shutil.rmtree(self._directory)

    def get_topic_names(self) -> list[str]:
        with Cluster(self._broker.listeners["PLAINTEXT"]) as cluster:
            return Admin(cluster).list_topics()

    def _enrich_client_params(self, params: dict[str, Any], **defaults: Any) -> dict[str, Any]:
        # They name the server's version and so spare their clients the question. Ours is none of Apache's versions:
        # its clients have to ask, as they do by default.
        asking = {**params, "api_version": None}
        return dict(_Theirs._enrich_client_params(self, asking, **defaults))


def _module(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module
    return module


# Their package `test` comes without its __init__.py, and would be the standard library's.
_module("test", __path__=[str(Path.cwd() / "test")])
# Left out of the distribution, and used only by the class that is replaced.
_module("test.service", ExternalService=None, SpawnedService=None)

import test.integration.fixtures as _fixtures  # type: ignore[import-not-found]  # noqa: E402

_Theirs = _fixtures.KafkaFixture
_fixtures.KafkaFixture = Server
