"""TLS on the broker's side: contexts from settings, and the encrypted stream between a socket and a connection.

Made by the listener. `TlsStream` is the protocol of asyncio's transport, and the transport that the connection writes
to. It differs from asyncio's own TLS in three ways: it counts as a connection from the first byte on, it sends the peer
an alert when the handshake fails, and it has no buffers. Received bytes are decrypted into the connection's buffer at
once; written bytes wait only in the socket's transport, whose water marks pause the connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from broker.config.security_settings import ListenerSecurity, SecuritySettings
from broker.errors import ConfigError
from broker.security.stores import StoreSettings, has_key, has_trust, load_key, load_trust

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 10.0
SLICE_BYTES: Final = 64 * 1024
"""Bytes encrypted at a time, because OpenSSL's buffers never shrink."""
_SCRATCH = bytearray(128 * 1024)
"""Shared by all streams: asyncio fills it and it is emptied in the same step."""
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"})
_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"
"""The alert "protocol version". OpenSSL sends none when the peer does not speak TLS. Plaintext clients that know the
alert report the cause (librdkafka, and ours)."""
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_SHORT_NAMES = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


_Version = tuple[int, int, int] | None
"""Of a file: inode, size, time of its last change."""


def server_context(security: ListenerSecurity) -> ssl.SSLContext:
    """The SSL context of one listener. Raises ConfigError."""
    settings, name = security.settings, security.listener.name
    if not has_key(settings):
        raise ConfigError(
            f"listener {name} speaks TLS and has no key: set ssl.keystore.location to a PEM file of the private key "
            f"and its certificates, or listener.name.{name.lower()}.ssl.keystore.location"
        )
    context = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    load_key(context, settings)
    context.verify_mode = _CLIENT_AUTH[settings.ssl_client_auth]
    if has_trust(settings):
        load_trust(context, settings)
    elif context.verify_mode is not ssl.CERT_NONE:
        raise ConfigError(
            f"listener {name}: ssl.client.auth={settings.ssl_client_auth} needs ssl.truststore.location, "
            "the certificates that those of clients are signed with"
        )
    return context


def peer_context(security: ListenerSecurity) -> ssl.SSLContext:
    """The SSL context for connections to this listener of other brokers, as the settings of the own one say.

    Raises ConfigError.
    """
    settings = security.settings
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings)
    context.check_hostname = settings.ssl_endpoint_identification_algorithm.lower() == "https"
    if has_trust(settings):
        load_trust(context, settings)
    else:
        context.load_default_certs()
    if has_key(settings):
        load_key(context, settings)
    return context


