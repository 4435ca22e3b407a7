"""Key stores and trust stores: the settings of Kafka's clients and brokers, and how they get into an SSL context.

A store is a PEM file, PEM in a setting, or a PKCS12 file. Java's own format (JKS) is refused with the commands that
convert it. Every error is a ConfigError that names the setting. OpenSSL reads private keys from a file only. A key from
a setting or from PKCS12 goes through a file in memory (memfd) or, where there is none, a temporary file that only this
user can read.

Called by broker/net/tls.py and broker/client/authentication.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.errors import ConfigError
from broker.settings import Check, one_of, setting

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")

SECURITY = "security"
# JKS is accepted here, so that loading the store can tell how to convert it.
_TYPES = one_of(("PEM", "PKCS12", "JKS"))


def _text(doc: str, check: Check | None = None) -> Any:
    return setting(None, doc, check, group=SECURITY)


def _secret(doc: str) -> Any:
    return setting(None, doc, group=SECURITY, type="password")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """A key with its certificates, and the certificates to trust. Its repr shows no passwords and no keys."""

    ssl_keystore_location: str | None = _text("File with the own private key and its certificate chain, PEM or PKCS12.")
    ssl_keystore_type: str | None = _text(
        "PEM or PKCS12, by default detected from the file. JKS is refused with the way to convert it.", _TYPES
    )
    ssl_keystore_password: str | None = _secret("Password of a PKCS12 key store.")
    ssl_keystore_key: str | None = _secret("The private key as PEM text, instead of a file.")
    ssl_keystore_certificate_chain: str | None = _secret(
        "The certificate of ssl.keystore.key and those that signed it, as PEM text."
    )
    ssl_key_password: str | None = _secret("Password of an encrypted private key.")
    ssl_truststore_location: str | None = _text(
        "File with the certificates to trust, PEM or PKCS12; by default those of the operating system."
    )
    ssl_truststore_type: str | None = _text("PEM or PKCS12, by default detected from the file.", _TYPES)
    ssl_truststore_password: str | None = _secret("Password of a PKCS12 trust store.")
    ssl_truststore_certificates: str | None = _secret("The certificates to trust as PEM text, instead of a file.")


def has_key(settings: StoreSettings) -> bool:
    return bool(settings.ssl_keystore_location or settings.ssl_keystore_key)


def has_trust(settings: StoreSettings) -> bool:
    return bool(settings.ssl_truststore_location or settings.ssl_truststore_certificates)


def load_key(context: ssl.SSLContext, settings: StoreSettings) -> None:
    """Load the own private key and certificates into `context`. Raises ConfigError."""
    if settings.ssl_keystore_key:
        pem = _from_setting(settings.ssl_keystore_key) + _from_setting(settings.ssl_keystore_certificate_chain or "")
        load_pem_key(context, pem, settings.ssl_key_password, "ssl.keystore.key and ssl.keystore.certificate.chain")
        return
    where, location = "ssl.keystore.location", settings.ssl_keystore_location or ""
    data = read_store(location, where)
    if _is_pem(data, settings.ssl_keystore_type, f"{where}={location}"):
        load_pem_key(context, data.decode(errors="replace"), settings.ssl_key_password, f"{where}={location}")
    else:
        pem = _pkcs12(data, settings.ssl_keystore_password, where, location, key=True)
        load_pem_key(context, pem, None, f"{where}={location}")


def load_trust(context: ssl.SSLContext, settings: StoreSettings) -> None:
    """Load the certificates to trust into `context`. Raises ConfigError."""
    where, location = "ssl.truststore.location", settings.ssl_truststore_location or ""
    if settings.ssl_truststore_certificates:
        where, pem = "ssl.truststore.certificates", _from_setting(settings.ssl_truststore_certificates)
    else:
        data = read_store(location, where)
        if _is_pem(data, settings.ssl_truststore_type, f"{where}={location}"):
            pem = data.decode(errors="replace")
        else:
            pem = _pkcs12(data, settings.ssl_truststore_password, where, location, key=False)
        where = f"{where}={location}"
    certificates = [block[0] for block in _BLOCK.finditer(pem) if "CERTIFICATE" in block[1]]
    if not certificates:
        raise ConfigError(f"{where}: there is no certificate in it")
    try:
        context.load_verify_locations(cadata="\n".join(certificates))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from None


def load_pem_key(context: ssl.SSLContext, pem: str, password: str | None, where: str) -> None:
    """Load key and certificates from PEM text. `where` names their settings in errors. Raises ConfigError."""
    kinds = [block[1] for block in _BLOCK.finditer(pem)]
    for wanted, missing in (("PRIVATE KEY", "private key"), ("CERTIFICATE", "certificate")):
        if not any(wanted in kind for kind in kinds):
            raise ConfigError(f"{where}: there is no {missing} in it; key and certificate chain must both be given")

    def ask() -> str:
        if password is None:
            raise ConfigError(f"{where}: the private key is encrypted; set ssl.key.password")
        return password

    try:
        with _as_file(pem.encode()) as path:
            context.load_cert_chain(path, password=ask)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{where}: the first certificate does not match the private key") from None
        reason = error.reason or "it cannot be read"
        hint = "; is ssl.key.password right?" if any("ENCRYPTED" in k for k in kinds) or "ENCRYPTED" in pem else ""
        raise ConfigError(f"{where}: {reason}{hint}") from None
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror or error}") from None


def read_store(location: str, setting: str) -> bytes:
    """Read the file that `setting` names. Raises ConfigError."""
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}={location}: {error.strerror}") from None


def _is_pem(data: bytes, type_: str | None, where: str) -> bool:
    """Whether the data is PEM, otherwise it is PKCS12. Raises ConfigError for JKS."""
    if data[:4] in _JKS_MAGIC:
        raise ConfigError(
            f"{where} is a Java key store (JKS), which only Java reads. Convert it: "
            "keytool -importkeystore -srckeystore IN.jks -destkeystore STORE.p12 -deststoretype PKCS12, "
            "and if necessary: openssl pkcs12 -in STORE.p12 -nodes -out STORE.pem"
        )
    found = b"-----BEGIN " in data
    if not found and type_ == "PEM":
        raise ConfigError(f"{where}: there is no PEM in it, such as -----BEGIN CERTIFICATE-----")
    return found


def _pkcs12(data: bytes, password: str | None, setting: str, location: str, *, key: bool) -> str:
    """A PKCS12 file as PEM. Raises ConfigError."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            f"{setting}={location} is not PEM. PKCS12 needs the package 'cryptography' (pip install cryptography); "
            f"or convert it: openssl pkcs12 -in {location} -nodes -out STORE.pem"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError:
        password_setting = setting.replace("location", "password")
        raise ConfigError(f"{setting}={location}: not a PKCS12 file, or {password_setting} is wrong") from None
    pem = b""
    if key:
        if store.key is None or store.cert is None:
            raise ConfigError(f"{setting}={location}: there is no private key with its certificate in it")
        pem = store.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    certificates = [*([store.cert] if store.cert is not None else []), *store.additional_certs]
    return (
        pem + b"".join(found.certificate.public_bytes(serialization.Encoding.PEM) for found in certificates)
    ).decode()


def _from_setting(text: str) -> str:
    """PEM from one line of a properties file, with `\\n` or spaces instead of line breaks."""

    def mend(block: re.Match[str]) -> str:
        body = block[2].strip()
        if "\n" not in body:
            body = "\n".join(body.split())
        return f"-----BEGIN {block[1]}-----\n{body}\n-----END {block[1]}-----\n"

    return _BLOCK.sub(mend, text.replace("\\n", "\n")) + "\n"


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path that OpenSSL can open."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.name
