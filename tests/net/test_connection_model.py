"""A connection under whatever its peer, its handlers and its clock do, in any order.

The transport is the test's own, as is the time. Requests arrive whole and in pieces; their handlers answer at once or
later, fail, throttle the client; the peer takes what it is sent slowly, hangs up, or resets the connection; memory is
short; the broker stops. What must hold: requests are handled one at a time in their order, and answered so, except that
records with acks=all go ahead of the answers to such records; nothing is handled after the end, except records with
acks=0 whose producer has left; whatever a request held is given back; a connection reads whenever it may; it ends once.
"""

from __future__ import annotations

import asyncio
import functools
import struct
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.config.broker_config import BrokerConfig
from broker.config.security_settings import SecuritySettings
from broker.errors import ProtocolError
from broker.metrics import Metrics
from broker.net import connection as module
from broker.net.connection import MAX_QUEUED, Connection
from broker.net.delayed_answer import DelayedAnswer
from broker.net.listener import ListenerSet
from broker.net.request_log import RequestLog
from broker.net.response import EncryptedWriter
from broker.net.router import Client, Route, Router
from broker.net.throttling import Throttling
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request
from broker.quotas.client_quotas import ClientQuotas, QuotaType
from broker.quotas.quota_entity import QuotaEntity
from broker.security.principal_mapping import PrincipalMapping
from tests.support.connection_requests import (
    APPENDED,
    ENDS,
    FAILS,
    FAILS_LATER,
    LATER,
    LOGIN,
    NEVER_HANDLED,
    NO_ANSWER,
    NOW,
    REFUSES,
    STUBBORN,
    TASK,
    UNANSWERED,
    UNANSWERED_TASK,
    WRONG_LOGIN,
    Sent,
    frame_of,
)
from tests.support.listening import answer_with
from tests.support.socketless import ManualLoop, OtherConnection, StubLogin, Wire

# A task that is cancelled before its first step never awaits what it was to await.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

