"""One TCP connection to one broker: connect, negotiate versions, send requests, receive responses. Blocking.

The constructor connects, does the TLS handshake and the SASL login where they are configured (authentication.py), and
asks for ApiVersions, so a `BrokerConnection` is ready as soon as it exists. For each API it uses the highest version
that both sides know (KIP-35, KIP-511). A broker answers the requests of a connection in the order they were sent:

- `request()` sends and waits for the response. It takes a lock, so threads may share a connection for it.
- `send()` and `receive()` pipeline requests. Then nobody else may use the connection.

While a quota throttles the client, the broker answers later, and time-outs begin later.

A time-out, an unexpected response or a broken socket closes the connection, because the position in the stream is
unknown then; open a new one. Errors: ConnectionFailed and RequestTimedOut (both name host:port and are retriable),
AuthenticationFailed, ProtocolError, UnsupportedVersion.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.client.authentication import is_ready, log_in, start_tls, wait_for
from broker.client.auto_closeable import AutoCloseable
from broker.client.tcp_connect import Dial, ways
from broker.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ErrorCode,
    ProtocolError,
    PykafkaError,
    RequestTimedOut,
    UnsupportedVersion,
    raise_for,
)
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response, field, known_versions, request_frame, to_ms
from broker.security.tls_errors import tls_failure

if TYPE_CHECKING:
    from broker.security.login import Login

HIGHEST_USED: Final[Mapping[ApiKey, int]] = {
    ApiKey.PRODUCE: 11,  # 12 begins transactions by itself (KIP-890), 13 names topics by id
    ApiKey.FETCH: 16,  # 17 is for replicas (KIP-853)
    ApiKey.LIST_OFFSETS: 9,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9,  # 10 names topics by id
    ApiKey.OFFSET_FETCH: 8,  # 9 is for the new group protocol (KIP-848)
    ApiKey.FIND_COORDINATOR: 3,  # 4 asks for several groups at once
    ApiKey.API_VERSIONS: 3,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,  # 4 is for brokers, about many transactions
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 4,  # 5 begins transactions by itself (KIP-890)
    ApiKey.END_TXN: 4,  # 5 bumps the epoch with every transaction (KIP-890)
    ApiKey.LIST_GROUPS: 5,
    ApiKey.DESCRIBE_GROUPS: 5,
}
"""Other APIs are used up to the highest version that kio has."""


def usable_versions(api: ApiKey) -> tuple[int, int]:
    """Lowest and highest version of `api` that this client can send. Raises UnsupportedVersion."""
    lowest, highest = known_versions(api)
    return lowest, min(highest, HIGHEST_USED.get(api, highest))


def choose_version(api: ApiKey, served: tuple[int, int] | None, *, at_most: int | None = None) -> int:
    """The highest version of `api` inside the broker's range `served`, no higher than `at_most`.

    Raises UnsupportedVersion, naming both ranges, when the two sides have none in common.
    """
    if served is None:
        raise UnsupportedVersion(f"the broker does not serve {api.name}")
    lowest, highest = usable_versions(api)
    if at_most is not None:
        highest = min(highest, at_most)
    chosen = min(highest, served[1])
    if chosen < max(lowest, served[0]):
        raise UnsupportedVersion(
            f"the broker serves {api.name} versions {served[0]} to {served[1]}, this client needs {lowest} to {highest}"
        )
    return chosen


OVERDUE_S: Final = 1.0
"""A broker that owes an answer for so long is watched. On a healthy cluster nearly every answer comes sooner."""
WATCH_EVERY_S: Final = 1.0

_MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
"""A longer response is not Kafka's: the port speaks HTTP, TLS or something else."""

_MOST_PARTS: Final = 512
"""Parts of a frame in one system call, which accepts twice as many."""

SOFTWARE: Final = {"client_software_name": "pykafka", "client_software_version": "1"}
"""The body of ApiVersions. Brokers show it in their metrics (KIP-511)."""

_RENEW_AT = 0.85
"""Share of a login's lifetime; Kafka's clients renew it between 85 and 95 %."""
_TLS_ALERT = b"\x15\x03"
_WRONG_LISTENER = (
    "; if its listener asks for a login or speaks TLS, set security.protocol, sasl.mechanism, sasl.username and "
    "sasl.password to what it wants"
)
_WHOLE_BYTES: Final = 256 << 10
"""For so much of a response it waits in one system call."""
_TIMEVAL = struct.Struct("@ll")
_LENGTH = struct.Struct(">i")
_CORRELATION_AND_ERROR = struct.Struct(">ih")


class Reply(NamedTuple):
    """An undecoded response. `payload` starts with the correlation id; it belongs to the caller."""

    api: ApiKey
    version: int
    correlation_id: int
    payload: memoryview


