"""How far a group's loads are, told to the brokers' consumer group of the same name, where lag tools look for it.

Called by load.py after each commit (`kafka-consumer-groups`, `pykafka groups describe`, dashboards). Only information:
where the loads go on is said by their own commit log, and nothing here can fail a load that is committed. Offsets in
the group that no load has published are an application's, which would go on from where the loads are: then nothing is
published. What is ours is known by the text that is committed beside each offset. Brokers forget offsets after
`offsets.retention.minutes`; every load publishes all of the group's again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from broker.client.cluster import Cluster
from broker.client.group_offsets import GroupOffsets
from broker.client.metadata import UnknownTopic
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.destination import Destination
from spark_connector.loads.request import LoadRequest

__all__ = ["publish_offsets"]

logger = logging.getLogger("pykafka.spark")

_OURS = "pykafka load "
_PATIENCE = 10.0  # seconds; the load is done, and its caller waits
_told: set[tuple[str, str]] = set()


def publish_offsets(request: LoadRequest, site: Destination) -> None:
    """Commit the offsets of the group's log to the brokers' group; warns, once per group and cause, when it cannot."""
    group = request.target.group
    try:
        newest = site.log.newest().load_id
        with contextlib.closing(Cluster(request.source.client, create_topics=False)) as cluster:
            committed = GroupOffsets(cluster, group)
            if any(not one.metadata.startswith(_OURS) for one in committed.committed(timeout_s=_PATIENCE).values()):
                _warn(group, "it has offsets that are no load's; rename the group, or set publish_offsets=False")
                return
            committed.commit(_existing(cluster, site.log.offsets()), f"{_OURS}{newest}", timeout_s=_PATIENCE)
    except (PykafkaError, OSError) as error:
        _warn(group, str(error).partition("\n")[0])


def _existing(cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Those of partitions that there are; brokers refuse the others."""
    found: dict[str, list[int]] = {}
    cluster.include({tp.topic for tp in offsets})
    for topic in {tp.topic for tp in offsets}:
        with contextlib.suppress(UnknownTopic):
            found[topic] = cluster.partitions(topic)
    return {tp: offset for tp, offset in offsets.items() if tp.partition in found.get(tp.topic, ())}


def _warn(group: str, why: str) -> None:
    if (group, why) not in _told:
        _told.add((group, why))
        logger.warning(
            "The load is committed, but the consumer group '%s' was not told, so lag tools do not show it: %s",
            group,
            why,
        )
