"""A consumer's part in a group; Kafka's `ConsumerCoordinator`.

`GroupMember` joins the group and leaves it. `HeartbeatThread` sends its heartbeats between polls. `GroupSubscription`
is called by consumer.py from the thread that polls: it tells the member which topics to join with, and the consumer
which partitions it gets and loses.

Joining waits at the coordinator for the other members, so it is done in steps: `advance()` returns after its time-out
and continues at the next call. JoinGroup and SyncGroup use a connection of their own; heartbeats and commits, which
must not wait behind them, use the shared one.

An eager member gives up its partitions when it rejoins. A cooperative member keeps them, sends their names with
JoinGroup, and learns from the next assignment which to give up (KIP-429).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from broker.client.assignors import ASSIGNORS, is_cooperative, member_of
from broker.client.broker_connection import OVERDUE_S, BrokerConnection
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.committed_offsets import NO_MEMBER, Membership
from broker.client.consumer_group_member import ConsumerGroupMember
from broker.client.consumer_positions import Positions
from broker.client.coordinator import Coordinator
from broker.client.topic_filter import TopicFilter
from broker.errors import BrokerError, ErrorCode, PykafkaError, RequestTimedOut
from broker.protocol.api_keys import ApiKey
from broker.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_REMOVED: Final = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation)
_REPLY_MARGIN_S: Final = 5.0


class _Step(Enum):
    OUT = "to send JoinGroup"
    JOINING = "JoinGroup was sent"
    SYNCING = "SyncGroup was sent"
    IN = "member of a generation"


class GroupMember:
    """One member of `group`. `advance` until it is `stable`; then the assignment is known."""

    def __init__(self, cluster: Cluster, group: str, count_partitions: Callable[[], Mapping[str, int]]) -> None:
        """`count_partitions()`: the partitions of every existing topic, called when this member is the leader."""
        self.group = group
        self.assignment: list[TopicPartition] = []
        self._cluster = cluster
        self._settings = cluster.settings
        self.cooperative = is_cooperative(cluster.settings.partition_assignment_strategy)
        self.losses = 0
        """How often the member lost `assignment`, so that others may have had the partitions since."""
        self.wake = threading.Event()
        """Never set: a heartbeat of the classic protocol can wait."""
        self.heartbeat_in_s = cluster.settings.heartbeat_interval_ms / 1000
        self._last_assignment: list[TopicPartition] = []
        self._last_generation = -1
        self._count_partitions = count_partitions
        self._dedicated = Coordinator(cluster, group, dedicated=True)
        self._shared = Coordinator(cluster, group)
        self._lock = threading.Lock()
        self._step = _Step.OUT
        self._connection: BrokerConnection | None = None
        self._sent_at = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._rejoin = False
        self._fatal: PykafkaError | None = None
        self._membership = Membership(group_instance_id=self._settings.group_instance_id or None)

    @property
    def stable(self) -> bool:
        """Whether it is a member of the current generation, as far as it knows."""
        return self._step is _Step.IN and not self._rejoin

    @property
    def owns(self) -> bool:
        """Whether `assignment` still belongs to this member: neither given up to rejoin, nor lost."""
        return self._step is _Step.IN or bool(self.cooperative and self.assignment)

    @property
    def membership(self) -> Membership:
        """The membership to commit with; NO_MEMBER while outside the group."""
        return self._membership if self.owns else NO_MEMBER

    def request_rejoin(self) -> None:
        """Rejoin at the next `advance`, because the subscription or the topics changed."""
        self._rejoin = True

    def taken(self, *, revoked: bool) -> None:
        """Rejoin after an assignment that revoked something, so that others can get it (KIP-429)."""
        self._rejoin |= revoked

    def advance(self, topics: Sequence[str], timeout_s: float) -> bool:
        """Do the next steps of joining, for at most `timeout_s`. True when the member is stable.

        Joins with `topics` when outside the group or asked to rejoin. Raises BrokerError for what cannot be retried:
        `inconsistent_group_protocol`, `group_max_size_reached`, `fenced_instance_id`, …
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if self._fatal is not None:
                raise self._fatal
            if self.stable:
                return True
            left = deadline - time.monotonic()
            try:
                if not self._advance_once(topics, max(left, 0.0)):
                    return False
            except PykafkaError as error:
                self._recover(error)
            if time.monotonic() >= deadline:
                return self.stable

    def heartbeat(self) -> None:
        """Send a heartbeat; its response tells of rebalances. Thread-safe. Raises only retriable errors."""
        with self._lock:
            member, step = self._membership, self._step
        if step is not _Step.IN:
            return  # while a JoinGroup waits, the coordinator needs no heartbeat
        code = self._shared.request(ApiKey.HEARTBEAT, member._asdict()).error_code
        try:
            self._shared.check(ApiKey.HEARTBEAT, code, "heartbeat")
        except BrokerError as error:
            with self._lock:
                if self._membership != member or self._step is not _Step.IN:
                    return  # the response is about an earlier generation, or JoinGroup will be answered the same
                self._note(error)
            if error.retriable:
                raise

    def leave(self) -> None:
        """Leave the group, so that the others get the partitions at once. A static member stays in it (KIP-345)."""
        with self._lock:
            member, self._step, self._rejoin = self._membership, _Step.OUT, False
            self._membership = Membership(group_instance_id=member.group_instance_id)
            self._lose()
        self._dedicated.close()
        if member.member_id and member.group_instance_id is None:
            identity = {"member_id": member.member_id, "group_instance_id": None, "reason": "the consumer is closing"}
            self._shared.request(ApiKey.LEAVE_GROUP, {"member_id": member.member_id, "members": [identity]})

    def close(self) -> None:
        """Hang up. May be called again."""
        self._dedicated.close()

    # --- one step each -------------------------------------------------------------------------

    def _advance_once(self, topics: Sequence[str], timeout_s: float) -> bool:
        """Send the next request or receive the next response; False when none arrived in time."""
        if self._step in (_Step.OUT, _Step.IN):
            pause = self._not_before - time.monotonic()
            if pause > 0:
                time.sleep(min(pause, timeout_s))
                return pause <= timeout_s
            self._send_join(topics)
        connection = self._connection
        if connection is None:
            return False
        if not connection.wait_readable(timeout_s):
            if time.monotonic() - self._sent_at > self._settings.max_poll_interval_ms / 1000 + _REPLY_MARGIN_S:
                raise RequestTimedOut(f"{connection.address}: no answer to {self._step.value}")
            if connection.watch is not None and time.monotonic() - self._sent_at > OVERDUE_S:
                connection.watch()
            return False
        _, answer = connection.receive(timeout_s=self._settings.request_timeout_ms / 1000)
        if self._step is _Step.JOINING:
            self._take_join(answer)
        elif self._step is _Step.SYNCING:
            self._take_sync(answer)
        return True  # if it has left meanwhile, the answer is to nobody

    def _send_join(self, topics: Sequence[str]) -> None:
        settings, member = self._settings, self._membership
        with self._lock:
            self._step, self._rejoin = _Step.JOINING, False
            if not self.cooperative:
                self.assignment = []
        body = {
            "session_timeout": settings.session_timeout_ms,
            "rebalance_timeout": settings.max_poll_interval_ms,
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [
                {"name": name, "metadata": self._metadata(name, topics)}
                for name in settings.partition_assignment_strategy
            ],
            "reason": None,
        }
        self._send(ApiKey.JOIN_GROUP, body)

    def _metadata(self, strategy: str, topics: Sequence[str]) -> bytes:
        """What this member tells the leader, for one assignor."""
        user_data = ASSIGNORS[strategy].user_data(self._last_assignment, self._last_generation)
        owned = tuple(self.assignment)
        generation = self._last_generation if owned else -1
        return encode_subscription(Subscription(tuple(topics), owned, generation, user_data))

    def _take_join(self, answer: Any) -> None:
        if answer.error_code is ErrorCode.member_id_required:  # ask again with the one in the response (KIP-394)
            with self._lock:
                self._membership = self._membership._replace(member_id=answer.member_id)
                self._step = _Step.OUT
            return
        self._dedicated.check(ApiKey.JOIN_GROUP, answer.error_code, "joining")
        protocol = answer.protocol_name
        if protocol not in ASSIGNORS:
            raise BrokerError(ErrorCode.inconsistent_group_protocol, f"group {self.group!r} agreed on {protocol!r}")
        with self._lock:
            self._membership = self._membership._replace(
                generation_id=int(answer.generation_id), member_id=answer.member_id
            )
        shares: list[dict[str, Any]] = []
        if answer.leader == answer.member_id and not field(answer, "skip_assignment", False):
            shares = self._assign(protocol, answer.members)
        body = {
            **self._membership._asdict(),
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": protocol,
            "assignments": shares,
        }
        self._step = _Step.SYNCING
        self._send(ApiKey.SYNC_GROUP, body)

    def _send(self, api: ApiKey, body: Mapping[str, Any]) -> None:
        self._connection, self._sent_at = None, time.monotonic()
        self._connection = self._dedicated.send(api, body)

    def _assign(self, protocol: str, rows: Sequence[Any]) -> list[dict[str, Any]]:
        members = [
            member_of(
                row.member_id,
                decode_subscription(row.metadata),
                field(row, "group_instance_id"),
                had_in_user_data=protocol == "sticky",
            )
            for row in rows
        ]
        wanted = {topic for member in members for topic in member.topics}
        counts = {topic: count for topic, count in self._count_partitions().items() if topic in wanted}
        shares = ASSIGNORS[protocol].assign(members, counts)
        return [{"member_id": id_, "assignment": encode_assignment(tps)} for id_, tps in shares.items()]

    def _take_sync(self, answer: Any) -> None:
        self._dedicated.check(ApiKey.SYNC_GROUP, answer.error_code, "synchronising")
        with self._lock:
            self.assignment = decode_assignment(answer.assignment)
            self._last_assignment, self._last_generation = list(self.assignment), self._membership.generation_id
            self._step = _Step.IN
            self._failures = 0

    # --- failures -----------------------------------------------------------------------

    def _recover(self, error: PykafkaError) -> None:
        """After a failed step: rejoin after a back-off. Raises errors that cannot be retried."""
        self._dedicated.close()
        if not isinstance(error, BrokerError):
            if not error.retriable:
                raise error
            self._cluster.forget_coordinator(self.group)
        with self._lock:
            self._step = _Step.OUT
            self._failures += 1
            self._not_before = time.monotonic() + self._cluster.backoff_s(self._failures)
            if isinstance(error, BrokerError):
                self._note(error)
        if self._fatal is not None:
            raise self._fatal

    def _note(self, error: BrokerError) -> None:
        """Update the membership after an error. The caller holds the lock."""
        if error.code is ErrorCode.rebalance_in_progress:
            self._rejoin = True
        elif error.code in _REMOVED:
            self._step = _Step.OUT
            self._lose()
            member_id = "" if error.code is ErrorCode.unknown_member_id else self._membership.member_id
            self._membership = Membership(-1, member_id, self._membership.group_instance_id)
        elif not error.retriable:
            self._step = _Step.OUT
            self._lose()
            self._fatal = error

    def _lose(self) -> None:
        self.assignment = []
        self.losses += 1


