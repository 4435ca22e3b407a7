"""A broker with a listener of each kind, certificates made for it, and users: for tests of TLS and SASL."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import trustme
from cryptography.hazmat.primitives import serialization

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.security.scram import ScramMechanism
from tests.support.broker_process import BrokerProcess

PLAIN_USER, PLAIN_PASSWORD = "alice", "alice-s3cret"
SCRAM_USER, SCRAM_PASSWORD = "bob, =the= builder", "bob-s3cret=,"
SIMPLE_USER = "bob"
"""For kafka-python, which does not escape what SCRAM says must be; the same password."""
SECRETS = (PLAIN_PASSWORD, SCRAM_PASSWORD)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WAYS = [
    ("PLAINTEXT", None),
    ("SSL", None),
    ("MTLS", None),
    *[(listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS],
]
"""Listener and mechanism: every way into the broker."""


@dataclasses.dataclass(frozen=True)
class Certificates:
    """PEM files of an authority, a broker, a client, and of an authority that nobody knows."""

    ca: Path
    server: Path
    client: Path
    stranger_ca: Path
    stranger: Path

    @classmethod
    def make(cls, directory: Path) -> Self:
        authority, unknown = trustme.CA(), trustme.CA()
        files = cls(*(directory / f"{field.name}.pem" for field in dataclasses.fields(cls)))
        authority.cert_pem.write_to_path(files.ca)
        unknown.cert_pem.write_to_path(files.stranger_ca)
        server = authority.issue_cert("localhost", "127.0.0.1", common_name="broker")
        client = authority.issue_cert("client@example.org", common_name="carol")
        stranger = unknown.issue_cert("mallory@example.org")
        for path, issued in ((files.server, server), (files.client, client), (files.stranger, stranger)):
            path.write_bytes(_in_pkcs8(issued.private_key_pem.bytes()) + issued.cert_chain_pems[0].bytes())
        return files


def _in_pkcs8(key: bytes) -> bytes:
    """The key in the only format that Kafka reads."""
    private = serialization.load_pem_private_key(key, None)
    no_password = serialization.NoEncryption()
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)


def secured_settings(certificates: Certificates) -> dict[str, str]:
    """Of a broker with all listeners; `alice` logs in by PLAIN."""
    listeners = ("PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL")
    module = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";'
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in listeners),
        "listener.security.protocol.map": ",".join(f"{name}:{'SSL' if name == 'MTLS' else name}" for name in listeners),
        "ssl.keystore.location": str(certificates.server),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
        "listener.name.mtls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": module,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": module,
    }


class SecuredBroker(BrokerProcess):
    """A running broker; `bob` logs in by SCRAM."""

    def __init__(
        self, data_dir: Path, certificates: Certificates, zookeeper: str, settings: Mapping[str, str] | None = None
    ) -> None:
        wanted = {**secured_settings(certificates), **(settings or {})}
        names = [text.partition("://")[0].lower() for text in wanted["listeners"].split(",")]
        ours = {
            key: value
            for key, value in wanted.items()
            if not key.startswith("listener.name.") or key.split(".")[2] in names
        }
        super().__init__(data_dir, ours, zookeeper=zookeeper)
        self.certificates = certificates

    def start(self, timeout_s: float = 60.0) -> Self:
        super().start(timeout_s)
        with Cluster(self.listeners["PLAINTEXT"]) as cluster:
            for user in (SCRAM_USER, SIMPLE_USER):
                Admin(cluster).set_password(user, SCRAM_PASSWORD, list(ScramMechanism))
        return self

    def properties(self, listener: str, mechanism: str | None = None, password: str | None = None) -> dict[str, str]:
        """A client's, in librdkafka's names, which ours takes as well."""
        protocol = "SSL" if listener == "MTLS" else listener
        found = {"bootstrap.servers": self.listeners[listener], "security.protocol": protocol}
        if protocol.endswith("SSL"):
            found["ssl.ca.location"] = str(self.certificates.ca)
        if listener == "MTLS":
            found["ssl.certificate.location"] = found["ssl.key.location"] = str(self.certificates.client)
        if mechanism is not None:
            user, right = (PLAIN_USER, PLAIN_PASSWORD) if mechanism == "PLAIN" else (SCRAM_USER, SCRAM_PASSWORD)
            found |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password or right}
        return found
