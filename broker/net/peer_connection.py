"""A connection from this broker to another one, on the event loop.

One request is under way at a time. It connects when it is first used, and again when it is used after it broke. There
is no ApiVersions request: brokers of one cluster run the same software, so callers name the version. A response goes
from the socket into a buffer that the next response overwrites, so that a follower's records are never copied. TLS and
the login are those of the inter-broker listener (peer_security.py). Before a login expires (KIP-368), the next request
connects and logs in again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.errors import ConnectionFailed, ProtocolError, PykafkaError, RequestTimedOut
from broker.keep_alive import keep_alive
from broker.net.peer_security import PeerSecurity
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response, encode_request
from broker.protocol.sasl_login import sasl_login
from broker.security.login import Login
from broker.security.tls_errors import tls_failure

CONNECT_TIMEOUT_S: Final = 10.0
PEER_SILENT_S: Final = 10.0
"""A connection breaks when the other host has acknowledged nothing for so long. A broker that is only busy has a kernel
that does; and it reads what it is sent, or is frozen."""
SMALL_BYTES: Final = 64 * 1024
"""The buffer that a connection keeps. A longer response gets a larger one, which is kept while it is needed."""
MOST_SMALL: Final = 64
"""After so many responses in turn that fit in the small buffer, the larger one is freed."""
_RENEW_AT: Final = 0.85
"""The share of a login's lifetime after which the connection is replaced, as in Kafka's clients."""
_LOGIN_VERSIONS: Final = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 2}
_LENGTH = struct.Struct(">i")
_CORRELATION_ID_AT: Final = 8
"""Where a request frame has its correlation id: after length, API key and version."""


Take = Callable[[memoryview], bytearray | None]
"""Takes a response and returns the next request to send at once, or None."""


class PeerConnection:
    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        security: PeerSecurity = PeerSecurity(),  # noqa: B008 (immutable)
        timeout_s: float = 30.0,
        max_response_bytes: int = 2**31 - 1,
    ) -> None:
        """`timeout_s`: how long the peer may send nothing while a response is due."""
        self.host = host
        self.port = port
        self.client_id = client_id
        self._security = security
        self._login_expires = math.inf
        self._timeout_s = timeout_s
        self._max_response_bytes = max_response_bytes
        self._stream: _Stream | None = None
        self._turn = asyncio.Lock()
        self._correlation_id = 0
        """Of the last request."""

    def __repr__(self) -> str:
        return f"<PeerConnection {self.address}{'' if self._stream else ' closed'}>"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_waiting(self) -> bool:
        """Whether a request is under way of whose response nothing has arrived."""
        return self._stream is not None and self._stream.is_waiting

    async def request(self, api: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The decoded response to a request with these fields (protocol/messages.py). Raises as `fetch`."""
        async with self._turn:
            payload = await self._exchange(bytearray(encode_request(api, version, 0, self.client_id, fields)))
            return decode_response(api, version, payload)[1]

    async def fetch(self, frame: bytearray, take: Take | None = None) -> memoryview:
        """Send a whole frame, whose correlation id is set here; the response from its correlation id on.

        `take` gets each response in the step in which its last byte arrives. While it returns another frame, that is
        sent at once and this goes on waiting. What `take` raises is raised here. The response is valid until the next
        request. Raises ConnectionFailed and RequestTimedOut, which are retriable, AuthenticationFailed, ProtocolError.
        The connection is closed then.
        """
        async with self._turn:
            return await self._exchange(frame, take)

    async def closed(self) -> None:
        """Return when there is no open connection, also when the peer has closed it."""
        if self._stream is not None:
            await self._stream.closed.wait()

    def close(self) -> None:
        """Close the connection; a request that is under way raises ConnectionFailed. The next one connects again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end(ConnectionFailed(f"the connection to {self.address} was closed"))

    async def _exchange(self, frame: bytearray, take: Take | None = None) -> memoryview:
        stream = self._stream
        if stream is not None and self._login_has_expired():
            self.close()
            stream = None
        if stream is None or stream.is_closed:
            stream = self._stream = await self._connect()

        def take_ours(payload: memoryview) -> bytearray | None:
            if take is None or not self._is_ours(payload) or self._login_has_expired():
                return None
            following = take(payload)
            return None if following is None else self._numbered(following)

        try:
            payload = await stream.exchange(self._numbered(frame), take_ours)
            if not self._is_ours(payload):
                found, number = _LENGTH.unpack_from(payload)[0], self._correlation_id
                raise ProtocolError(f"{self.address}: the response to request {number} came as number {found}")
        except BaseException:  # also when the caller is cancelled: nobody will read the response
            self.close()
            raise
        return payload

    def _login_has_expired(self) -> bool:
        return asyncio.get_running_loop().time() > self._login_expires

    def _numbered(self, frame: bytearray) -> bytearray:
        """`frame` with the next correlation id."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        _LENGTH.pack_into(frame, _CORRELATION_ID_AT, self._correlation_id)
        return frame

    def _is_ours(self, payload: memoryview) -> bool:
        return bool(_LENGTH.unpack_from(payload)[0] == self._correlation_id)

    async def _connect(self) -> _Stream:
        loop, tls = asyncio.get_running_loop(), self._security.tls

        def protocol() -> _Stream:
            return _Stream(self.address, self._timeout_s, self._max_response_bytes)

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, stream = await loop.create_connection(
                    protocol, self.host, self.port, ssl=tls, server_hostname=None if tls is None else self.host
                )
        except TimeoutError:
            raise ConnectionFailed(f"no connection to {self.address} within {CONNECT_TIMEOUT_S:g} s") from None
        except ssl.SSLError as error:
            raise tls_failure(self.address, error) from None
        except OSError as error:
            raise ConnectionFailed(f"no connection to {self.address}: {error}") from error
        _set_option(transport, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (sock := transport.get_extra_info("socket")) is not None:
            keep_alive(sock, PEER_SILENT_S)
        self._login_expires = math.inf
        if self._security.login is not None:
            try:
                lifetime_ms = await self._log_in(stream, self._security.login)
            except BaseException:
                stream.end(ConnectionFailed(f"the login to {self.address} did not succeed"))
                raise
            if lifetime_ms:
                self._login_expires = loop.time() + lifetime_ms * _RENEW_AT / 1000
        return stream

    async def _log_in(self, stream: _Stream, login: Login) -> int:
        """Returns the lifetime in ms, 0 for ever.

        Raises AuthenticationFailed, and what `exchange` and `login.begin` raise.
        """
        exchange = await asyncio.to_thread(login.begin, self.host) if login.waits else login.begin(self.host)
        messages = sasl_login(login, exchange, self.address)
        try:
            api, fields = next(messages)
            while True:
                version = _LOGIN_VERSIONS[api]
                frame = bytearray(encode_request(api, version, 0, self.client_id, fields))
                answer = decode_response(api, version, await stream.exchange(frame))[1]
                api, fields = messages.send(answer)
        except StopIteration as end:
            return int(end.value)


def _set_option(transport: asyncio.BaseTransport, level: int, option: int, value: int | bytes) -> None:
    """Of the socket, if there is one: with TLS it may be gone before the protocol hears of it."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)


class _Stream(asyncio.BufferedProtocol):
    """The open connection: one frame out, one frame in."""

    def __init__(self, address: str, timeout_s: float, max_bytes: int) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._small = bytearray(SMALL_BYTES)
        self._large = bytearray()
        self._small_in_turn = 0
        self._view = memoryview(self._small)
        self._filled = 0
        self._size = 0
        """Bytes of the frame with its length; 0 while the length is not known."""
        self._waiter: asyncio.Future[memoryview] | None = None
        self._take: Take | None = None
        self._progress = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self.closed.is_set()

    @property
    def is_waiting(self) -> bool:
        return self._waiter is not None and not self._filled

    async def exchange(self, frame: bytearray, take: Take | None = None) -> memoryview:
        """Send `frame`, and then what `take` returns; the payload of the first response for which it returns None.

        Raises PykafkaError, and what `take` raises.
        """
        if self.is_closed:
            raise ConnectionFailed(f"the connection to {self._address} is closed")
        self._waiter, self._take = self._loop.create_future(), take
        self._send(frame)
        self._timer = self._loop.call_later(self._timeout_s, self._check_progress)
        return await self._waiter

    def _send(self, frame: bytearray) -> None:
        self._view, self._filled, self._size = memoryview(self._small), 0, 0
        self._progress = self._loop.time()
        self._transport.write(frame)

    def end(self, error: PykafkaError) -> None:
        """Close the connection, and let the request that is under way raise `error`."""
        if not self.is_closed:
            self.closed.set()
            self._forget_unsent()
            self._transport.abort()
        waiter = self._end_wait()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _forget_unsent(self) -> None:
        """What the peer has not got of a request is never to arrive: the caller may have sent it again by then.

        Without this the kernel goes on sending it after a cut is healed. A late marker would end a later transaction.
        """
        if self._waiter is not None:
            _set_option(self._transport, socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _end_wait(self) -> asyncio.Future[memoryview] | None:
        if self._timer is not None:
            self._timer.cancel()
        waiter, self._waiter = self._waiter, None
        return waiter

    def _check_progress(self) -> None:
        left = self._progress + self._timeout_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_progress)
        else:
            self.end(RequestTimedOut(f"{self._address} sent nothing for {self._timeout_s:g} s"))

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        if isinstance(exc, ssl.SSLError):  # with TLS 1.3 a refused certificate shows only now
            self.end(tls_failure(self._address, exc))
        else:
            self.end(ConnectionFailed(f"{self._address} closed the connection{f': {exc}' if exc else ''}"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._progress = self._loop.time()
        if self._waiter is None:
            self.end(ProtocolError(f"{self._address} sent bytes that nobody asked for"))
            return
        if not self._size and not self._begin_frame():
            return
        if self._filled > self._size:
            self.end(ProtocolError(f"{self._address} sent {self._filled - self._size} bytes after its response"))
        elif self._filled == self._size:
            self._received(self._view[_LENGTH.size : self._size])

    def _received(self, payload: memoryview) -> None:
        following, error = None, None
        if self._take is not None and self._waiter is not None and not self._waiter.done():
            try:
                following = self._take(payload)
            except Exception as failure:
                error = failure
        if following is not None and not self.is_closed:
            self._send(following)
            return
        waiter = self._end_wait()
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(payload)
        else:
            waiter.set_exception(error)

    def _begin_frame(self) -> bool:
        """Read the length and choose the buffer. False while more is needed, and after an impossible length."""
        if self._filled < _LENGTH.size:
            return False
        length = _LENGTH.unpack_from(self._view)[0]
        if not _LENGTH.size <= length <= self._max_bytes:
            text = f"{self._address} announced a response of {length} bytes; at most {self._max_bytes} are accepted"
            self.end(ProtocolError(text))
            return False
        self._size = _LENGTH.size + length
        if self._size > len(self._small):
            self._small_in_turn = 0
            if self._size > len(self._large):
                self._large = bytearray(self._size)
            large = memoryview(self._large)
            large[: self._filled] = self._view[: self._filled]
            self._view = large
        elif self._large:
            self._small_in_turn += 1
            if self._small_in_turn > MOST_SMALL:
                self._large = bytearray()
        return True