class _Sent(NamedTuple):
    api: ApiKey
    version: int
    correlation_id: int


class BrokerConnection(AutoCloseable):
    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "pykafka",
        timeout_s: float = 30.0,
        connect_timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
        proxy_url: str | None = None,
    ) -> None:
        """Connect, negotiate versions, and log in: at the first address of `host` where a broker answers.

        `timeout_s`: how long a reply may take (`request.timeout.ms`); `connect_timeout_s`: how long the
        connection itself may take (`socket.connection.setup.timeout.ms`), TLS included.
        """
        self.host = host
        self.port = port
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.allocate: Callable[[int], memoryview] = _zeroed
        """Returns the memory for a response of a size; its owner may replace it by a cheaper allocator."""
        self.watch: Callable[[], None] | None = None
        """Called every second while an answer is overdue; raises ConnectionFailed when the broker has gone."""
        self.overdue_s = OVERDUE_S
        """Longer where requests wait at the broker on purpose."""
        self.throttled_until = 0.0
        """Until then (monotonic) the broker handles no request of this connection: its quota is exceeded (KIP-219)."""
        self._lock = threading.Lock()
        self._next_correlation_id = 0
        self._sent: deque[_Sent] = deque()
        self._served: dict[int, tuple[int, int]] = {}
        self._chosen: dict[ApiKey, int] = {}
        self._answered = False
        self._login = login
        self._login_expires = math.inf
        self._socket: socket.socket | None = None
        failures: dict[str, ConnectionFailed | RequestTimedOut] = {}
        tried: list[str] = []
        for address, connect in ways(host, port, connect_timeout_s, proxy_url, silent_s=timeout_s):
            try:
                self._open(connect, tls, connect_timeout_s)
                return
            except (ConnectionFailed, RequestTimedOut) as error:
                failures[str(error)] = error
                tried.append(address)
        if len(tried) == 1:
            raise next(iter(failures.values()))
        raise ConnectionFailed(f"{'; '.join(failures)} (tried: {', '.join(tried)})")

    def __repr__(self) -> str:
        return f"<BrokerConnection {self.address}{'' if self._socket else ' closed'}>"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def closed(self) -> bool:
        return self._socket is None

    @property
    def certificate_ends_s(self) -> float | None:
        """When the broker's certificate ends, in Unix seconds; None without TLS, or if nobody has checked it."""
        sock = self._socket
        try:
            told = sock.getpeercert() if isinstance(sock, ssl.SSLSocket) else None
        except (ValueError, OSError):  # another thread has closed it
            return None
        return ssl.cert_time_to_seconds(str(told["notAfter"])) if told else None

    @property
    def in_flight(self) -> int:
        """The number of requests without a response yet."""
        return len(self._sent)

    @property
    def usable(self) -> bool:
        """Whether it is open, and the broker did not close it while it was idle."""
        sock = self._socket
        if sock is None:
            return False
        if self._sent or self._lock.locked():
            return True
        if self.login_is_old:
            return False  # whoever opens a new one has no need to wait for a login on this one
        return _is_quiet(sock)

    def usable_after_login(self) -> bool:
        """As `usable`, but a login that is old is renewed first, on this connection. Raises what `log_in` does."""
        if self.login_is_old and not self._sent and self._socket is not None and _is_quiet(self._socket):
            self.log_in()
        return self.usable

    @property
    def login_is_old(self) -> bool:
        """Whether the login expires soon. The broker hangs up on the first request after that (KIP-368)."""
        return time.monotonic() > self._login_expires

    def log_in(self) -> None:
        """Log in, or log in again, as KIP-368 has it: later requests follow in order. No request may be in flight.

        Raises AuthenticationFailed, and what `request` raises; the connection is of no use then.
        """
        if self._login is not None:
            lifetime_ms = log_in(self._login, self.request, self.host, self.address)
            self._login_expires = time.monotonic() + lifetime_ms * _RENEW_AT / 1000 if lifetime_ms else math.inf

    def _open(self, connect: Dial, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._socket = connect()
        try:
            if tls is not None:
                self._socket = start_tls(self._socket, tls, self.host, self.address, timeout_s)
            self._served = self._shake_hands()
            self.log_in()
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """For selectors. Raises ConnectionFailed when closed."""
        return self._open_socket().fileno()

    def version(self, api: ApiKey, *, at_most: int | None = None) -> int:
        """The version of `api` on this connection. Raises UnsupportedVersion."""
        if at_most is not None:
            return self._choose(api, at_most)
        chosen = self._chosen.get(api)
        if chosen is None:
            chosen = self._chosen[api] = self._choose(api, None)
        return chosen

    def request(self, api: ApiKey, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """Send, wait, and return the decoded body. Thread-safe."""
        with self._lock:
            self.send(api, body)
            return self.receive(timeout_s=timeout_s)[1]

    def send(
        self, api: ApiKey, body: Mapping[str, Any], *, at_most: int | None = None, expect_reply: bool = True
    ) -> int:
        """Send without waiting; returns the correlation id. `at_most` limits the version.

        `expect_reply=False` is for acks=0.
        """
        version = self.version(api, at_most=at_most)
        correlation_id = self._take_correlation_id()
        self._transmit(request_frame(api, version, correlation_id, self.client_id, body))
        if expect_reply:
            self._sent.append(_Sent(api, version, correlation_id))
        return correlation_id

    def receive(self, *, timeout_s: float | None = None) -> tuple[int, Any]:
        """Receive the next response, decoded: (correlation id, body)."""
        reply = self.receive_reply(timeout_s=timeout_s)
        try:
            correlation_id, body = decode_response(reply.api, reply.version, reply.payload)
        except ProtocolError as error:
            raise ProtocolError(f"{self.address}: {error}") from error
        self.throttled(to_ms(field(body, "throttle_time", 0)))
        return correlation_id, body

    def throttled(self, throttle_ms: int) -> None:
        """The last response had this throttle time. A reply to the next request comes as much later."""
        if throttle_ms > 0:
            self.throttled_until = time.monotonic() + throttle_ms / 1000

    def receive_reply(self, *, timeout_s: float | None = None) -> Reply:
        """Receive the next response as bytes, for callers that parse it themselves."""
        if not self._sent:
            raise ProtocolError(f"{self.address}: no request is waiting for a reply")
        sent = self._sent[0]
        begin = max(time.monotonic(), self.throttled_until)
        deadline = begin + (self.timeout_s if timeout_s is None else timeout_s)
        payload = self._read_frame(deadline, sent.api)
        if self._sent:  # else another thread has just closed it
            self._sent.popleft()
        correlation_id = _LENGTH.unpack_from(payload)[0]
        if correlation_id != sent.correlation_id:
            self.close()
            raise ProtocolError(
                f"{self.address}: the reply to request {sent.correlation_id} came as number {correlation_id}"
            )
        return Reply(*sent, payload)

    def wait_readable(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until a response, or a part of it, has arrived; False if none has."""
        sock = self._open_socket()
        decrypted = isinstance(sock, ssl.SSLSocket) and sock.pending() > 0  # bytes that no selector reports
        return decrypted or is_ready(sock, select.POLLIN, timeout_s)

    def close(self) -> None:
        """Close it; requests in flight get no response. May be called again, and from another thread."""
        sock, self._socket = self._socket, None
        self._sent.clear()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that is blocked in a read
            sock.close()

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionFailed(f"the connection to {self.address} is closed")
        return self._socket

    def _take_correlation_id(self) -> int:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        return correlation_id

    def _choose(self, api: ApiKey, at_most: int | None) -> int:
        try:
            return choose_version(api, self._served.get(api), at_most=at_most)
        except UnsupportedVersion as error:
            raise UnsupportedVersion(f"{self.address}: {error}") from None

    def _shake_hands(self) -> dict[int, tuple[int, int]]:
        """Ask for ApiVersions in the highest version; a broker without that version answers in version 0 (KIP-511)."""
        highest = usable_versions(ApiKey.API_VERSIONS)[1]
        for version in (highest, 0):
            payload = self._ask_versions(version)
            if len(payload) < _CORRELATION_AND_ERROR.size:
                raise ProtocolError(f"{self.address}: the reply to ApiVersions has {len(payload)} bytes")
            if _CORRELATION_AND_ERROR.unpack_from(payload)[1] != ErrorCode.unsupported_version:
                break
        _, body = decode_response(ApiKey.API_VERSIONS, version, payload)
        raise_for(body.error_code, f"{self.address} refused the ApiVersions handshake")
        return {int(row.api_key): (int(row.min_version), int(row.max_version)) for row in body.api_keys}

    def _ask_versions(self, version: int) -> memoryview:
        correlation_id = self._take_correlation_id()
        self._transmit(request_frame(ApiKey.API_VERSIONS, version, correlation_id, self.client_id, SOFTWARE))
        self._sent.append(_Sent(ApiKey.API_VERSIONS, version, correlation_id))
        return self.receive_reply().payload

    def _transmit(self, frame: Sequence[bytes | bytearray | memoryview]) -> None:
        sock, deadline = self._open_socket(), time.monotonic() + self.timeout_s
        rest = deque([memoryview(part) for part in frame])
        try:
            while rest:
                try:
                    _send_some(sock, rest)
                except (BlockingIOError, ssl.SSLWantWriteError):
                    self._wait(sock, select.POLLOUT, deadline)
                except ssl.SSLWantReadError:
                    self._wait(sock, select.POLLIN, deadline)
        except PykafkaError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise self._failure(error, f"took no more bytes for {self.timeout_s:g} s") from error

    def _read_frame(self, deadline: float, api: ApiKey) -> memoryview:
        """Read a whole response without its length, into a new buffer."""
        try:
            head = memoryview(bytearray(_LENGTH.size))
            self._fill(head, deadline)
            length = _LENGTH.unpack(head)[0]
            if not _LENGTH.size <= length <= _MAX_RESPONSE_BYTES:
                if head[:2] == _TLS_ALERT and not self._answered:
                    raise AuthenticationFailed(
                        f"{self.address} speaks TLS: set security.protocol=SSL, or SASL_SSL where it asks for a login"
                    )
                raise ProtocolError(f"{self.address} announced a reply of {length} bytes: is this a Kafka broker?")
            payload = self.allocate(length)
            self._fill(payload, deadline)
            self._answered = self._answered or api is not ApiKey.API_VERSIONS
        except BaseException as error:
            self.close()  # the rest of the frame is still unread
            if isinstance(error, OSError) and not isinstance(error, PykafkaError):
                raise self._failure(error, f"did not answer {api.name} in time") from error
            raise
        return payload

    def _failure(self, error: OSError, timed_out: str) -> PykafkaError:
        """What to raise for an error of the socket; `timed_out` is what the broker did if it was a time-out."""
        if isinstance(error, TimeoutError):
            return RequestTimedOut(f"{self.address} {timed_out}")
        if isinstance(error, ssl.SSLError):
            return tls_failure(self.address, error)
        return ConnectionFailed(f"the connection to {self.address} broke: {error}")

    def _fill(self, view: memoryview, deadline: float) -> None:
        """Read until `view` is full; bytes that have arrived need one system call, as do many that are to come."""
        sock = self._open_socket()
        filled, size = 0, len(view)
        whole = size >= _WHOLE_BYTES and not isinstance(sock, ssl.SSLSocket)
        while filled < size:
            rest = view[filled:] if filled else view
            try:
                if whole:
                    self._wait(sock, select.POLLIN, deadline)
                count = _receive_whole(sock, rest, deadline) if whole else sock.recv_into(rest)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(sock, select.POLLIN, deadline)
                continue
            except ssl.SSLWantWriteError:
                self._wait(sock, select.POLLOUT, deadline)
                continue
            if not count:
                hint = "" if self._answered else _WRONG_LISTENER
                raise ConnectionFailed(f"{self.address} closed the connection before it answered{hint}")
            filled += count

    def _wait(self, sock: socket.socket, event: int, deadline: float) -> None:
        """As `wait_for`, and `watch` is called while it lasts."""
        pause = self.overdue_s
        while self.watch is not None and pause < deadline - time.monotonic():
            if is_ready(sock, event, pause):
                return
            pause = WATCH_EVERY_S
            self.watch()
        wait_for(sock, event, deadline)


def _zeroed(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _receive_whole(sock: socket.socket, view: memoryview, deadline: float) -> int:
    """The kernel waits until `view` is full, the stream ends, an answer is overdue, or `deadline` has passed. A
    response of megabytes comes in dozens of pieces, and to wait for each from here costs a tenth of a read.

    A byte has arrived: then a signal ends the system call; Python would begin one without any again, with all of its
    time. Returns the number of bytes; 0 at the end of the stream."""
    left_us = int(min(max(deadline - time.monotonic(), 0), OVERDUE_S) * 1e6) + 1  # zero would be for ever
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(*divmod(left_us, 1_000_000)))
    sock.setblocking(True)
    try:
        return sock.recv_into(view, 0, socket.MSG_WAITALL)
    finally:
        sock.setblocking(False)


def _send_some(sock: socket.socket, parts: deque[memoryview]) -> None:
    """Send what the socket accepts at once, and remove it from `parts`."""
    many = not isinstance(sock, ssl.SSLSocket)
    sent = sock.sendmsg(itertools.islice(parts, _MOST_PARTS)) if many else sock.send(parts[0])
    while parts and sent >= len(parts[0]):
        sent -= len(parts.popleft())
    if sent:
        parts[0] = parts[0][sent:]


def _is_quiet(sock: socket.socket) -> bool:
    """Whether nothing has arrived that an idle broker does not send."""
    return not is_ready(sock, select.POLLIN, 0) or _only_tls(sock)


def _only_tls(sock: socket.socket) -> bool:
    """Whether only messages of TLS itself have arrived, such as a session ticket. An idle broker sends nothing else:
    other bytes, or the end of the stream, mean that the connection is unusable."""
    if not isinstance(sock, ssl.SSLSocket):
        return False
    try:
        sock.recv(1)
    except ssl.SSLWantReadError:
        return True
    except OSError:
        pass
    return False