THROTTLE_S, IDLE_S, RECEIVE_S = 1400.0, 600.0, 30.0
QUEUE_BYTES, LIMIT, LARGEST = 300_000, 400_000, 200_000
FILE_BYTES = 250_000
CONTENT = bytes(range(250)) * (FILE_BYTES // 250)
USUAL = (NOW, LATER, TASK, *[STUBBORN] * 2, UNANSWERED, *[UNANSWERED_TASK] * 3, *[APPENDED] * 3)
ANSWERS = ("small", "throttled", "throttled", "large", "file")
SIZES = (10, 10, 30_000, 100_000)


def while_open(least: int = 0, when: Callable[[Any], bool] = lambda history: True) -> Callable[[Any], Any]:
    """The precondition of a rule that is no use after the end, nor before so many requests."""
    return precondition(lambda self: not self.counts.closed and len(self.requests) >= least and when(self))


class ConnectionHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "MAX_QUEUED_BYTES", QUEUE_BYTES)
        self.patch.setattr(module.logger, "disabled", True)
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed in teardown)
        self.file.write(CONTENT)

    def begin(self) -> None:
        """Forget the connection before."""
        self.errors: list[BaseException] = []
        self.loop = ManualLoop()
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context["exception"]))
        self.wire = Wire(self.loop)
        self.requests: dict[int, Sent] = {}
        self.unsent = bytearray()
        self.total_sent = self.delivered = 0
        self.has_hung_up = self.has_told_end = self.was_stopped = False
        """The peer has hung up; the connection was told; the broker has closed it."""
        self.cancelled: list[int] = []
        self.handled: list[int] = []
        self.answered: list[int] = []
        self.pending: dict[int, Callable[[bool], None]] = {}
        """What ends the wait of each request, well or by an error."""
        self.stubborn: dict[int, asyncio.Future[None]] = {}
        self.free_at = self.active = 0.0
        """The end of the throttle time, and when the peer last sent something or was answered."""
        self.throttles = 0
        self.reasons: list[str] = []
        self.read_to = 0
        self.seen: list[int] = []
        self.other = OtherConnection()

    @initialize(with_login=st.booleans(), limited=st.booleans(), with_quotas=st.booleans())
    def open(self, with_login: bool, limited: bool, with_quotas: bool) -> None:
        self.begin()
        config = BrokerConfig(
            listeners=("PLAINTEXT://127.0.0.1:0",),
            connections_max_idle_ms=int(IDLE_S * 1000),
            socket_request_receive_timeout_ms=int(RECEIVE_S * 1000),
            queued_max_request_bytes=LIMIT if limited else -1,
        )
        self.metrics = Metrics()
        quotas = ClientQuotas()
        if with_quotas:  # of somebody else, so that answers are looked at
            quotas.update({QuotaEntity("nobody"): {"producer_byte_rate": 1.0}})
        self.throttle_s = THROTTLE_S if with_quotas else 0.0
        served = ((ApiKey.METADATA, 4), (ApiKey.PRODUCE, 8), (ApiKey.SASL_AUTHENTICATE, 2))
        routes = [Route(api, version, version, self.handle) for api, version in served]
        router = Router(routes, RequestLog(self.metrics), Throttling(quotas, self.metrics))
        self.login = StubLogin() if with_login else None

        def make() -> None:
            self.listeners = ListenerSet(config, self.metrics)
            self.counts = self.metrics.listeners["PLAINTEXT"]
            self.connection = self.wire.connection = Connection(
                router,
                LARGEST,
                self.listeners.memory,
                self.counts,
                on_open=self.listeners._admit,
                on_close=self.listeners._forget,
                listener="PLAINTEXT",
                sasl=cast(Any, self.login),
                mapping=PrincipalMapping(SecuritySettings().ssl_principal_mapping_rules),
            )
            self.connection.connection_made(self.wire)
            self.connection._writer = EncryptedWriter(self.wire, self.loop)  # sends file ranges without a socket

        self.do(make)
        if with_login:
            self.send(LOGIN)
            self.deliver(1 << 20)

    @precondition(lambda self: self.counts.closed)
    @rule(with_login=st.booleans(), limited=st.booleans(), with_quotas=st.booleans())
    def open_another(self, with_login: bool, limited: bool, with_quotas: bool) -> None:
        self.bring_to_an_end()
        self.loop.close()
        self.open(with_login, limited, with_quotas)

    def do(self, action: Callable[[], Any]) -> Any:
        """One step of the event loop with `action` in it."""
        outcome: list[Any] = []
        self.loop.call_soon(lambda: outcome.append(action()))
        self.loop.turn()
        self.nothing_was_violated()
        return outcome[0]

    @invariant()
    def nothing_was_violated(self) -> None:
        """Errors in the handler and in callbacks do not come up to here by themselves."""
        for error in self.errors:
            raise error

    # --- the handler

    def handle(self, request: Request, client: Client) -> Any:
        try:
            return self._handle(request, client)
        except AssertionError as error:
            self.errors.append(error)
            raise

    def _handle(self, request: Request, client: Client) -> Any:
        number = request.correlation_id
        kind, _, end, size = self.requests[number]
        assert end <= self.delivered
        assert request.size == size
        assert not self.pending or self.may_go_ahead(number), "one at a time"
        assert not self.is_closed_by_broker, "nothing after the end"
        assert self.loop.now >= self.free_at, "the client is throttled"
        earlier = [one for one in self.requests if one < number and one not in self.handled]
        if self.is_without_peer:
            assert kind in NO_ANSWER
            assert all(self.requests[one].kind not in NO_ANSWER for one in earlier)
        else:
            assert not earlier, "in order"
            assert not self.wire.paused
            self.look_at_answers()
            assert self.seen == self.answered, "each response is written before the next request is handled"
        if self.login is not None and kind not in (LOGIN, WRONG_LOGIN):
            assert (self.login.done, client.principal) == (True, "User:a")
        self.handled.append(number)
        if kind in ENDS and not self.is_without_peer:
            self.reasons.append(ENDS[kind])
        if kind == FAILS:
            raise RuntimeError("the handler is broken")
        if kind == REFUSES:
            raise ProtocolError("no such thing")
        if kind in (LOGIN, WRONG_LOGIN):
            return self.log_in(kind)
        if kind in (NOW, UNANSWERED):
            return self.answer(number)
        return self.wait_with(number) if kind in (LATER, FAILS_LATER, APPENDED) else self.in_task(number)

    def may_go_ahead(self, number: int) -> bool:
        """Whether these records, and all that waits, are for followers, too."""
        waits = [self.requests[one].kind == APPENDED for one in (*self.pending, number)]
        return all(waits) and not (self.stubborn or self.throttle_s)

    def log_in(self, kind: str) -> Any:
        if self.login is not None and not self.login.done:
            self.login.done, self.login.failed = kind == LOGIN, kind == WRONG_LOGIN
            self.login.principal = "User:a" if kind == LOGIN else None
        self.answered.append(self.handled[-1])
        return {"error_code": 0, "auth_bytes": b""}

    def answer(self, number: int) -> Any:
        kind, answer, *_ = self.requests[number]
        if kind in NO_ANSWER:
            return None
        self.answered.append(number)
        if answer == "file":
            head = struct.pack(">ii", 4 + FILE_BYTES + 3, number)
            return [head, SimpleNamespace(file=self.file, position=0, length=FILE_BYTES), b"end"]
        if answer == "throttled":
            self.throttles += bool(self.throttle_s)
            self.free_at = self.loop.now + self.throttle_s
            return {**answer_with("x"), "throttle_time": int(THROTTLE_S * 1000)}
        return answer_with("x" * 30_000 if answer == "large" else "x")

    def wait_with(self, number: int) -> DelayedAnswer[Any]:
        made: DelayedAnswer[Any] = DelayedAnswer(lambda: self.pending.pop(number))

        def end(well: bool) -> None:
            del self.pending[number]
            if well:
                made.complete(self.answer(number))
            else:
                made.fail(RuntimeError("the answer is broken"))

        self.pending[number] = end
        return made

    async def in_task(self, number: int) -> Any:
        ended: asyncio.Future[None] = self.loop.create_future()

        def end(well: bool) -> None:
            if not ended.done():
                ended.set_result(None) if well else ended.set_exception(RuntimeError("the answer is broken"))

        self.pending[number] = end
        try:
            await ended
        except asyncio.CancelledError:
            self.cancelled.append(number)
            if self.requests[number].kind == STUBBORN:
                self.stubborn[number] = self.loop.create_future()
                del self.pending[number]
                await self.stubborn[number]
                del self.stubborn[number]
            raise
        finally:
            self.pending.pop(number, None)
        return self.answer(number)

    # --- the peer

    @while_open(when=lambda self: not self.has_hung_up)
    @rule(
        requests=st.lists(
            st.tuples(st.sampled_from(USUAL), st.sampled_from(ANSWERS), st.sampled_from(SIZES)), min_size=1, max_size=6
        )
    )
    def send_some(self, requests: list[tuple[str, str, int]]) -> None:
        for kind, answer, size in requests:
            self.send(kind, answer, size)

    @while_open(3, lambda self: not self.has_hung_up)
    @rule(kind=st.sampled_from((*ENDS, *NEVER_HANDLED)), at_once=st.booleans())
    def send_bad(self, kind: str, at_once: bool) -> None:
        if at_once:
            self.catch_up()
        for one in (kind, NOW, UNANSWERED):
            self.send(one)
        if at_once:
            self.deliver(1 << 20)

    @while_open(when=lambda self: not self.has_hung_up)
    @rule(kind=st.sampled_from((NOW, LATER, TASK)), answer=st.sampled_from(("large", "file")))
    def ask_and_take_nothing(self, kind: str, answer: str) -> None:
        self.catch_up()
        self.take(0)
        self.send(kind, answer)
        self.send(NOW)
        self.deliver(1 << 20)
        self.end_wait()

    @while_open(when=lambda self: not self.has_hung_up)
    @rule(
        kind=st.sampled_from((LATER, TASK, STUBBORN, UNANSWERED_TASK, FAILS_LATER, APPENDED, APPENDED)),
        next_kind=st.sampled_from((NOW, APPENDED)),
        behind=st.sampled_from((1, 2 * MAX_QUEUED)),
        then=st.sampled_from(("waits", "leaves", "sends more")),
    )
    def let_it_wait(self, kind: str, next_kind: str, behind: int, then: str) -> None:
        """The peer may leave, or send more in the step in which the wait ends."""
        self.catch_up()
        self.send(kind)
        for _ in range(behind):
            self.send(next_kind)
        self.deliver(1 << 20)
        if then == "leaves":
            self.hang_up(in_the_middle=False, at_once=True)
        elif then == "sends more":
            self.end_wait(sends=True)

    def catch_up(self) -> None:
        """Answer all there is, so that the next request is handled at once."""
        self.take(-1)
        for _ in self.requests:
            if self.unsent:
                self.deliver(1 << 20)
            if self.pending:
                self.end_wait()

    def send(self, kind: str, answer: str = "small", size: int = 10) -> None:
        number = len(self.requests) + 1
        frame = frame_of(kind, number, size, LARGEST)
        self.unsent += frame
        self.total_sent += len(frame)
        self.requests[number] = Sent(kind, answer, self.total_sent, len(frame) - 4)

    @while_open()
    @rule(size=st.sampled_from((1, 5, 50, *[20_000] * 3, *[70_000] * 2, *[1 << 20] * 4)), reads=st.integers(1, 4))
    def deliver(self, size: int, reads: int = 4) -> None:
        """The broker reads, as far as it wants to."""
        for _ in range(reads):
            self.do(lambda: self._deliver(size))

    def _deliver(self, size: int) -> None:
        wire = self.wire
        if not (wire.is_reading() and wire.has_reader):
            return
        if self.unsent:
            view = self.connection.get_buffer(-1)
            count = min(size, len(view), len(self.unsent))
            assert count
            view[:count] = self.unsent[:count]
            view.release()
            del self.unsent[:count]
            arrived, is_muted = len(self.arrived), self.connection.muted
            self.delivered += count
            self.active = self.loop.now
            self.connection.buffer_updated(count)
            if is_muted and len(self.arrived) > arrived:
                assert not wire.is_reading(), "the client is throttled, and its next request is there"
        elif self.has_hung_up:
            self.has_told_end = wire.has_reader = True
            if self.connection.eof_received():
                wire.has_reader = False
            elif not wire.closing:
                wire.close()

    @while_open(4, lambda self: not self.has_hung_up)
    @rule(in_the_middle=st.booleans(), at_once=st.booleans())
    def hang_up(self, in_the_middle: bool, at_once: bool) -> None:
        self.has_hung_up = True
        if in_the_middle:
            del self.unsent[len(self.unsent) // 2 :]
        if at_once:
            self.deliver(1 << 20)

    @while_open(4, lambda self: self.wire.is_reading())
    @rule(lose_all=st.booleans())
    def reset(self, lose_all: bool) -> None:
        if not lose_all:
            self.deliver(1 << 20)
        if not self.wire.closing:
            self.has_hung_up = True
            self.do(lambda: self.wire.drop(ConnectionResetError()))

    @while_open()
    @rule(size=st.sampled_from((-1, 0, 0, 1000, 25_000, 120_000)))
    def take(self, size: int) -> None:
        """The peer takes so much of what is written; with 0 nothing any more, with -1 all from now on."""
        self.wire.peer_takes = size < 0
        self.do(lambda: self.wire.take(1 << 30 if size < 0 else size))

    # --- the broker

    @while_open(when=lambda self: self.pending)
    @rule(sends=st.booleans())
    def end_wait(self, sends: bool = False) -> None:
        """Perhaps with another request that arrives in the same step."""
        if sends and not self.has_hung_up:
            self.send(NOW)
        fails = any(self.requests[one].kind == FAILS_LATER for one in self.pending)
        self.do(lambda: self._end_wait(1 << 20 if sends else 0))
        assert self.wire.closing or not fails, "an error ends the connection"

    def _end_wait(self, size: int) -> None:
        for number, end in reversed(tuple(self.pending.items())):
            end(self.requests[number].kind != FAILS_LATER)
        self.answered.sort()  # records that went ahead are answered in their turn
        if size:
            self._deliver(size)

    @while_open(when=lambda self: self.stubborn)
    @rule()
    def let_go(self) -> None:
        for future in tuple(self.stubborn.values()):
            if not future.done():
                self.do(functools.partial(future.set_result, None))

    @while_open()
    @rule(seconds=st.sampled_from((0, 0.2, RECEIVE_S / 2, *[THROTTLE_S / 2] * 3, THROTTLE_S)))
    def wait(self, seconds: float) -> None:
        self.loop.now += seconds
        self.loop.turn(6)
        waits = self.pending or self.stubborn or self.loop.now < self.free_at
        is_active = self.loop.now - max(self.active, min(self.free_at, self.loop.now)) < IDLE_S
        if not self.has_part_of_a_frame and (waits or is_active):
            assert self.do(self.listeners.close_idle) == 0, "a peer that waits or has just sent something is not idle"

    @while_open(4, lambda self: not self.connection.muted and not self.wire.lost)
    @rule()
    def look_for_idle(self) -> None:
        """After a long silence. The peer is idle unless it waits for the broker; a frame may not take so long."""
        self.loop.turn(12)
        self.loop.now += IDLE_S + RECEIVE_S
        self.loop.turn(2)
        if self.connection not in self.listeners._connections or self.connection.muted:
            return
        waits = bool(self.pending or self.stubborn)
        is_late = self.has_part_of_a_frame and self.wire.is_reading() and not self.is_without_peer
        assert self.do(self.listeners.close_idle) == (not waits or is_late)
        if not waits or is_late:
            self.reasons += ["idle", "slow"]
            self.was_stopped = True

    @while_open(5)
    @rule(hurry=st.booleans())
    def stop(self, hurry: bool) -> None:
        self.do(lambda: self._stop(self.connection.abort if hurry else self.connection.close))

    def _stop(self, end: Callable[[str], None]) -> None:
        self.was_stopped = True
        self.reasons.append("shutdown")
        end("shutdown")

    @while_open()
    @rule(size=st.sampled_from((0, LIMIT)))
    def use_memory(self, size: int) -> None:
        """Another connection takes memory, or gives it back."""
        memory, other = self.listeners.memory, self.other
        self.do(lambda: memory.finished(other, other.held))
        other.held = 0
        if size and self.do(lambda: memory.take(other, size)):
            other.held = size

    # --- what must hold

    @property
    def is_without_peer(self) -> bool:
        return self.has_told_end or self.wire.lost

    @property
    def is_closed_by_broker(self) -> bool:
        return self.was_stopped or self.wire.closed_by_broker

    @property
    def arrived(self) -> list[int]:
        return [number for number, one in self.requests.items() if one.end <= self.delivered]

    @property
    def has_part_of_a_frame(self) -> bool:
        return self.delivered not in {0, *(one.end for one in self.requests.values())}

    def look_at_answers(self) -> None:
        """Read the responses that are written as a whole."""
        written = self.wire.written
        while len(written) - self.read_to >= 8:
            length, number = struct.unpack_from(">ii", written, self.read_to)
            end = self.read_to + 4 + length
            if end > len(written):
                return
            if self.requests[number].answer == "file" and length > FILE_BYTES:
                assert written[self.read_to + 8 : end] == CONTENT + b"end"
            self.seen.append(number)
            self.read_to = end

    @invariant()
    def responses_are_in_order(self) -> None:
        self.look_at_answers()
        assert self.seen == self.answered[: len(self.seen)]

    @invariant()
    def it_does_what_it_can(self) -> None:
        if self.loop._ready:  # type: ignore[attr-defined]
            return
        wire, connection, memory = self.wire, self.connection, self.listeners.memory
        if self.is_closed_by_broker or self.counts.closed or self.has_hung_up != self.is_without_peer:
            return
        queue = [one for one in self.arrived if one not in self.handled]
        if self.has_hung_up:
            queue = [one for one in queue if self.requests[one].kind in NO_ANSWER]
        queued = sum(self.requests[one].size for one in queue)
        if self.has_hung_up:
            assert all(self.requests[one].kind in NO_ANSWER for one in self.pending), "nobody waits for an answer"
        waits = bool(self.pending or self.stubborn)
        if self.pending and queue and self.may_go_ahead(queue[0]) and not self.has_hung_up:
            ahead = sum(self.requests[one].size for one in (*list(self.pending)[1:], queue[0]))
            waits = len(self.pending) > MAX_QUEUED or memory.full or ahead > QUEUE_BYTES
        is_busy = waits or connection.muted or connection._writer.sending
        is_free = not is_busy and (not wire.paused or self.has_hung_up)
        assert not (is_free and queue), "it handles what it may"
        assert connection.muted == bool(self.listeners.throttled_count) == (self.loop.now < self.free_at)
        if not self.has_hung_up and not queue and not connection._reader.starved:
            assert wire.is_reading(), "it reads when it may"
        if not self.has_hung_up and (len(queue) >= MAX_QUEUED or queued >= QUEUE_BYTES):
            assert not wire.is_reading(), "it does not read more than it can hold"
        if (self.has_hung_up or not self.has_part_of_a_frame) and not connection._writer.sending:
            held = sum(self.requests[one].size for one in (*self.pending, *self.stubborn))
            assert memory.used == self.other.held + queued + held + connection._untaken_bytes
        assert wire.lost or bool(connection._untaken_bytes) == wire.paused

    @invariant()
    def it_ends_once(self) -> None:
        closed = sum(self.counts.closed.values())
        assert closed + self.listeners.connection_count == 1
        if closed:
            assert self.wire.lost
            if not self.loop._ready:  # type: ignore[attr-defined]
                assert not self.pending
                held = sum(self.requests[one].size for one in self.stubborn)
                assert self.listeners.memory.used == self.other.held + held
                timers = [one for one in self.loop._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
                assert not timers, "nothing wakes it up"

    def teardown(self) -> None:
        try:
            if not self.errors:
                self.bring_to_an_end()
        finally:
            self.patch.undo()
            self.file.close()
            self.loop.close()

    def bring_to_an_end(self) -> None:
        """Nobody waits for anything any more: all that arrives is handled, and everything is given back."""
        self.use_memory(0)
        self.take(-1)
        before = None
        while before != (before := (len(self.handled), self.delivered, len(self.pending), self.connection.muted)):
            self.let_go()
            self.end_wait()
            self.deliver(1 << 20)
            self.loop.now += THROTTLE_S
            self.loop.turn(5)
            self.it_does_what_it_can()
        bad = [number for number, one in self.requests.items() if one.kind in {*ENDS, *NEVER_HANDLED}]
        self.look_at_answers()
        if not (self.has_hung_up or self.was_stopped or bad):
            assert self.handled == list(self.requests)
            assert self.seen == [one for one in self.handled if self.requests[one].kind not in NO_ANSWER]
        if self.has_hung_up and not (self.was_stopped or bad):
            without_answer = {one for one in self.arrived if self.requests[one].kind in NO_ANSWER}
            assert without_answer <= set(self.handled) - set(self.cancelled)
        self.has_hung_up = True
        self.deliver(1 << 20)
        self.loop.turn(12)
        self.look_at_answers()
        assert self.wire.lost
        assert (self.listeners.connection_count, self.listeners.memory.used) == (0, 0)
        (reason,) = self.counts.closed
        expected = {*self.reasons, *(NEVER_HANDLED.get(self.requests[one].kind) for one in bad)}
        assert reason in {"client", *expected}
        assert self.connection.end_reason == reason
        assert self.metrics.throttles[QuotaType.CONTROLLER_MUTATION].throttles == self.throttles
        assert self.counts.failed_authentications == (self.login is not None and self.login.failed)
        assert self.counts.successful_authentications == (self.login is not None and self.login.done)


ConnectionHistory.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
TestConnectionHistory = ConnectionHistory.TestCase
