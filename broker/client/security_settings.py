"""How a client reaches brokers: plaintext or TLS, and how it logs in. A part of `ClientSettings`.

Takes the names of Java's clients (stores in PEM, `sasl.jaas.config`) and those of librdkafka (`ssl.ca.location`,
`sasl.username` …). Passwords and keys are in no repr; a pickle has them, as executors must log in too.
"""

from __future__ import annotations

import dataclasses

from broker.errors import ConfigError
from broker.security.jaas import parse_jaas
from broker.security.scram import ScramMechanism
from broker.security.store_settings import SECURITY, StoreSettings
from broker.settings import one_of, setting

__all__ = ["MECHANISMS", "ClientSecuritySettings", "Login"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", *(one.value for one in ScramMechanism))


def _mechanism(value: str | None) -> str | None:
    if value is None or value in MECHANISMS:
        return None
    return f"must be one of {', '.join(MECHANISMS)} (GSSAPI, Kafka's default, and OAUTHBEARER are not built in)"


@dataclasses.dataclass(frozen=True)
class Login:
    """Who logs in, and how."""

    mechanism: str
    user: str
    password: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSecuritySettings(StoreSettings):
    """The stores of keys and certificates are in the base."""

    security_protocol: str = setting(
        "security.protocol",
        "PLAINTEXT",
        "How to talk to brokers: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        group=SECURITY,
        check=one_of((*PROTOCOLS, *(name.lower() for name in PROTOCOLS))),
    )
    ssl_ca_location: str | None = setting(
        "ssl.ca.location",
        None,
        "File or directory of certificates to trust, PEM; as ssl.truststore.location, in librdkafka's name.",
        group=SECURITY,
    )
    ssl_certificate_location: str | None = setting(
        "ssl.certificate.location", None, "File of the client's certificate chain, PEM.", group=SECURITY
    )
    ssl_key_location: str | None = setting(
        "ssl.key.location", None, "File of the private key of ssl.certificate.location, PEM.", group=SECURITY
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "ssl.endpoint.identification.algorithm",
        "https",
        "https: the broker's certificate must be for its host name; none, or nothing, leaves that out.",
        group=SECURITY,
        check=one_of(("https", "HTTPS", "none", "")),
    )
    sasl_mechanism: str | None = setting(
        "sasl.mechanism", None, f"How to log in: {', '.join(MECHANISMS)}.", group=SECURITY, check=_mechanism
    )
    sasl_username: str | None = setting("sasl.username", None, "Name to log in as.", group=SECURITY)
    sasl_password: str | None = setting("sasl.password", None, "Its password.", group=SECURITY, type="password")
    sasl_jaas_config: str | None = setting(
        "sasl.jaas.config",
        None,
        'Name and password as Java has them: …PlainLoginModule required username="…" password="…";',
        group=SECURITY,
        type="password",
    )

    @property
    def encrypted(self) -> bool:
        return self.security_protocol.upper().endswith("SSL")

    @property
    def check_hostname(self) -> bool:
        return self.ssl_endpoint_identification_algorithm.lower() == "https"

    def login(self) -> Login | None:
        """None where the protocol asks for none. Raises ConfigError."""
        protocol = self.security_protocol.upper()
        if not protocol.startswith("SASL_"):
            return None
        user, password, mechanism = self.sasl_username, self.sasl_password, self.sasl_mechanism
        if self.sasl_jaas_config:
            module = parse_jaas(self.sasl_jaas_config)
            user, password = module.options.get("username"), module.options.get("password")
            if module.name == "PlainLoginModule" and mechanism is None:
                mechanism = "PLAIN"
            needed = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
            if mechanism is not None and module.name != needed:
                raise ConfigError(f"sasl.jaas.config: sasl.mechanism={mechanism} needs {needed}, not {module.name}")
        if mechanism is None:
            raise ConfigError(f"security.protocol={protocol}: set sasl.mechanism to one of {', '.join(MECHANISMS)}")
        if not user or password is None:
            raise ConfigError(
                f"security.protocol={protocol}: set sasl.username and sasl.password, or sasl.jaas.config with both"
            )
        return Login(mechanism, user, password)

    def check_security(self) -> None:
        """Raise ConfigError when settings contradict each other."""
        self.login()
        if bool(self.ssl_certificate_location) != bool(self.ssl_key_location):
            raise ConfigError("ssl.certificate.location and ssl.key.location go together: set both")
