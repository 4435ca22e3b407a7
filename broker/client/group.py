"""Membership in a consumer group: join, get partitions, stay, leave; Kafka's `ConsumerCoordinator`.

Called by consumer.py from the thread that polls; heartbeat.py calls `heartbeat` from its own. Joining waits at the
coordinator for the other members, so it goes step by step: `advance()` never waits longer than it is told and
goes on where it was at the next call. JoinGroup and SyncGroup travel on a connection of their own; heartbeats and
commits, which must not wait behind them, on the shared one.

An eager member gives up what it has when it joins anew; a cooperative one keeps and names it, and learns from the
next assignment what to let go of (KIP-429).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from broker.client.assignor_table import ASSIGNORS, is_cooperative, member_of
from broker.client.cluster import Cluster
from broker.client.connection import Connection
from broker.client.coordinator import Coordinator
from broker.client.group_offsets import NO_MEMBER, Membership
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

__all__ = ["GroupMember"]

_PUT_OUT: Final = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation)
_REPLY_MARGIN_S: Final = 5.0


class _Step(Enum):
    OUT = "to send JoinGroup"
    JOINING = "JoinGroup was sent"
    SYNCING = "SyncGroup was sent"
    IN = "member of a generation"


class GroupMember:
    """One member of `group`. `advance` until it is `stable`; then the assignment is known."""

    def __init__(self, cluster: Cluster, group: str, count_partitions: Callable[[], Mapping[str, int]]) -> None:
        """`count_partitions`: how many partitions each existing topic has, asked when this member leads the group."""
        self.group = group
        self.assignment: list[TopicPartition] = []
        self._cluster = cluster
        self._settings = cluster.settings
        self.cooperative = is_cooperative(cluster.settings.partition_assignment_strategy)
        self.losses = 0
        """How often `assignment` was taken away, so that others may have had it since."""
        self._had: list[TopicPartition] = []
        self._had_in = -1
        self._count_partitions = count_partitions
        self._waiting = Coordinator(cluster, group, dedicated=True)
        self._prompt = Coordinator(cluster, group)
        self._lock = threading.Lock()
        self._step = _Step.OUT
        self._connection: Connection | None = None
        self._sent_at = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._rejoin = False
        self._fatal: PykafkaError | None = None
        self._membership = Membership(group_instance_id=self._settings.group_instance_id or None)

    @property
    def stable(self) -> bool:
        """Whether this is a member of the current generation, as far as it has heard."""
        return self._step is _Step.IN and not self._rejoin

    @property
    def owns(self) -> bool:
        """Whether `assignment` is still ours: not given up to join anew, nor taken back."""
        return self._step is _Step.IN or bool(self.cooperative and self.assignment)

    @property
    def membership(self) -> Membership:
        """Under what name to commit; no member's while out of the group."""
        return self._membership if self.owns else NO_MEMBER

    def request_rejoin(self) -> None:
        """Join anew at the next `advance`: the subscription or the topics changed."""
        self._rejoin = True

    def advance(self, topics: Sequence[str], timeout_s: float) -> bool:
        """Come closer to being stable in at most `timeout_s`; whether it is now.

        Joins with `topics` when out, or when asked to rejoin. Raises BrokerError for what retrying cannot mend:
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
        """Show that this member lives; learns of rebalances. Thread-safe; raises only what is retriable."""
        with self._lock:
            member, step = self._membership, self._step
        if step is not _Step.IN:
            return  # while a JoinGroup waits the coordinator knows that we live
        body = {
            "generation_id": member.generation_id,
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
        }
        code = self._prompt.request(ApiKey.HEARTBEAT, body).error_code
        try:
            self._prompt.check(code, "heartbeat")
        except BrokerError as error:
            with self._lock:
                if self._membership != member:
                    return  # the answer is about an earlier generation
                self._note(error)
            if error.retriable:
                raise

    def leave(self) -> None:
        """Say goodbye, so that the others get the partitions at once; a static member stays (KIP-345)."""
        with self._lock:
            member, self._step, self._rejoin = self._membership, _Step.OUT, False
            self._membership = Membership(group_instance_id=member.group_instance_id)
            self._lose()
        self._waiting.close()
        if member.member_id and member.group_instance_id is None:
            identity = {"member_id": member.member_id, "group_instance_id": None, "reason": "the consumer is closing"}
            self._prompt.request(ApiKey.LEAVE_GROUP, {"member_id": member.member_id, "members": [identity]})

    def close(self) -> None:
        """Hang up. May be called again."""
        self._waiting.close()

    # --- one step each -------------------------------------------------------------------------

    def _advance_once(self, topics: Sequence[str], timeout_s: float) -> bool:
        """Send or take what is next; False when nothing came in time."""
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
            return False
        _, answer = connection.receive(timeout_s=self._settings.request_timeout_ms / 1000)
        if self._step is _Step.JOINING:
            self._take_join(answer)
        else:
            self._take_sync(answer)
        return True

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
        """What this member tells the one who assigns."""
        user_data = ASSIGNORS[strategy].user_data(self._had, self._had_in)
        owned = tuple(self.assignment)
        generation = self._had_in if owned else -1
        return encode_subscription(Subscription(tuple(topics), owned, generation, user_data))

    def _take_join(self, answer: Any) -> None:
        if answer.error_code is ErrorCode.member_id_required:  # now we have one: ask again with it (KIP-394)
            with self._lock:
                self._membership = self._membership._replace(member_id=answer.member_id)
                self._step = _Step.OUT
            return
        self._waiting.check(answer.error_code, "joining")
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
        member = self._membership
        body = {
            "generation_id": member.generation_id,
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": protocol,
            "assignments": shares,
        }
        self._step = _Step.SYNCING
        self._send(ApiKey.SYNC_GROUP, body)

    def _send(self, api: ApiKey, body: Mapping[str, Any]) -> None:
        self._connection, self._sent_at = None, time.monotonic()
        self._connection = self._waiting.send(api, body)

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
        self._waiting.check(answer.error_code, "synchronising")
        with self._lock:
            self.assignment = decode_assignment(answer.assignment)
            self._had, self._had_in = list(self.assignment), self._membership.generation_id
            self._step = _Step.IN
            self._failures = 0

    # --- what goes wrong -----------------------------------------------------------------------

    def _recover(self, error: PykafkaError) -> None:
        """After a failed step: begin anew, soon; or give up when that cannot help."""
        self._waiting.close()
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
        """What an error means for the membership. The caller holds the lock."""
        if error.code is ErrorCode.rebalance_in_progress:
            self._rejoin = True
        elif error.code in _PUT_OUT:
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