class HeartbeatThread(threading.Thread):
    """Heartbeats of `member`. `polled()` with every poll; `stop()` ends it."""

    def __init__(self, member: GroupMember | ConsumerGroupMember, settings: ClientSettings) -> None:
        super().__init__(name=f"pykafka-heartbeat-{member.group}", daemon=True)
        self._member = member
        self._settings = settings
        self._stopped = threading.Event()
        self._last_poll = time.monotonic()

    def polled(self) -> None:
        self._last_poll = time.monotonic()

    def stop(self) -> None:
        """Stop, and wait until the thread has ended: at most a request's time-out."""
        self._stopped.set()
        self._member.wake.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()

    def run(self) -> None:
        member, pause_s = self._member, self._member.heartbeat_in_s
        while True:
            member.wake.wait(pause_s)
            member.wake.clear()
            if self._stopped.is_set():
                return
            try:
                if self._idle():
                    member.leave()
                else:
                    member.heartbeat()
                pause_s = member.heartbeat_in_s
            except PykafkaError as error:
                logger.debug("heartbeat of group %s: %s", member.group, error)
                pause_s = min(self._settings.retry_backoff_ms / 1000, member.heartbeat_in_s)

    def _idle(self) -> bool:
        idle_s = time.monotonic() - self._last_poll
        if not self._member.owns or idle_s <= self._settings.max_poll_interval_ms / 1000:
            return False
        logger.warning(
            "group %s: no poll for %.0f s, more than max.poll.interval.ms: leaving the group",
            self._member.group,
            idle_s,
        )
        return True


