"""A connection from this broker to another one, on the event loop.

One request is under way at a time. It connects when it is first used, and again when it is used after it broke. There
is no ApiVersions request: brokers of one cluster run the same software, so callers name the version. A response goes
from the socket into a buffer that the next response overwrites, so that a follower's records are never copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any, Final

from broker.errors import AuthenticationFailed, ConnectionFailed, ProtocolError, PykafkaError, RequestTimedOut
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response, encode_request

__all__ = ["PeerConnection"]

CONNECT_TIMEOUT_S: Final = 10.0
SMALL_BYTES: Final = 64 * 1024
"""The buffer that a connection keeps. A longer response gets a larger one, which is kept while it is needed."""
MOST_SMALL: Final = 64
"""After so many responses in turn that fit in the small buffer, the larger one is freed."""
_LENGTH = struct.Struct(">i")
_CORRELATION_ID_AT: Final = 8
"""Where a request frame has its correlation id: after length, API key and version."""


class PeerConnection:
    """Requests to the broker at `host`:`port`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
        max_response_bytes: int = 2**31 - 1,
    ) -> None:
        """`timeout_s`: how long the peer may send nothing while a response is due."""
        self.host = host
        self.port = port
        self.client_id = client_id
        self._tls = tls
        self._timeout_s = timeout_s
        self._max_response_bytes = max_response_bytes
        self._stream: _Stream | None = None
        self._turn = asyncio.Lock()
        self._next_correlation_id = 0

    def __repr__(self) -> str:
        return f"<PeerConnection {self.address}{'' if self._stream else ' closed'}>"

    @property
    def address(self) -> str:
        """`host:port`, as in error messages."""
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

    async def fetch(self, frame: bytearray) -> memoryview:
        """Send a whole frame, whose correlation id is set here; the response from its correlation id on.

        The response is valid until the next request. Raises ConnectionFailed and RequestTimedOut, which are retriable,
        AuthenticationFailed, ProtocolError. The connection is closed then.
        """
        async with self._turn:
            return await self._exchange(frame)

    def close(self) -> None:
        """Close the connection; a request that is under way raises ConnectionFailed. The next one connects again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end(ConnectionFailed(f"the connection to {self.address} was closed"))

    async def _exchange(self, frame: bytearray) -> memoryview:
        stream = self._stream
        if stream is None or stream.is_closed:
            stream = self._stream = await self._connect()
        correlation_id = self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
        _LENGTH.pack_into(frame, _CORRELATION_ID_AT, correlation_id)
        try:
            payload = await stream.exchange(frame)
            found = _LENGTH.unpack_from(payload)[0]
            if found != correlation_id:
                raise ProtocolError(f"{self.address}: the response to request {correlation_id} came as number {found}")
        except BaseException:  # also when the caller is cancelled: nobody will read the response
            self.close()
            raise
        return payload

    async def _connect(self) -> _Stream:
        loop = asyncio.get_running_loop()

        def protocol() -> _Stream:
            return _Stream(self.address, self._timeout_s, self._max_response_bytes)

        server_hostname = self.host if self._tls is not None else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, stream = await loop.create_connection(
                    protocol, self.host, self.port, ssl=self._tls, server_hostname=server_hostname
                )
        except TimeoutError:
            raise ConnectionFailed(f"no connection to {self.address} within {CONNECT_TIMEOUT_S:g} s") from None
        except ssl.SSLError as error:
            raise AuthenticationFailed(f"TLS with {self.address} failed: {error}") from error
        except OSError as error:
            raise ConnectionFailed(f"no connection to {self.address}: {error}") from error
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream


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
        self._progress = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_closed = False

    @property
    def is_waiting(self) -> bool:
        return self._waiter is not None and not self._filled

    async def exchange(self, frame: bytearray) -> memoryview:
        """Send `frame` and return the payload of the response. Raises PykafkaError."""
        if self.is_closed:
            raise ConnectionFailed(f"the connection to {self._address} is closed")
        self._view, self._filled, self._size = memoryview(self._small), 0, 0
        self._waiter = self._loop.create_future()
        self._progress = self._loop.time()
        self._timer = self._loop.call_later(self._timeout_s, self._check_progress)
        self._transport.write(frame)
        return await self._waiter

    def end(self, error: PykafkaError) -> None:
        """Close the connection, and let the request that is under way raise `error`."""
        if not self.is_closed:
            self.is_closed = True
            self._transport.abort()
        waiter = self._end_wait()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

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
        self.is_closed = True
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
            waiter = self._end_wait()
            if waiter is not None and not waiter.done():
                waiter.set_result(self._view[_LENGTH.size : self._size])

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
