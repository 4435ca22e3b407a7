"""A consumer's part in a group whose members the coordinator assigns (KIP-848); `group.protocol=consumer`.

`ConsumerGroupMember` has the interface of `GroupMember` in consumer_coordinator.py, whose HeartbeatThread and
GroupSubscription drive it. One request does everything: the heartbeat says what the member subscribes to and owns, and
its answer what to own. The heartbeat thread sends it, also to join, so that polls never wait for the coordinator; the
thread that polls takes what was assigned when it has given up what it must (`advance`, then `taken`).
"""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.client.cluster import Cluster
from broker.client.committed_offsets import NO_MEMBER, Membership
from broker.client.coordinator import Coordinator
from broker.errors import BrokerError, ErrorCode, PykafkaError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import to_ms
from broker.protocol.topic_partition import TopicPartition

_FENCED: Final = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch)
_OUT, _LEAVE, _LEAVE_FOR_A_WHILE = 0, -1, -2
"""Epochs of a heartbeat: to join, to leave, and to leave as a static member that comes back (KIP-345)."""

_Ids = dict[uuid.UUID, tuple[int, ...]]
"""Topic id → its partitions, as assignments are told."""


class ConsumerGroupMember:
    """One member of `group`. `advance` until it is `stable`; then the assignment is known."""

    cooperative = True

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.group = group
        self.assignment: list[TopicPartition] = []
        self.losses = 0
        """How often the member lost `assignment`, so that others may have had the partitions since."""
        self.wake = threading.Event()
        """Set when a heartbeat must not wait."""
        self._cluster = cluster
        self._settings = cluster.settings
        self._coordinator = Coordinator(cluster, group)
        self._changed = threading.Condition()
        """Held to read and change what follows, never during a request."""
        self._member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()  # as Java's (KIP-1082)
        self._epoch = _OUT
        self._joining = False
        self.heartbeat_in_s = self._settings.heartbeat_interval_ms / 1000
        """The interval that the coordinator asked for: short while the group reconciles."""
        self._topics: tuple[str, ...] = ()
        self._owned: _Ids = {}
        self._given: _Ids | None = None
        """What the coordinator assigned, until the thread that polls has taken it."""
        self._taking: _Ids | None = None
        self._told: tuple[tuple[str, ...], _Ids] | None = None
        """The topics and partitions that the coordinator knows of; None if that is not certain."""
        self._not_before = 0.0
        self._fatal: PykafkaError | None = None

    @property
    def stable(self) -> bool:
        """Whether the coordinator knows the subscription, and nothing that it assigned is left to take."""
        told = self._told
        return self.owns and self._given is None and told is not None and told[0] == self._topics

    @property
    def owns(self) -> bool:
        """Whether `assignment` still belongs to this member."""
        return self._epoch > _OUT

    @property
    def membership(self) -> Membership:
        """The membership to commit with, its epoch in place of a generation; NO_MEMBER while outside the group."""
        with self._changed:
            if not self.owns:
                return NO_MEMBER
            return Membership(self._epoch, self._member_id, self._settings.group_instance_id or None)

    def request_rejoin(self) -> None:
        """Tell the coordinator the topics at the next `advance`."""
        with self._changed:
            self._told = None

    def advance(self, topics: Sequence[str], timeout_s: float) -> bool:
        """Join, or take the next assignment, within `timeout_s`. True when `assignment` is current.

        After it the caller gives up what is no longer in it, and calls `taken`. Raises BrokerError for what cannot be
        retried: `unsupported_assignor`, `group_max_size_reached`, `fenced_instance_id`, `group_id_not_found`, …
        """
        with self._changed:
            self._topics = tuple(topics)
            if not self._joining and self._given is None and not self.stable:
                self._joining = True
                self.wake.set()
            self._changed.wait_for(lambda: self._fatal or self._given is not None or self.stable, timeout_s)
            if self._fatal is not None:
                raise self._fatal
            given = self._given
        if given is None:
            return self.stable
        if time.monotonic() < self._not_before:
            return False
        return self._take(given)

    def taken(self, *, revoked: bool) -> None:
        """Own what `advance` has assigned. With `revoked` tell the coordinator at once: others wait for it."""
        with self._changed:
            if self._taking is not None:
                self._owned, self._taking = self._taking, None
            if self._given == self._owned:
                self._given = None
        if revoked:
            self.wake.set()

    def heartbeat(self) -> None:
        """Send a heartbeat, or join if `advance` asked for it. Called by one thread. Raises only retriable errors."""
        with self._changed:
            if self._fatal is not None or not (self._joining or self.owns):
                return
            epoch, told = self._epoch, (self._topics, self._owned)
            body = self._body(told)
        try:
            answer = self._coordinator.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, body)
            code, said = answer.error_code, answer.error_message or ""
            self._coordinator.check(ApiKey.CONSUMER_GROUP_HEARTBEAT, code, "heartbeat", said=said)
        except PykafkaError as error:
            with self._changed:
                if self._epoch == epoch:
                    self._fail(error)
            if error.retriable:
                raise
            return
        with self._changed:
            if self._epoch == epoch:  # else it left meanwhile
                self._accept(answer, told)

    def leave(self) -> None:
        """Leave the group, so that the others get the partitions at once. A static member keeps them for the length of
        a session (KIP-345)."""
        with self._changed:
            member = self.owns
            self._lose()
        if member:
            static = self._settings.group_instance_id
            epoch = _LEAVE_FOR_A_WHILE if static else _LEAVE
            body = {"member_id": self._member_id, "instance_id": static or None, "member_epoch": epoch}
            self._coordinator.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, {**body, "topic_partitions": []})

    def close(self) -> None:
        """Nothing is open but what the cluster shares."""

    # --- one step each; the caller holds the lock ----------------------------------------------

    def _body(self, telling: tuple[tuple[str, ...], _Ids]) -> Mapping[str, Any]:
        """All fields to join and where an answer was lost, else those that changed: null means as before."""
        topics, owned = telling
        settings, told = self._settings, self._told
        body: dict[str, Any] = {"member_id": self._member_id, "member_epoch": self._epoch, "topic_partitions": None}
        body["instance_id"] = settings.group_instance_id or None
        body["rebalance_timeout"] = -1
        if told is None or self._epoch == _OUT:
            body["rack_id"] = settings.client_rack or None
            body["server_assignor"] = settings.group_remote_assignor
            body["rebalance_timeout"] = settings.max_poll_interval_ms
        if told is None or told[0] != topics:
            body["subscribed_topic_names"] = list(topics)
        if told is None or told[1] != owned:
            body["topic_partitions"] = [{"topic_id": one, "partitions": list(ps)} for one, ps in owned.items()]
        return body

    def _accept(self, answer: Any, told: tuple[tuple[str, ...], _Ids]) -> None:
        self._member_id = answer.member_id or self._member_id
        self._epoch, self._joining, self._told = int(answer.member_epoch), False, told
        self.heartbeat_in_s = max(to_ms(answer.heartbeat_interval) / 1000, 0.01)
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            given = {row.topic_id: tuple(sorted(map(int, row.partitions))) for row in rows}
            self._given = given if given != self._owned else None
        self._changed.notify_all()

    def _fail(self, error: PykafkaError) -> None:
        """Update the membership after an error."""
        self._told = None  # the request may have arrived
        if isinstance(error, BrokerError) and error.code in _FENCED:
            self._lose()
        elif isinstance(error, UnsupportedVersion):
            self._fatal = UnsupportedVersion(f"{error}: set group.protocol=classic")
        elif not error.retriable:
            self._lose()
            self._fatal = error
        elif not isinstance(error, BrokerError):
            self._coordinator.forget()
        self._changed.notify_all()

    def _lose(self) -> None:
        if self.owns:
            self.losses += 1
        self._epoch, self._joining, self._told = _OUT, False, None
        self._given, self._taking, self._owned, self.assignment = None, None, {}, []

    def _take(self, given: _Ids) -> bool:
        """Look up the names of topics. An id that no broker knows yet is looked up again."""
        names = {topic.topic_id: name for name, topic in self._cluster.topics().items()}
        known = all(one in names for one in given)
        with self._changed:
            if self._given != given:
                return False
            if not known:
                self._not_before = time.monotonic() + self._settings.retry_backoff_max_ms / 1000
                return False
            self._taking = given
            self.assignment = sorted(TopicPartition(names[one], p) for one, ps in given.items() for p in ps)
        return True
