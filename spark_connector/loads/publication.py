"""How far a group's loads are, told to the brokers' consumer group of the same name, where lag tools look for it.

Called by load.py after each commit (`kafka-consumer-groups`, `pykafka groups describe`, dashboards), and when there was
nothing to load: the load before may have been killed, or the brokers away, between its commit and this. Only
information: where the loads go on is said by their own commit log, and nothing here can fail a load. Offsets in the
group that no load has published are an application's, which would go on from where the loads are: then nothing is
published. What is ours is known by the text that is committed beside each offset. Brokers forget offsets after
`offsets.retention.minutes`; every load publishes all of the group's again, as a consumer commits what it has committed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping

from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.committed_offsets import GroupOffsets
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.destination import Destination
from spark_connector.loads.request import LoadRequest

__all__ = ["publish_offsets"]

logger = logging.getLogger("pykafka.spark")

_OURS = "pykafka load "
_PATIENCE = 10.0  # seconds; the load is done, and its caller waits
_IDLE = 300.0  # seconds; a service looks for new records far more often
_told: set[tuple[str, str]] = set()
_looked: dict[tuple[str, str], float] = {}  # (group, destination) → when its offsets were last seen to


def publish_offsets(
    request: LoadRequest, site: Destination, *, idle: bool = False, clock: Callable[[], float] = time.monotonic
) -> None:
    """Commit the offsets of the group's log to the brokers' group; warns, once per group and cause, when it cannot.

    `idle`: nothing was loaded; then not again when this process has done it within five minutes."""
    group, place = request.target.group, (request.target.group, site.url)
    if idle and clock() - _looked.get(place, -_IDLE) < _IDLE:
        return
    try:
        offsets, newest = site.log.offsets(), site.log.newest().load_id
        if not offsets:
            return
        with contextlib.closing(Cluster(request.source.client, create_topics=False)) as cluster:
            committed = GroupOffsets(cluster, group)
            if any(not one.metadata.startswith(_OURS) for one in committed.committed(timeout_s=_PATIENCE).values()):
                _warn(group, "it has offsets that are no load's; rename the group, or set publish_offsets=False")
            else:
                committed.commit(_existing(cluster, offsets), f"{_OURS}{newest or ''}", timeout_s=_PATIENCE)
        _looked[place] = clock()
    except Exception as error:
        plain = error if isinstance(error, PykafkaError | OSError) else site.plain_error(error)
        if plain is None:
            raise
        _warn(group, str(plain).partition("\n")[0])


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
