"""TLS and SASL on the client's side: the TLS context and handshake, the login, and errors that say what to set.

Called by cluster.py, which shares one TLS context among its connections, and by broker_connection.py. Sockets are
non-blocking.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.client.client_settings import ClientSettings
from broker.errors import ConfigError, ConnectionFailed
from broker.protocol.api_keys import ApiKey
from broker.security.stores import has_key, has_trust, load_key, load_pem_key, load_trust, read_store
from broker.security.tls_errors import MAYBE_PLAINTEXT, tls_failure

if TYPE_CHECKING:
    from broker.security.login import Login


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
        raise ConnectionFailed(f"{address} hung up in the TLS handshake ({error}){MAYBE_PLAINTEXT}") from None
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


def wait_for(sock: socket.socket, event: int, deadline: float) -> None:
    """Wait until the socket can be read (POLLIN) or written (POLLOUT). Raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0 or not is_ready(sock, event, left):
        raise TimeoutError


def is_ready(sock: socket.socket, event: int, timeout_s: float) -> bool:
    """As `wait_for`: False if it takes longer than `timeout_s`."""
    poller = select.poll()
    try:
        poller.register(sock, event)
    except (OSError, ValueError):
        return True  # closed by another thread: the next read or write raises
    return bool(poller.poll(math.ceil(timeout_s * 1000)))


def log_in(login: Login, ask: Callable[[ApiKey, Mapping[str, Any]], Any], host: str, address: str) -> int:
    """Log in with `ask(api, body)`, which returns the decoded answer. Returns the session's lifetime in ms, 0 for ever.

    Raises AuthenticationFailed, and what `ask` and `login.begin` raise.
    """
    from broker.protocol.sasl_login import sasl_login

    messages = sasl_login(login, login.begin(host), address)
    try:
        request = next(messages)
        while True:
            request = messages.send(ask(*request))
    except StopIteration as end:
        return int(end.value)
