"""Keys and certificates from PEM files, settings and PKCS12; and the errors for those that cannot be used."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from broker.errors import ConfigError
from broker.security.stores import StoreSettings, load_key, load_trust

AUTHORITY = trustme.CA()
LEAF = AUTHORITY.issue_cert("localhost")
KEY: Any = serialization.load_pem_private_key(LEAF.private_key_pem.bytes(), None)
CHAIN = [x509.load_pem_x509_certificate(blob.bytes()) for blob in LEAF.cert_chain_pems]
ROOT = x509.load_pem_x509_certificate(AUTHORITY.cert_pem.bytes())


def encrypted_key(password: bytes) -> str:
    encryption = serialization.BestAvailableEncryption(password)
    pem: bytes = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    return pem.decode()


def context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def key_store(path: Path, data: bytes, **settings: str) -> StoreSettings:
    path.write_bytes(data)
    return StoreSettings(ssl_keystore_location=str(path), **settings)


PEM = LEAF.private_key_pem.bytes() + b"".join(blob.bytes() for blob in LEAF.cert_chain_pems)
CERTIFICATES = b"".join(blob.bytes() for blob in LEAF.cert_chain_pems)
P12 = pkcs12.serialize_key_and_certificates(
    b"broker", KEY, CHAIN[0], CHAIN[1:], serialization.BestAvailableEncryption(b"store-s3cret")
)


def shown_by(store: StoreSettings) -> bytes:
    """The certificate that a server with this key store shows its clients."""
    server_side, client_side = context(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_key(server_side, store)
    AUTHORITY.configure_trust(client_side)
    client_side.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server) * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert(binary_form=True) or b""


LEAF_DER = CHAIN[0].public_bytes(serialization.Encoding.DER)


class TestAKey:
    def test_from_a_pem_file(self, tmp_path: Path) -> None:
        assert shown_by(key_store(tmp_path / "k", PEM, ssl_keystore_type="PEM")) == LEAF_DER

    def test_from_an_encrypted_pem_file(self, tmp_path: Path) -> None:
        data = encrypted_key(b"key-s3cret").encode() + CERTIFICATES
        assert shown_by(key_store(tmp_path / "k", data, ssl_key_password="key-s3cret")) == LEAF_DER

    def test_from_pkcs12(self, tmp_path: Path) -> None:
        assert shown_by(key_store(tmp_path / "k", P12, ssl_keystore_password="store-s3cret")) == LEAF_DER

    @pytest.mark.parametrize("line_break", ["\n", "\\n", " "], ids=["lines", "escaped", "blanks"])
    def test_from_settings_however_their_lines_were_joined(self, line_break: str) -> None:
        key = LEAF.private_key_pem.bytes().decode().strip().replace("\n", line_break)
        chain = CERTIFICATES.decode().strip().replace("\n", line_break)
        assert shown_by(StoreSettings(ssl_keystore_key=key, ssl_keystore_certificate_chain=chain)) == LEAF_DER

    @pytest.mark.parametrize(
        ("data", "settings", "complaint"),
        [
            (CERTIFICATES, {}, "there is no private key in it"),
            (LEAF.private_key_pem.bytes(), {}, "there is no certificate in it"),
            (AUTHORITY.issue_cert("x").private_key_pem.bytes() + CERTIFICATES, {}, "does not match the private key"),
            (encrypted_key(b"s3cret").encode() + CERTIFICATES, {}, "set ssl.key.password"),
            (
                encrypted_key(b"s3cret").encode() + CERTIFICATES,
                {"ssl_key_password": "wr0ng"},
                "is ssl.key.password right?",
            ),
            (P12, {"ssl_keystore_password": "wr0ng"}, "ssl.keystore.password is wrong"),
            (b"nothing", {"ssl_keystore_type": "PEM"}, "there is no PEM in it"),
            (b"nothing", {}, "not a PKCS12 file"),
            (b"\xfe\xed\xfe\xed\0\0\0\2", {}, "keytool -importkeystore"),
        ],
        ids=[
            "no key",
            "no certificate",
            "another key",
            "no password",
            "wrong",
            "wrong of PKCS12",
            "no PEM",
            "no PKCS12",
            "JKS",
        ],
    )
    def test_that_cannot_be_used_is_told_by_setting_and_reason(
        self, tmp_path: Path, data: bytes, settings: dict[str, str], complaint: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            load_key(context(), key_store(tmp_path / "k", data, **settings))
        assert f"ssl.keystore.location={tmp_path / 'k'}" in str(caught.value)
        assert complaint in str(caught.value)
        assert "s3cret" not in str(caught.value)
        assert "wr0ng" not in str(caught.value)

    def test_that_is_not_there(self) -> None:
        with pytest.raises(ConfigError, match=r"ssl\.keystore\.location=/no/such: No such file"):
            load_key(context(), StoreSettings(ssl_keystore_location="/no/such"))


class TestTrust:
    def test_from_a_pem_file(self, tmp_path: Path) -> None:
        AUTHORITY.cert_pem.write_to_path(tmp_path / "ca")
        into = context()
        load_trust(into, StoreSettings(ssl_truststore_location=str(tmp_path / "ca")))
        assert len(into.get_ca_certs()) == 1

    def test_from_pkcs12(self, tmp_path: Path) -> None:
        encryption = serialization.BestAvailableEncryption(b"store-s3cret")
        (tmp_path / "ca").write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [ROOT], encryption))
        into = context()
        load_trust(
            into, StoreSettings(ssl_truststore_location=str(tmp_path / "ca"), ssl_truststore_password="store-s3cret")
        )
        assert len(into.get_ca_certs()) == 1

    def test_from_a_setting(self) -> None:
        into = context()
        text = AUTHORITY.cert_pem.bytes().decode().replace("\n", " ")
        load_trust(into, StoreSettings(ssl_truststore_certificates=text))
        assert len(into.get_ca_certs()) == 1

    def test_without_a_certificate(self, tmp_path: Path) -> None:
        (tmp_path / "ca").write_bytes(LEAF.private_key_pem.bytes())
        with pytest.raises(ConfigError, match="there is no certificate in it"):
            load_trust(context(), StoreSettings(ssl_truststore_location=str(tmp_path / "ca")))


def test_settings_show_no_secret() -> None:
    secrets = StoreSettings(ssl_key_password="s3cret", ssl_keystore_password="s3cret", ssl_keystore_key="s3cret")
    assert "s3cret" not in repr(secrets)
