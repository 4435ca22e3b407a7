"""A consumer's subscription: which topics it names now, and its share in them.

Called by consumer.py from the thread that polls. Joins the group when asked to, joins again when the group
rebalances or the topics change (one appears that the pattern matches, partitions are added), and says
before and after which partitions go and come: all of them, or with cooperative strategies only those that move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from broker.client.cluster import Cluster
from broker.client.group import GroupMember
from broker.client.group_offsets import Membership
from broker.client.heartbeat import HeartbeatThread
from broker.client.topic_filter import TopicFilter
from broker.protocol.topic_partition import TopicPartition

__all__ = ["GroupSubscription"]

_MISSING_TOPIC_S = 1.0
"""How often it is looked for a topic that was named and does not exist."""

OnAssign = Callable[[list[TopicPartition]], None]
OnRevoke = Callable[[list[TopicPartition], bool], None]


class GroupSubscription:
    """`want` says what, `advance` brings it about."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._member = GroupMember(cluster, group, self._count_partitions)
        self._heartbeats = HeartbeatThread(self._member, cluster.settings)
        self._wanted = TopicFilter()
        self._on_assign: OnAssign = lambda partitions: None
        self._on_revoke: OnRevoke = lambda partitions, ours: None
        self._on_rejoin: Callable[[], None] = lambda: None
        self._has: list[TopicPartition] = []
        self._announced = False
        """Whether `on_assign` was called and all it said still stands."""
        self._losses = 0
        self._counts: dict[str, int] = {}
        self._look_at_topics = 0.0

    @property
    def membership(self) -> Membership:
        """Under what name to commit."""
        return self._member.membership

    def want(
        self, wanted: TopicFilter, on_assign: OnAssign, on_revoke: OnRevoke, on_rejoin: Callable[[], None]
    ) -> None:
        """Subscribe to these topics.

        `on_assign(partitions)` when they came; `on_revoke(partitions, ours)` before they go, with `ours` False when the
        group may have given them to others already; `on_rejoin()` when a rebalance begins in which they are kept.
        """
        self._wanted, self._on_assign, self._on_revoke, self._on_rejoin = wanted, on_assign, on_revoke, on_rejoin
        self._look_at_topics = 0.0
        self._member.request_rejoin()

    def advance(self, timeout_s: float) -> bool:
        """Take part, waiting no longer than `timeout_s`; whether there is something to read now.

        A cooperative member goes on with what it has while the group rebalances; then this does not wait.
        """
        if not self._heartbeats.is_alive():
            self._heartbeats.start()
        self._heartbeats.polled()
        if time.monotonic() >= self._look_at_topics:
            self._renew_topics()
        if self.settled:
            return True
        self._let_go()
        if not self._member.advance(sorted(self._counts), 0.0 if self._has else timeout_s):
            self._let_go()
            return bool(self._has)
        self._take(self._member.assignment)
        return True

    @property
    def settled(self) -> bool:
        """Whether nothing is about to change, as far as this member has heard."""
        return self._announced and self._member.stable

    def close(self) -> None:
        """Leave the group. Raises what the request raises, with all else done."""
        self._heartbeats.stop()
        if self._announced or self._has:
            self._revoke_all(self._member.owns)
        try:
            self._member.leave()
        finally:
            self._member.close()

    def _let_go(self) -> None:
        """Before joining anew: an eager member lets go of everything, a cooperative one of what it has lost."""
        lost = self._member.losses != self._losses
        if (self._announced or self._has) and (lost or not self._member.cooperative):
            self._revoke_all(self._member.owns and not lost)
        elif self._announced:
            self._on_rejoin()
        self._announced = False
        self._losses = self._member.losses

    def _take(self, assignment: Sequence[TopicPartition]) -> None:
        """The group has decided: what goes, goes first."""
        self._let_go()  # it may have been lost and joined again
        had, self._has = self._has, list(assignment)
        going = sorted(set(had) - set(assignment))
        self._announced = True
        if going:
            self._on_revoke(going, True)
            self._member.request_rejoin()  # only then can they be given to others
        self._on_assign([tp for tp in assignment if tp not in had])

    def _revoke_all(self, ours: bool) -> None:
        had, self._has = self._has, []
        self._announced = False
        self._on_revoke(had, ours)

    def _renew_topics(self) -> None:
        """See what the topics are now; join again if that makes a difference."""
        settings = self._cluster.settings
        counts = self._matching(self._count_partitions())
        missing = [topic for topic, count in counts.items() if not count]
        if settings.allow_auto_create_topics:
            for topic in missing:
                counts[topic] = len(self._cluster.topic(topic).partitions)
        wait_s = settings.metadata_max_age_ms / 1000
        self._look_at_topics = time.monotonic() + (min(wait_s, _MISSING_TOPIC_S) if missing else wait_s)
        if counts != self._counts:
            self._counts = counts
            self._member.request_rejoin()

    def _matching(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Topics to name when joining, with their partitions; 0 for one that is wanted and does not exist yet."""
        return {topic: counts.get(topic, 0) for topic in self._wanted.of(counts)}

    def _count_partitions(self) -> dict[str, int]:
        """Partitions of every topic, internal ones left out unless they are named."""
        return {
            name: len(topic.partitions)
            for name, topic in self._cluster.topics().items()
            if not topic.internal or name in self._wanted.names
        }
