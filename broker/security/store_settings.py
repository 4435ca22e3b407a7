"""Where keys and certificates are: the settings that Kafka's clients and brokers name alike.

A base of the client's and of the broker's settings; stores.py loads what they name.
"""

from __future__ import annotations

import dataclasses

from broker.settings import one_of, setting

__all__ = ["SECURITY", "StoreSettings"]

SECURITY = "security"
_TYPES = one_of(("PEM", "PKCS12", "JKS"))
"""JKS is Java's own: it is refused with the way to convert it once a store is loaded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """A key with its certificates, and the certificates to trust; passwords and keys are in no repr."""

    ssl_keystore_location: str | None = setting(
        "ssl.keystore.location",
        None,
        "File of the own private key and its certificate chain, PEM or PKCS12.",
        group=SECURITY,
    )
    ssl_keystore_type: str | None = setting(
        "ssl.keystore.type",
        None,
        "PEM or PKCS12; by default what the file is. JKS is refused with the way to convert it.",
        group=SECURITY,
        check=_TYPES,
    )
    ssl_keystore_password: str | None = setting(
        "ssl.keystore.password", None, "Password of a PKCS12 key store.", group=SECURITY, type="password"
    )
    ssl_keystore_key: str | None = setting(
        "ssl.keystore.key", None, "The private key itself, as PEM, instead of a file.", group=SECURITY, type="password"
    )
    ssl_keystore_certificate_chain: str | None = setting(
        "ssl.keystore.certificate.chain",
        None,
        "The certificate of ssl.keystore.key and those that signed it, as PEM.",
        group=SECURITY,
        type="password",
    )
    ssl_key_password: str | None = setting(
        "ssl.key.password", None, "Password of an encrypted private key.", group=SECURITY, type="password"
    )
    ssl_truststore_location: str | None = setting(
        "ssl.truststore.location",
        None,
        "File of the certificates to trust, PEM or PKCS12; by default those of the operating system.",
        group=SECURITY,
    )
    ssl_truststore_type: str | None = setting(
        "ssl.truststore.type", None, "PEM or PKCS12; by default what the file is.", group=SECURITY, check=_TYPES
    )
    ssl_truststore_password: str | None = setting(
        "ssl.truststore.password", None, "Password of a PKCS12 trust store.", group=SECURITY, type="password"
    )
    ssl_truststore_certificates: str | None = setting(
        "ssl.truststore.certificates",
        None,
        "The certificates to trust themselves, as PEM, instead of a file.",
        group=SECURITY,
        type="password",
    )
