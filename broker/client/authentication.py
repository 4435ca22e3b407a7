"""TLS and SASL on the client's side: the TLS context and handshake, the login, and errors that say what to set.

Called by cluster.py, which shares one TLS context among its connections, and by broker_connection.py. Sockets are
non-blocking. The login is PLAIN or SCRAM, with SaslHandshake version 1 and SaslAuthenticate. A failed login raises
AuthenticationFailed, which is not retriable and never contains the password.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from broker.client.client_settings import ClientSettings, Login
from broker.errors import AuthenticationFailed, ConfigError, ConnectionFailed, ErrorCode, PykafkaError, error_name
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.security.scram import LoginRefused, ScramClient, ScramMechanism
from broker.security.stores import has_key, has_trust, load_key, load_pem_key, load_trust, read_store

__all__ = ["client_context", "log_in", "start_tls", "tls_failure", "wait_for"]

_MEANINGS = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate; set ssl.keystore.location, or ssl.certificate.location "
    "and ssl.key.location",
    "UNKNOWN_CA": "it does not trust the client's certificate (ssl.keystore.location, ssl.certificate.location)",
    "BAD_CERTIFICATE": "it refuses the client's certificate, or requires one (ssl.keystore.location)",
    "CERTIFICATE_EXPIRED": "the client's certificate has expired (ssl.keystore.location, ssl.certificate.location)",
    "HANDSHAKE_FAILURE": "it accepts none of the TLS versions or ciphers, or requires a client certificate",
}
"""How the reason of an alert ends → what the broker means."""
_MAYBE_PLAINTEXT = ": is it a TLS listener, or does it want security.protocol=PLAINTEXT?"
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})


def client_context(settings: ClientSettings) -> ssl.SSLContext | None:
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


def _load_trusted(context: ssl.SSLContext, settings: ClientSettings) -> None:
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
    """The error for the user. Missing trust is not retriable, a broken stream is."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = error.verify_message
        if "match" in what:
            return AuthenticationFailed(
                f"{address}: {what.rstrip('.')}; use the host name in the certificate, or switch the check off with "
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
        return  # closed by another thread: the next read or write raises
    left = deadline - time.monotonic()
    if left <= 0 or not poller.poll(left * 1000 + 1):
        raise TimeoutError


Ask = Callable[[ApiKey, Mapping[str, Any]], Any]


def log_in(login: Login, ask: Ask, address: str) -> int:
    """Log in with `ask(api, body)`, which returns the decoded answer. Returns the session's lifetime in ms, 0 for ever.

    Raises AuthenticationFailed, and what `ask` raises.
    """
    answer = ask(ApiKey.SASL_HANDSHAKE, {"mechanism": login.mechanism})
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(f"{address} does not offer sasl.mechanism={login.mechanism}; it has {offered}")
    if answer.error_code is ErrorCode.illegal_sasl_state:
        raise AuthenticationFailed(f"{address} requires no login: set security.protocol to PLAINTEXT or SSL")
    if answer.error_code is not ErrorCode.none:
        raise AuthenticationFailed(f"{address} refused the SASL handshake: {error_name(answer.error_code)}")

    def send(token: bytes) -> Any:
        answer = ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token})
        if answer.error_code is not ErrorCode.none:
            raise AuthenticationFailed(
                f"{address} refused the login of user {login.user!r} by {login.mechanism}: "
                f"{answer.error_message or error_name(answer.error_code)}; are sasl.username and sasl.password right?"
            )
        return answer

    if login.mechanism == "PLAIN":
        return _lifetime_ms(send(f"\0{login.user}\0{login.password}".encode()))
    scram = ScramClient(ScramMechanism(login.mechanism), login.user, login.password)
    try:
        proof = scram.final(send(scram.first()).auth_bytes)
        last = send(proof)
        scram.verify(last.auth_bytes)
    except LoginRefused as error:
        raise AuthenticationFailed(f"{address}: the login of user {login.user!r} failed: {error}") from None
    return _lifetime_ms(last)


def _lifetime_ms(answer: Any) -> int:
    return to_ms(field(answer, "session_lifetime"))
