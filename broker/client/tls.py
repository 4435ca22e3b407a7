"""TLS on the client's side: the context from settings, the handshake, and what its errors mean for a user.

Called by node_pool.py (one context for all its connections) and connection.py. Sockets are non-blocking.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from pathlib import Path

from broker.client.security_settings import ClientSecuritySettings
from broker.errors import AuthenticationFailed, ConfigError, ConnectionFailed, PykafkaError
from broker.security.stores import has_key, has_trust, load_key, load_pem_key, load_trust, read_store

__all__ = ["client_context", "start_tls", "tls_failure", "wait_for"]

_MEANINGS = {
    "CERTIFICATE_REQUIRED": "it asks for a client certificate; set ssl.keystore.location, or ssl.certificate.location "
    "and ssl.key.location",
    "UNKNOWN_CA": "it does not trust the client's certificate (ssl.keystore.location, ssl.certificate.location)",
    "BAD_CERTIFICATE": "it does not take the client's certificate, or asks for one (ssl.keystore.location)",
    "CERTIFICATE_EXPIRED": "the client's certificate has expired (ssl.keystore.location, ssl.certificate.location)",
    "HANDSHAKE_FAILURE": "it agrees to no version of TLS, no cipher, or asks for a client certificate",
}
"""How the reason of an alert ends → what the broker means."""
_MAYBE_PLAINTEXT = ": is it a TLS listener, or does it want security.protocol=PLAINTEXT?"
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})


def client_context(settings: ClientSecuritySettings) -> ssl.SSLContext | None:
    """None where the protocol is not encrypted. Raises ConfigError for files that cannot be used."""
    if not settings.encrypted:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.check_hostname
    _load_trusted(context, settings)
    if settings.ssl_certificate_location and settings.ssl_key_location:
        where = f"ssl.certificate.location={settings.ssl_certificate_location}, ssl.key.location"
        key = read_store(settings.ssl_key_location, "ssl.key.location")
        chain = read_store(settings.ssl_certificate_location, "ssl.certificate.location")
        load_pem_key(context, (key + b"\n" + chain).decode(errors="replace"), settings.ssl_key_password, where)
    elif has_key(settings):
        load_key(context, settings)
    return context


def _load_trusted(context: ssl.SSLContext, settings: ClientSecuritySettings) -> None:
    location = settings.ssl_ca_location
    if location:
        path = Path(location)
        try:
            context.load_verify_locations(**({"capath": location} if path.is_dir() else {"cafile": location}))
        except ssl.SSLError as error:
            raise ConfigError(
                f"ssl.ca.location={location}: there is no PEM certificate in it ({error.reason})"
            ) from None
        except OSError as error:
            raise ConfigError(f"ssl.ca.location={location}: {error.strerror}") from None
    if has_trust(settings):
        load_trust(context, settings)
    elif not location:
        context.load_default_certs()


def start_tls(sock: socket.socket, context: ssl.SSLContext, host: str, address: str, timeout_s: float) -> ssl.SSLSocket:
    """Shake hands over a connected, non-blocking socket. Raises ConnectionFailed and AuthenticationFailed."""
    deadline = time.monotonic() + timeout_s
    secure, done = None, False
    try:
        secure = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        _shake_hands(secure, deadline)
        done = True
        return secure
    except ssl.SSLError as error:
        raise tls_failure(address, error) from None
    except TimeoutError:
        raise ConnectionFailed(
            f"{address} did not finish the TLS handshake within {timeout_s:g} s: is it a TLS listener?"
        ) from None
    except (OSError, ValueError) as error:
        raise ConnectionFailed(f"{address} hung up in the TLS handshake ({error}){_MAYBE_PLAINTEXT}") from None
    finally:
        if secure is not None and not done:
            secure.close()


def _shake_hands(secure: ssl.SSLSocket, deadline: float) -> None:
    while True:
        try:
            return secure.do_handshake()
        except ssl.SSLWantReadError:
            wait_for(secure, select.POLLIN, deadline)
        except ssl.SSLWantWriteError:
            wait_for(secure, select.POLLOUT, deadline)


def tls_failure(address: str, error: ssl.SSLError) -> PykafkaError:
    """What a user is told; trust that is missing is not retriable, a stream that broke is."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = error.verify_message
        if "match" in what:
            return AuthenticationFailed(
                f"{address}: {what.rstrip('.')}; name the broker as its certificate does, or leave the check out with "
                "ssl.endpoint.identification.algorithm=none"
            )
        return AuthenticationFailed(
            f"{address}: its certificate is not trusted ({what}); set ssl.ca.location or ssl.truststore.location to "
            "the certificate it is signed with"
        )
    for ending, meaning in _MEANINGS.items():
        if reason.endswith(ending):
            return AuthenticationFailed(f"{address} refused TLS: {meaning}")
    if reason in _NOT_TLS:
        return AuthenticationFailed(
            f"{address} does not speak TLS: is it a listener for security.protocol=PLAINTEXT or SASL_PLAINTEXT?"
        )
    if isinstance(error, ssl.SSLEOFError):
        return ConnectionFailed(f"{address} hung up in the TLS handshake{_MAYBE_PLAINTEXT}")
    return ConnectionFailed(f"the TLS connection to {address} broke: {reason.replace('_', ' ').lower() or error}")


def wait_for(sock: socket.socket, event: int, deadline: float) -> None:
    """Wait until the socket can be read (POLLIN) or written (POLLOUT). Raises TimeoutError."""
    poller = select.poll()
    try:
        poller.register(sock, event)
    except (OSError, ValueError):
        return  # closed under our feet: the next read or write says so
    left = deadline - time.monotonic()
    if left <= 0 or not poller.poll(left * 1000 + 1):
        raise TimeoutError
