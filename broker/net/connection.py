"""One client connection: frames in, responses out in the order of the requests.

Made by the listener. Requests are handled one after another, as in Kafka. While one waits (a long poll, a group join),
later frames are queued. Only records with acks=all do not wait for each other: the next are appended while the first
are on their way to the followers, who then fetch several batches at once. The connection stops reading when
`MAX_QUEUED` frames or `MAX_QUEUED_BYTES` wait, or the requests of all connections take too much memory. On a SASL
listener only the login is served until it has succeeded (sasl.py). With TLS, tls.py stands between the socket and this
class. response.py writes the responses.

A client above its quota is throttled (KIP-219): its response goes out at once, and the connection is muted for a time.
It still reads until the next request is there, so that it notices when the client leaves; then it stops reading.

What a client asked for ends when it hangs up or resets the connection, except for records with acks=0, whose producer
waits for no answer. They are handled all the same, as in Kafka (its `Selector` has `closingChannels`).
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from broker.errors import BrokerError, ProtocolError, UnsupportedVersion
from broker.metrics import ListenerMetrics
from broker.net.client_host import CLIENT_SILENT_S, has_vanished, watch_host
from broker.net.delayed_answer import DelayedAnswer
from broker.net.frame_reader import FrameReader, RequestMemory, RequestTooLarge
from broker.net.response import EncryptedWriter, Part, Response, ResponseWriter
from broker.net.router import Client, Router
from broker.net.sasl import SaslSession
from broker.net.steps import begin_step, end_step
from broker.net.throttling import ThrottledResponse
from broker.net.tls import TlsStream
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import read_head, wants_no_answer
from broker.security.addresses import plain_address
from broker.security.principal_mapping import NoMatchingRule, PrincipalMapping

logger = logging.getLogger(__name__)

CLIENT, MALFORMED, TOO_LARGE, UNSUPPORTED, FAILED = "client", "malformed", "too_large", "unsupported", "failed"
LOGIN, VANISHED = "login", "vanished"
MAX_QUEUED = 16
MAX_QUEUED_BYTES = 8 * 1024 * 1024
SLOWEST_BYTES_PER_S = 100_000
"""A frame may take longer than `socket.request.receive.timeout.ms` if it arrives at this rate on average."""


class ConnectionState(enum.Enum):
    """What a connection may do. It begins open and goes down this list; it may leave out any but the last.

    `_hang_up`, `_end_for` and `_end` are the only ways from one to another.
    """

    OPEN = "requests are read, handled and answered"
    HUNG_UP = "the peer is gone: requests that want no answer are handled, the others are dropped"
    LOST = "the same, and there is no transport any more"
    CLOSING = "the broker ends it: nothing is handled, and the transport sends what was written"
    OVER = "all memory is released, and the listener has forgotten it"


class Connection(asyncio.BufferedProtocol):
    """The asyncio protocol of a connection. Everything runs in the event loop's thread."""

    def __init__(
        self,
        router: Router,
        max_request_bytes: int,
        memory: RequestMemory,
        counts: ListenerMetrics,
        *,
        on_open: Callable[[Connection], None],
        on_close: Callable[[Connection], None],
        listener: str,
        sasl: SaslSession | None,
        mapping: PrincipalMapping,
    ) -> None:
        self._router = router
        self._mapping = mapping
        self._memory = memory
        self._counts = counts
        self._max_request_bytes = max_request_bytes
        largest = min(max_request_bytes, sasl.max_request_bytes) if sasl is not None else max_request_bytes
        self._reader = FrameReader(largest, self._memory, self._resume_reading)
        self._sasl = sasl
        self._logged_in = False
        self.state = ConnectionState.OPEN
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._frame_since = 0.0
        self._queue: collections.deque[tuple[bytearray, float]] = collections.deque()
        self._queued_bytes = 0
        self._held_bytes = 0
        self._holds_unanswered = False
        self._is_appended = False
        """Whether `_serving` and all of `_ahead` are answers of records that are in the log already."""
        self._ahead: collections.deque[tuple[DelayedAnswer[Response | ThrottledResponse], int]] = collections.deque()
        """Answers behind `_serving`, of records that were appended while it waits, with the bytes of each request."""
        self._ahead_bytes = 0
        self._untaken_bytes = 0
        self._serving: asyncio.Task[None] | DelayedAnswer[Response | ThrottledResponse] | None = None
        """The answer that is awaited, or that is being written. Later requests wait for its end."""
        self._mute: asyncio.TimerHandle | None = None
        """The end of the throttle time. Later requests wait for it, too."""
        self._unmuted = 0.0
        """The end of the last throttle time, before which no request could be handled."""
        self._transport: asyncio.Transport
        self._writer: ResponseWriter
        self.client = Client("", 0, listener, sasl=sasl)
        self._last_active = self._loop.time()
        self.end_reason = CLIENT
        """Why the connection ended, in one word, for the metrics."""
        self.is_outdated = False
        """Whether ApiVersions told a feature here that is no more. Who uses it is not answered, and connects anew."""

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writer = (EncryptedWriter if isinstance(transport, TlsStream) else ResponseWriter)(transport, self._loop)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.client = dataclasses.replace(self.client, host=plain_address(str(peer[0])), port=int(peer[1]))
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_host(sock)
        self._counts.accepted += 1
        self._on_open(self)

    def secured(self, name: str | None) -> None:
        """Called after the TLS handshake, with the distinguished name in the client's certificate."""
        if name is None or self._sasl is not None:
            return  # who logs in is known by that, as in Kafka
        try:
            principal = f"User:{self._mapping.user_of(name)}"
        except NoMatchingRule as error:
            self._counts.failed_authentications += 1
            self.close(LOGIN, str(error))
            return
        self.client = dataclasses.replace(self.client, principal=principal)
        self._counts.successful_authentications += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        now = self._last_active = self._loop.time()
        try:
            frames = self._reader.received(nbytes)
        except ProtocolError as error:
            self._refuse(error)
            return
        if frames:
            begin_step()
            try:
                for frame in frames:
                    self._receive(frame, now)
            finally:
                end_step(self._loop)
        if self._reader.partial:
            if frames or not self._frame_since:
                self._frame_since = now
            if self._reader.starved:
                self._transport.pause_reading()
        else:
            self._frame_since = 0.0

    def pause_writing(self) -> None:
        self._writer.pause()
        self._memory.release(self._untaken_bytes)
        self._untaken_bytes = self._transport.get_write_buffer_size()
        self._memory.hold(self._untaken_bytes)

    def resume_writing(self) -> None:
        self._writer.resume()
        self._memory.release(self._untaken_bytes)
        self._untaken_bytes = 0
        self._handle_queued()

    # --- its states

    def eof_received(self) -> bool:
        """Called when the peer hangs up. Returns whether the transport stays open."""
        return self._hang_up(ConnectionState.HUNG_UP)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, TimeoutError) and self.end_reason == CLIENT:
            self.end_reason = VANISHED
        if not self._hang_up(ConnectionState.LOST):
            self._end()

    def _hang_up(self, state: ConnectionState) -> bool:
        """Cancel and drop what wants an answer. Returns whether there is anything else."""
        if self.state is ConnectionState.CLOSING:
            return False
        self.state = state
        self._reader.drop()  # the beginning of a frame is no request
        self._frame_since = 0.0
        left = [one for one in self._queue if wants_no_answer(one[0])]
        self._drop_queued()
        for frame, received in left:
            self._enqueue(frame, received)
        if not self._holds_unanswered:
            self._cancel_serving()
        if self._queue:
            self._loop.call_soon(self._handle_queued)
        return self._owes_work

    @property
    def _owes_work(self) -> bool:
        """Whether a request that wants no answer is being handled, or any is queued."""
        return self._holds_unanswered or bool(self._queue)

    def close(self, reason: str, text: str = "") -> None:
        """Close after everything written was sent; `text` is the reason for the log."""
        self._end_for(reason, text)
        self._transport.close()

    def abort(self, reason: str, text: str = "") -> None:
        """Close at once and drop what the peer has not taken."""
        self._end_for(reason, text)
        self._transport.abort()

    def _end_for(self, reason: str, text: str) -> None:
        """Handle nothing more. The end of the transport is the end of all."""
        if self.state in (ConnectionState.CLOSING, ConnectionState.OVER):
            return
        has_transport = self.state is not ConnectionState.LOST
        self.state = ConnectionState.CLOSING
        self.end_reason = reason
        if text:
            host, port = self.client.host, self.client.port
            fields = {"event": "connection_closed", "peer": f"{host}:{port}", "reason": reason}
            logger.warning("closing the connection of %s:%d: %s", host, port, text, extra=fields)
        self._drop_queued()
        self._cancel_ahead()
        if not has_transport:
            self._end()

    def _disconnect(self) -> None:
        """End because the peer is gone and nothing is left to do, or because the transport is broken."""
        self._transport.close()
        if self.state is ConnectionState.LOST:
            self._end()

    def _end(self) -> None:
        """Give everything back and leave the listener."""
        self.state = ConnectionState.OVER
        if self._mute is not None:
            self._mute.cancel()
        self._cancel_serving()
        self._reader.drop()
        self._drop_queued()
        self._memory.release(self._untaken_bytes)
        self._untaken_bytes = 0  # `_held_bytes` are released when the task ends, perhaps later
        self._counts.closed[self.end_reason] += 1
        self._on_close(self)
        for ending in tuple(self.client.endings.values()):
            ending()

    def _cancel_serving(self) -> None:
        """A task is cancelled once only: it may have to wait for the end of what it began."""
        if isinstance(self._serving, DelayedAnswer):
            self._serving.cancel()
            self._serving = None
            self._release_held()
        elif self._serving is not None and not self._serving.cancelling():
            self._serving.cancel()
        self._cancel_ahead()

    def _cancel_ahead(self) -> None:
        while self._ahead:
            answer, size = self._ahead.popleft()
            self._ahead_bytes -= size
            self._memory.release(size)
            answer.cancel()

    @property
    def last_active(self) -> float:
        """When the peer last sent or took bytes (the loop's clock)."""
        return max(self._last_active, self._writer.last_progress)

    @property
    def waiting(self) -> bool:
        """Whether a request is being served or the client is throttled, so that a silent peer is not idle. A peer that
        reads no response is."""
        return self._mute is not None or (self._serving is not None and not self._writer.sending)

    def has_vanished(self, now: float) -> bool:
        """Whether the client's host is gone: it does not even acknowledge what it was sent."""
        if self.last_active > now - CLIENT_SILENT_S:
            return False
        sock = self._transport.get_extra_info("socket")
        return sock is not None and has_vanished(sock, CLIENT_SILENT_S)

    @property
    def muted(self) -> bool:
        """Whether the client is throttled."""
        return self._mute is not None

    # --- frames

    def _receive(self, frame: bytearray, now: float) -> None:
        if not self._queue and self._may_handle(frame):
            self._handle(frame, now)
            return
        self._enqueue(frame, now)
        is_much = len(self._queue) + len(self._ahead) >= MAX_QUEUED
        is_much = is_much or self._queued_bytes + self._ahead_bytes >= MAX_QUEUED_BYTES
        if is_much or self._memory.full or self._mute is not None:
            self._transport.pause_reading()

    def _enqueue(self, frame: bytearray, received: float) -> None:
        self._queue.append((frame, received))
        self._queued_bytes += len(frame)
        self._memory.hold(len(frame))

    def _may_handle(self, frame: bytearray) -> bool:
        if (self._serving is not None and not self._may_go_ahead(frame)) or self._mute is not None:
            return False
        if self.state is ConnectionState.OPEN:
            return not (self._writer.paused or self._transport.is_closing())
        return self._is_without_peer

    def _may_go_ahead(self, frame: bytearray) -> bool:
        """Whether records may be appended although those before them are not acknowledged yet.

        Not where handling them might end the connection, or throttle it: the answers before theirs come first.
        """
        if not self._is_appended or self._sasl is not None or self.is_outdated or self._router.throttles:
            return False
        is_much = len(self._ahead) >= MAX_QUEUED or self._ahead_bytes + len(frame) > MAX_QUEUED_BYTES
        return not (is_much or self._memory.full) and read_head(frame).wants_all_replicas

    def _handle_queued(self) -> None:
        while self._queue and self._may_handle(self._queue[0][0]):
            frame, received = self._queue.popleft()
            self._queued_bytes -= len(frame)
            self._memory.release(len(frame))
            few = len(self._queue) <= MAX_QUEUED // 2 and self._queued_bytes <= MAX_QUEUED_BYTES // 2
            if not self._queue or (few and not self._memory.full):
                self._resume_reading()
            self._handle(frame, max(received, self._unmuted))
        if self._is_without_peer and not self._owes_work:
            self._disconnect()

    @property
    def _is_without_peer(self) -> bool:
        return self.state in (ConnectionState.HUNG_UP, ConnectionState.LOST)

    def _resume_reading(self) -> None:
        """Read again if possible. Also called when the current frame gets memory; its receive timeout starts again."""
        if self._mute is not None and self._queue:
            return
        if not self._reader.starved and not self._transport.is_closing() and not self._transport.is_reading():
            if self._frame_since:
                self._frame_since = self._loop.time()
            self._transport.resume_reading()

    def _drop_queued(self) -> None:
        self._memory.release(self._queued_bytes)
        self._queue.clear()
        self._queued_bytes = 0

    def is_overdue(self, now: float, timeout_s: float) -> bool:
        """Whether the current frame takes too long to arrive. Time while we do not read does not count."""
        if not self._frame_since or not self._transport.is_reading():
            return False
        return now > self._frame_since + timeout_s + self._reader.filled / SLOWEST_BYTES_PER_S

    # --- requests and responses

    def _handle(self, frame: bytearray, received: float) -> None:
        try:
            sasl = self._sasl
            if sasl is not None and sasl.raw:
                self._begin(self._answer_token(sasl, bytes(frame)))
                return
            head = read_head(frame)
            if sasl is not None and not sasl.admits(head.key):
                self.close(LOGIN, f"a request (API key {head.key}) without a login, or after it expired")
                return
            if self.is_outdated and head.relies_on_features:
                self.close(UNSUPPORTED)
                return
            response = self._router.dispatch(head, self.client, received)
        except ProtocolError as error:
            self._refuse(error)
        except Exception as error:
            self._fail(error)
        else:
            if self._serving is not None:
                self._go_ahead(response, len(frame))
            elif isinstance(response, DelayedAnswer):
                self._hold(frame)
                self._is_appended = head.key == ApiKey.PRODUCE
                self._serving = response
                response.receive(self._answered)
            elif isinstance(response, Awaitable):
                self._hold(frame)
                self._holds_unanswered = head.wants_no_answer
                self._begin(self._finish(response))
            else:
                if rest := self._write(response):
                    self._begin(self._writer.write_rest(rest))
                if self._sasl is not None:
                    self._check_login(self._sasl)

    def _go_ahead(
        self, response: Response | ThrottledResponse | DelayedAnswer[Any] | Awaitable[Any], size: int
    ) -> None:
        """Keep the answer until those before it are written. `size`: the bytes of its request.

        One that is in no log yet, because a thread checks it or the disk is slow, lets no other go ahead.
        """
        if not isinstance(response, DelayedAnswer):
            self._is_appended = False
            response = DelayedAnswer.of(response) if isinstance(response, Awaitable) else DelayedAnswer.done(response)
        self._ahead.append((response, size))
        self._ahead_bytes += size
        self._memory.hold(size)

    def _write(self, response: Response | ThrottledResponse) -> list[Part] | None:
        """Write what can be written without waiting; returns the rest. Mutes the connection of a throttled client."""
        if not isinstance(response, ThrottledResponse):
            return self._writer.write(response)
        if response.throttle_s > 0:
            if self._mute is not None:  # quotas came while records went ahead
                self._mute.cancel()
            self._mute = self._loop.call_later(response.throttle_s, self._unmute)
        begun = self._loop.time()
        rest = self._writer.write(response.response)
        response.sent(self._loop.time() - begun)
        return rest

    def _unmute(self) -> None:
        self._mute = None
        self._last_active = self._unmuted = self._loop.time()
        if self._queue:
            self._handle_queued()
        else:
            self._resume_reading()

    def _hold(self, frame: bytearray) -> None:
        """Count the memory of a request while it waits for its answer."""
        self._held_bytes = len(frame)
        self._memory.hold(len(frame))

    def _release_held(self) -> None:
        self._holds_unanswered = False
        if self._held_bytes:
            self._memory.release(self._held_bytes)
            self._held_bytes = 0

    def _begin(self, work: Awaitable[None]) -> None:
        self._is_appended = False
        task = self._serving = asyncio.ensure_future(work, loop=self._loop)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._serving = None
        self._release_held()
        if not task.cancelled():
            self._ended(task.exception())
        self._serve_ahead()
        if not (task.cancelled() and self.state is ConnectionState.OPEN):
            self._handle_queued()

    def _answered(self, response: Response | ThrottledResponse, error: Exception | None) -> None:
        """Write a delayed answer. Another request may have completed it, so no request is handled in this step."""
        self._serving = None
        if error is None:
            try:
                if rest := self._write(response):
                    self._begin(self._writer.write_rest(rest))
                    return
            except Exception as failure:
                error = failure
        self._release_held()
        self._ended(error)
        self._serve_ahead()
        if self._queue:
            self._loop.call_soon(self._handle_queued)

    def _serve_ahead(self) -> None:
        """Wait for the next answer of records that were appended meanwhile. It may be there, and is written then."""
        if self._ahead and self._serving is None:
            answer, size = self._ahead.popleft()
            self._ahead_bytes -= size
            self._held_bytes, self._serving = size, answer
            answer.receive(self._answered)

    def _ended(self, error: BaseException | None) -> None:
        """A response was written, or failed."""
        if isinstance(error, ProtocolError):
            self._refuse(error)
        elif isinstance(error, ConnectionError) or (error is not None and self._transport.is_closing()):
            self._disconnect()
        elif error is not None:
            self._fail(error)
        else:
            self._last_active = self._loop.time()
            if self._sasl is not None:
                self._check_login(self._sasl)

    # --- before a login

    async def _answer_token(self, sasl: SaslSession, token: bytes) -> None:
        """Answer a bare SASL token, as clients before KIP-152 send it: no header, and no answer after a failure."""
        try:
            answer = await sasl.step(token)
        except BrokerError:
            await asyncio.sleep(sasl.failure_delay_s)
            return
        self._transport.write(len(answer).to_bytes(4, "big") + answer)

    def _check_login(self, sasl: SaslSession) -> None:
        """Called after each answer until the login succeeded, and afterwards if logins expire."""
        if sasl.failed:
            self._counts.failed_authentications += 1
            self.close(LOGIN, sasl.failure)
        elif sasl.done and sasl.principal is not None and not self._logged_in:
            self._logged_in = True
            self._counts.successful_authentications += 1
            self.client = dataclasses.replace(self.client, principal=sasl.principal)
            self._reader.max_request_bytes = self._max_request_bytes
            if not sasl.lifetime_ms:
                self._sasl = None

    async def _finish(self, answer: Awaitable[Response | ThrottledResponse]) -> None:
        if rest := self._write(await answer):
            await self._writer.write_rest(rest)

    # --- ends

    def _refuse(self, error: ProtocolError) -> None:
        """Close because of a request that cannot be served."""
        reason = MALFORMED
        if isinstance(error, RequestTooLarge | UnsupportedVersion):
            reason = TOO_LARGE if isinstance(error, RequestTooLarge) else UNSUPPORTED
        self.close(reason, str(error))

    def _fail(self, error: BaseException) -> None:
        logger.error("request of %s:%d failed", self.client.host, self.client.port, exc_info=error)
        self.close(FAILED)
