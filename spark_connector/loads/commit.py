"""Publishes the offsets of a group's loads to the brokers' consumer group of the same name, where lag tools look.

For `kafka-consumer-groups`, `pykafka groups describe` and dashboards. load.py calls it after each commit, and also when
there was nothing to load: the load before may have been killed, or the brokers unreachable, after its commit. The
offsets are only information: loads continue from their own commit log, and a failure here never fails a load. If the
group has offsets of an application, nothing is published, because the application would continue from them. Offsets of
loads are recognized by the metadata committed beside them. Brokers delete offsets after `offsets.retention.minutes`, so
every load publishes all offsets of the group again.
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

logger = logging.getLogger("pykafka.spark")

_METADATA = "pykafka load "
_PATIENCE = 10.0  # seconds; the caller of a load that is done waits
_IDLE = 300.0  # seconds; a service looks for new records much more often
_warned: set[tuple[str, str]] = set()
_published_at: dict[tuple[str, str], float] = {}  # (group, destination) → when its offsets were published


def publish_offsets(
    request: LoadRequest, destination: Destination, *, idle: bool = False, clock: Callable[[], float] = time.monotonic
) -> None:
    """Commit the offsets of the group's log to the brokers' group. On a failure warns, once per group and cause.

    `idle`: nothing was loaded; then this process publishes at most every five minutes. A re-run leaves the group where
    it is.
    """
    if not request.publish_offsets or request.from_load is not None:
        return
    group, place = request.target.group, (request.target.group, destination.url)
    if idle and clock() - _published_at.get(place, -_IDLE) < _IDLE:
        return
    try:
        offsets, newest = destination.log.offsets(), destination.log.newest().load_id
        if not offsets:
            return
        with contextlib.closing(Cluster(request.source.client, create_topics=False)) as cluster:
            committed = GroupOffsets(cluster, group)
            if any(not one.metadata.startswith(_METADATA) for one in committed.committed(timeout_s=_PATIENCE).values()):
                _warn(group, "it has offsets of another application; rename the group, or set publish_offsets=False")
            else:
                committed.commit(_existing(cluster, offsets), f"{_METADATA}{newest or ''}", timeout_s=_PATIENCE)
        _published_at[place] = clock()
    except Exception as error:
        plain = error if isinstance(error, PykafkaError | OSError) else destination.plain_error(error)
        if plain is None:
            raise
        _warn(group, str(plain).partition("\n")[0])


def _existing(cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets of partitions that exist; brokers refuse others."""
    found: dict[str, list[int]] = {}
    cluster.include({tp.topic for tp in offsets})
    for topic in {tp.topic for tp in offsets}:
        with contextlib.suppress(UnknownTopic):
            found[topic] = cluster.partitions(topic)
    return {tp: offset for tp, offset in offsets.items() if tp.partition in found.get(tp.topic, ())}


def _warn(group: str, why: str) -> None:
    if (group, why) not in _warned:
        _warned.add((group, why))
        logger.warning(
            "The load is committed, but its offsets were not published to the consumer group '%s', for lag tools: %s",
            group,
            why,
        )