def _context(protocol: ssl._SSLMethod, settings: SecuritySettings) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    wanted = [ssl.TLSVersion[one.replace(".", "_")] for one in settings.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(wanted), max(wanted)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if settings.ssl_cipher_suites:
        try:
            context.set_ciphers(":".join(settings.ssl_cipher_suites))
        except ssl.SSLError:
            raise ConfigError(
                f"ssl.cipher.suites={','.join(settings.ssl_cipher_suites)}: OpenSSL knows none of them; its names look "
                "like ECDHE-RSA-AES256-GCM-SHA384"
            ) from None
    return context


class RenewedContext:
    """The `context` of one listener, made again when the files of its key and certificates change, as when these are
    renewed. Connections keep the one that they were opened with."""

    def __init__(self, name: str, settings: StoreSettings, make: Callable[[], ssl.SSLContext]) -> None:
        """`name` says in the log whose it is. Raises ConfigError if `make` does."""
        self._name = name
        self._files = [path for path in (settings.ssl_keystore_location, settings.ssl_truststore_location) if path]
        self._make = make
        self._versions = self._look()
        self.context = make()

    def renew(self) -> bool:
        """Make the context again if a file has changed; whether it was.

        Files that cannot be used are told once, and the context stays: a file may be half written, and its next
        version is looked at again.
        """
        found = self._look()
        if found == self._versions:
            return False
        self._versions = found
        try:
            self.context = self._make()
        except ConfigError as error:
            logger.error("%s: the changed certificates cannot be used, those from before stay: %s", self._name, error)
            return False
        logger.info("%s: new connections use the changed certificates in %s", self._name, ", ".join(self._files))
        return True

    def _look(self) -> list[_Version]:
        return [_version(path) for path in self._files]


def _version(path: str) -> _Version:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def distinguished_name(certificate: Mapping[str, Any] | None) -> str | None:
    """`CN=alice,O=…` of a client's certificate, in Java's notation (RFC 2253); None without a certificate."""
    if not certificate:
        return None
    parts: Iterable[Any] = reversed(certificate["subject"])
    names = ("+".join(f"{_SHORT_NAMES.get(key, key)}={_escaped(value)}" for key, value in part) for part in parts)
    return ",".join(names)


def _escaped(value: str) -> str:
    text = "".join(f"\\{one}" if one in ',+"\\<>;' else one for one in value)
    return f"\\{text}" if text.startswith(("#", " ")) else text


class Secured(Protocol):
    """A connection, as a stream sees it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def eof_received(self) -> bool: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def secured(self, name: str | None) -> None:
        """Called after the handshake."""

    def close(self, reason: str, text: str = "") -> None: ...


class TlsStream(asyncio.Transport, asyncio.BufferedProtocol):
    """Stands between a socket's transport and a connection."""

    def __init__(self, connection: Secured, context: ssl.SSLContext) -> None:
        super().__init__()
        self._connection = connection
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._loop = asyncio.get_running_loop()
        self._shaken = False
        self._reading = True
        self._ended = False
        """Whether the peer has hung up. The socket is not read then: what follows would only wait in our buffer."""
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._too_slow)
        self._connection.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(_SCRATCH)

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(memoryview(_SCRATCH)[:nbytes])
        self._advance()

    def eof_received(self) -> bool:
        return self._shaken and self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # --- what the connection calls

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._transport.is_closing():
            return
        view = memoryview(data)
        try:
            for start in range(0, len(view), SLICE_BYTES):
                piece = view[start : start + SLICE_BYTES]
                while piece:
                    piece = piece[self._tls.write(piece) :]
                self._flush()
        except ssl.SSLError as error:
            self._connection.close("tls", f"TLS broke: {_reason(error)}")

    def close(self) -> None:
        if self._shaken and not self._transport.is_closing():
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # our close_notify is written; we do not wait for the peer's
            self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def is_reading(self) -> bool:
        return self._reading and not self._transport.is_closing()

    def pause_reading(self) -> None:
        self._reading = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if not self._ended:
            self._transport.resume_reading()
            self._loop.call_soon(self._read)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    # --- inside

    def _advance(self) -> None:
        if self._shaken:
            self._read()
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            if self._outgoing.pending:
                self._flush()  # sends the alert
            elif error.reason in _NO_TLS:
                self._transport.write(_ALERT)
            self._connection.close("tls", f"no TLS handshake: {_reason(error)}")
            return
        self._flush()
        self._shaken = True
        self._cancel_timer()
        self._connection.secured(distinguished_name(self._tls.getpeercert()))
        self._read()

    def _read(self) -> None:
        """Pass decrypted bytes to the connection, as many at a time as its buffer holds."""
        while self._reading and self._shaken and not self._transport.is_closing():
            view = self._connection.get_buffer(-1)
            filled, size, ended = 0, len(view), False
            try:
                while filled < size:
                    count: Any = self._tls.read(size - filled, view[filled:])
                    ended = not count
                    if ended:
                        break
                    filled += count
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                ended = True
            except ssl.SSLError as error:
                self._flush()
                self._connection.close("tls", f"TLS broke: {_reason(error)}")
                return
            view.release()  # the connection may resize the buffer under it
            self._flush()  # perhaps an answer to a key update
            if filled:
                self._connection.buffer_updated(filled)
            if ended:
                self._hang_up()
            if filled < size:
                return

    def _hang_up(self) -> None:
        """The peer has sent that it ends."""
        self._ended = True
        self._transport.pause_reading()
        if not self._connection.eof_received():
            self._transport.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _too_slow(self) -> None:
        self._connection.close("tls", f"no TLS handshake within {HANDSHAKE_TIMEOUT_S:g} s")
        self._transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _reason(error: ssl.SSLError) -> str:
    """`WRONG_VERSION_NUMBER` → `wrong version number`, plus OpenSSL's message about a certificate."""
    detail = getattr(error, "verify_message", "")
    text = (error.reason or str(error)).replace("_", " ").lower()
    return f"{text}: {detail}" if detail else text
