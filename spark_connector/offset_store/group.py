"""The offset store in the cluster itself: OffsetCommit and OffsetFetch of a consumer group.

Lag tools and ordinary consumers read these offsets (`kafka-consumer-groups`, dashboards). Brokers have no
compare-and-set, so `expected` is checked before the commit, but not atomically: enough to report progress, but not for
the commit of a load. A commit is refused (BrokerError) while the group has members.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.protocol.topic_partition import TopicPartition
from spark_connector.offset_store.base import NO_IDS, Offsets, TopicIds, check_expected, required_option

_PREFIX = "kafka."
_METADATA = "pykafka stream"
"""The text beside the offsets, by which people and `pykafka ui` see what has committed them."""


def open_from_options(options: Mapping[str, str]) -> GroupOffsetStore:
    """`kafka.bootstrap.servers` and every other `kafka.*` option, as for reading."""
    bootstrap = required_option(options, "kafka.bootstrap.servers", "the brokers of the 'group' offset store")
    lower = {name.lower(): value for name, value in options.items()}
    properties = {name[len(_PREFIX) :]: value for name, value in lower.items() if name.startswith(_PREFIX)}
    return GroupOffsetStore(Cluster(bootstrap, properties))


class GroupOffsetStore:
    """Offsets of consumer groups. Owns `cluster` and closes it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def read(self, group: str) -> dict[TopicPartition, int]:
        return GroupOffsets(self._cluster, group).fetch()

    def topic_ids(self, group: str) -> dict[str, str]:
        return {}

    def commit(
        self, group: str, offsets: Offsets, *, expected: Offsets | None = None, topic_ids: TopicIds = NO_IDS
    ) -> None:
        if expected is not None:
            check_expected(group, self.read(group), expected, offsets)
        GroupOffsets(self._cluster, group).commit(offsets, _METADATA)

    def close(self) -> None:
        self._cluster.close()
