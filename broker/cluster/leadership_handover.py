"""A broker that starts or stops writes the states of its own partitions (Kafka's controlled shutdown, KIP-320).

Each state is written by compare-and-set, so this needs no request to the controller. Both functions block.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from broker.cluster.controller_state import Election, state_at_start, state_without
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import PartitionInfo
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import PartitionState, TopicRecord

logger = logging.getLogger(__name__)


def rejoin_partitions(
    registry: Registry,
    broker_id: int,
    topics: Iterable[TopicRecord],
    may_have_lost: Callable[[TopicPartition], bool],
    log_of: Callable[[TopicPartition], Mapping[str, bool]] = lambda tp: {},
) -> list[TopicPartition]:
    """Call before the broker registers. Returns the partitions with a new state, of which others must be notified.

    After that its leaders are in a new leader epoch, and it is in no ISR for which it may lack records, if that has
    another member. Nor is it where its log is gone. `log_of` gives the other arguments of `state_at_start`.
    """

    def decide(tp: TopicPartition, now: PartitionInfo) -> Election | None:
        election = state_at_start(now, broker_id, may_have_lost=may_have_lost(tp), **log_of(tp))
        if election is not None and not election.after.isr and now.isr and len(now.replicas) > 1:
            logger.error("%s: %s; it has no leader until an unclean election", tp, election.reason)
        return election

    return _write(registry, broker_id, topics, decide, log_level=logging.DEBUG)


def leave_partitions(
    registry: Registry,
    broker_id: int,
    topics: Iterable[TopicRecord],
    live: Collection[int],
    only: Collection[TopicPartition] | None = None,
) -> list[TopicPartition]:
    """Another live in-sync replica leads each partition that has one. Call it before the broker closes its listeners,
    and for partitions whose logs the disk refuses (`only`).

    Returns the partitions with a new state, of which others must be notified (promise P9).
    """

    def decide(tp: TopicPartition, now: PartitionInfo) -> Election | None:
        return state_without(now, broker_id, live) if only is None or tp in only else None

    return _write(registry, broker_id, topics, decide, log_level=logging.INFO)


def _write(
    registry: Registry,
    broker_id: int,
    topics: Iterable[TopicRecord],
    decide: Callable[[TopicPartition, PartitionInfo], Election | None],
    *,
    log_level: int,
) -> list[TopicPartition]:
    """Decide on every partition of the broker, and again where another broker has changed the state meanwhile."""
    records = {tp: record for record in topics for tp in record.partitions()}
    left = [tp for tp, record in records.items() if broker_id in record.assignment[tp.partition]]
    done: list[TopicPartition] = []
    while left:
        states: dict[TopicPartition, PartitionState] = {}
        for tp, state in registry.partition_states(left).items():
            election = decide(tp, records[tp].partition(tp.partition, state))
            if election is not None:
                after = election.after
                states[tp] = dataclasses.replace(
                    state,
                    leader=after.leader,
                    leader_epoch=after.leader_epoch,
                    isr=after.isr,
                    is_restored=after.is_restored,
                )
                logger.log(log_level, "%s: %s", tp, election)
        written = registry.write_states(states)
        done += written
        left = [tp for tp in states if tp not in written]
    return done