_MISSING_TOPIC_S = 1.0
"""How often to look for a topic that was subscribed to and does not exist."""

OnMove = Callable[[list[TopicPartition]], object] | None
"""Called with the partitions that come or go."""


class GroupSubscription:
    """A consumer's subscription and its share of the partitions. `want` sets it, `advance` does the work."""

    def __init__(self, cluster: Cluster, group: str, positions: Positions, commit: Callable[[], None]) -> None:
        """`positions` gets and loses the partitions; `commit()` is called before they are lost."""
        self._cluster = cluster
        self._positions = positions
        self._commit = commit
        self._member: GroupMember | ConsumerGroupMember = (
            ConsumerGroupMember(cluster, group)
            if cluster.settings.group_protocol == "consumer"
            else GroupMember(cluster, group, self._count_partitions)
        )
        self._heartbeats = HeartbeatThread(self._member, cluster.settings)
        self._wanted = TopicFilter()
        self._on_assign: OnMove = None
        self._on_revoke: OnMove = None
        self._has: list[TopicPartition] = []
        self._announced = False
        """Whether `on_assign` was called and the assignment has not changed since."""
        self._losses = 0
        self._counts: dict[str, int] = {}
        self._look_at_topics = 0.0

    @property
    def membership(self) -> Membership:
        """The membership to commit with."""
        return self._member.membership

    def want(self, wanted: TopicFilter, on_assign: OnMove, on_revoke: OnMove) -> None:
        """Subscribe to these topics.

        `on_assign` is called after partitions were added, `on_revoke` before they are removed. With cooperative
        assignors both get only the partitions that move.
        """
        self._wanted, self._on_assign, self._on_revoke = wanted, on_assign, on_revoke
        self._look_at_topics = 0.0
        self._member.request_rejoin()

    def advance(self, timeout_s: float) -> bool:
        """Join and rejoin as needed, for at most `timeout_s`. True when there are partitions to read.

        A cooperative member keeps reading its partitions while the group rebalances; then this does not wait.
        """
        if not self._heartbeats.is_alive():
            self._heartbeats.start()
        self._heartbeats.polled()
        if time.monotonic() >= self._look_at_topics:
            self._renew_topics()
        if self.settled:
            return True
        self._give_up()
        if not self._member.advance(sorted(self._counts), 0.0 if self._has else timeout_s):
            self._give_up()
            return bool(self._has)
        self._take(self._member.assignment)
        return True

    @property
    def settled(self) -> bool:
        """Whether no rebalance is in progress, as far as this member knows."""
        return self._announced and self._member.stable

    def close(self) -> None:
        """Leave the group. Everything else is done even if the request fails."""
        self._heartbeats.stop()
        if self._announced or self._has:
            self._revoke_all(self._member.owns)
        try:
            self._member.leave()
        finally:
            self._member.close()

    def _give_up(self) -> None:
        """Before a rejoin: an eager member gives up all partitions, a cooperative one those it has lost."""
        lost = self._member.losses != self._losses
        if (self._announced or self._has) and (lost or not self._member.cooperative):
            self._revoke_all(self._member.owns and not lost)
        elif self._announced:
            self._commit()
        self._announced = False
        self._losses = self._member.losses

    def _take(self, assignment: Sequence[TopicPartition]) -> None:
        self._give_up()  # it may have lost its partitions and rejoined
        had, self._has = self._has, list(assignment)
        going = sorted(set(had) - set(assignment))
        self._announced = True
        if going:
            self._revoke(going, ours=True)
        self._member.taken(revoked=bool(going))
        coming = [tp for tp in assignment if tp not in had]
        self._positions.add(coming)
        if self._on_assign is not None:
            self._on_assign(coming)

    def _revoke_all(self, ours: bool) -> None:
        had, self._has = self._has, []
        self._announced = False
        self._revoke(had, ours=ours)

    def _revoke(self, partitions: list[TopicPartition], *, ours: bool) -> None:
        """Lose partitions; with `ours=False` others may have them already."""
        if ours:
            self._commit()
        if self._on_revoke is not None:
            self._on_revoke(partitions)
        self._positions.remove(partitions)

    def _renew_topics(self) -> None:
        """Look up the topics; rejoin when they have changed."""
        settings = self._cluster.settings
        existing = self._count_partitions()
        counts = {topic: existing.get(topic, 0) for topic in self._wanted.of(existing)}  # 0: it does not exist yet
        missing = [topic for topic, count in counts.items() if not count]
        if settings.allow_auto_create_topics:
            for topic in missing:
                counts[topic] = len(self._cluster.topic(topic).partitions)
        wait_s = settings.metadata_max_age_ms / 1000
        self._look_at_topics = time.monotonic() + (min(wait_s, _MISSING_TOPIC_S) if missing else wait_s)
        if counts != self._counts:
            self._counts = counts
            self._member.request_rejoin()

    def _count_partitions(self) -> dict[str, int]:
        """The partitions of every topic; internal topics only if they are subscribed to by name."""
        return {
            name: len(topic.partitions)
            for name, topic in self._cluster.topics().items()
            if not topic.internal or name in self._wanted.names
        }
