"""A consumer's subscription: which topics it names now, and its share in them.

Called by consumer.py from the thread that polls. Joins the group when asked to, joins again when the group
rebalances or the topics change (one appears that the pattern matches, partitions are added), and says
before and after which partitions go and come.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence

from broker.client.cluster import Cluster
from broker.client.group import GroupMember
from broker.client.group_offsets import Membership
from broker.client.heartbeat import HeartbeatThread
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
        self._wanted: Sequence[str] | re.Pattern[str] = ()
        self._on_assign: OnAssign = lambda partitions: None
        self._on_revoke: OnRevoke = lambda partitions, ours: None
        self._has: list[TopicPartition] | None = None
        self._counts: dict[str, int] = {}
        self._look_at_topics = 0.0

    @property
    def membership(self) -> Membership:
        """Under what name to commit."""
        return self._member.membership

    def want(self, topics: Sequence[str] | re.Pattern[str], on_assign: OnAssign, on_revoke: OnRevoke) -> None:
        """Subscribe to these topics, or to those whose whole name matches the pattern.

        `on_assign(partitions)` when they came; `on_revoke(partitions, ours)` before they go, with `ours` False when the
        group has given them to others already.
        """
        self._wanted, self._on_assign, self._on_revoke = topics, on_assign, on_revoke
        self._look_at_topics = 0.0
        self._member.request_rejoin()

    def advance(self, timeout_s: float) -> bool:
        """Take part, waiting no longer than `timeout_s`; whether the assignment is settled now."""
        if not self._heartbeats.is_alive():
            self._heartbeats.start()
        self._heartbeats.polled()
        if time.monotonic() >= self._look_at_topics:
            self._renew_topics()
        if self._member.stable and self._has is not None:
            return True
        if self._has is not None:
            self._on_revoke(self._has, self._member.joined)
            self._has = None
        if not self._member.advance(sorted(self._counts), timeout_s):
            return False
        self._has = list(self._member.assignment)
        self._on_assign(self._has)
        return True

    def close(self) -> None:
        """Leave the group. Raises what the request raises, with all else done."""
        self._heartbeats.stop()
        if self._has is not None:
            self._on_revoke(self._has, self._member.joined)
            self._has = None
        try:
            self._member.leave()
        finally:
            self._member.close()

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
        if isinstance(self._wanted, re.Pattern):
            return {topic: count for topic, count in counts.items() if self._wanted.fullmatch(topic)}
        return {topic: counts.get(topic, 0) for topic in self._wanted}

    def _count_partitions(self) -> dict[str, int]:
        """Partitions of every topic, internal ones left out unless they are named."""
        internal_too = () if isinstance(self._wanted, re.Pattern) else self._wanted
        return {
            name: len(topic.partitions)
            for name, topic in self._cluster.topics().items()
            if not topic.internal or name in internal_too
        }
