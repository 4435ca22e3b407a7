"""Asks all brokers for the committed offsets of the groups that they coordinate, for the backup of the cluster.

Used by `archive_upkeep.py`, on the event loop. A broker answers another one as any client: brokers need to be super
users, or to have the right to describe all groups and topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from broker.cluster.cluster_backup import CommittedOffset, GroupOffsets
from broker.cluster.metadata_cache import MetadataCache
from broker.errors import ErrorCode, PykafkaError
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import BrokerInfo

logger = logging.getLogger(__name__)

_LIST_GROUPS = 3
_OFFSET_FETCH = 8
"""The first version that takes several groups."""
_GROUPS_AT_ONCE = 100
_OFFSETS_AT_ONCE = 2000
"""About how many one answer has, so that neither broker is held up: a group may have tens of thousands."""


class GroupBackup:
    """What groups have committed, as far as it is known."""

    def __init__(
        self, topics: MetadataCache, connect: Callable[[BrokerInfo], PeerConnection | None], known: GroupOffsets
    ) -> None:
        """`connect` gives a connection to a broker, None when brokers cannot talk to it. `known`: from the last
        backup, which another controller may have written."""
        self._topics = topics
        self._connect = connect
        self._known = dict(known)
        self._told: dict[int, str] = {}
        """Broker → why it has not answered, which is logged once."""

    async def read(self) -> GroupOffsets:
        """The offsets of all groups. Those of brokers that do not answer stay as they were."""
        brokers = list(self._topics.metadata.brokers.values())
        answers = await asyncio.gather(*map(self._ask, brokers))
        found = {group: offsets for answer in answers if answer is not None for group, offsets in answer.items()}
        self._known = {**self._known, **found} if None in answers else found
        return self._known

    async def _ask(self, broker: BrokerInfo) -> GroupOffsets | None:
        """What this broker coordinates; None where that is not known."""
        peer = self._connect(broker)
        if peer is None:
            return None
        try:
            found = await _offsets(peer)
            self._told.pop(broker.broker_id, None)
            return found
        except PykafkaError as error:
            if self._told.get(broker.broker_id) != str(error):
                text = "broker %d does not tell the offsets of its groups, so the backup has older ones: %s"
                logger.warning(text, broker.broker_id, error)
            self._told[broker.broker_id] = str(error)
            return None
        finally:
            peer.close()


async def _offsets(peer: PeerConnection) -> GroupOffsets:
    listed = await peer.request(ApiKey.LIST_GROUPS, _LIST_GROUPS, {})
    _check(listed.error_code, "its groups")
    found: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    names = sorted(group.group_id for group in listed.groups)
    first, count = 0, 1
    while first < len(names):
        groups = names[first : first + count]
        asked = {"groups": [{"group_id": group, "topics": None} for group in groups], "require_stable": False}
        answer = await peer.request(ApiKey.OFFSET_FETCH, _OFFSET_FETCH, asked)
        for group in answer.groups:
            _check(group.error_code, f"group {group.group_id!r}")
            if offsets := dict(_committed(group.topics)):
                found[group.group_id] = offsets
        first += count
        largest = max((len(found.get(group, ())) for group in groups), default=0)
        count = max(1, min(2 * count, _GROUPS_AT_ONCE, _OFFSETS_AT_ONCE // max(largest, 1)))
    return found


def _committed(topics: Iterable[Any]) -> Iterable[tuple[TopicPartition, CommittedOffset]]:
    for topic in topics:
        for one in topic.partitions:
            if one.committed_offset >= 0:
                committed = CommittedOffset(one.committed_offset, one.committed_leader_epoch, one.metadata or "")
                yield TopicPartition(topic.name, one.partition_index), committed


def _check(code: ErrorCode, what: str) -> None:
    if code is not ErrorCode.none:
        raise PykafkaError(f"{what}: {code.name}")
