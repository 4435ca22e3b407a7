"""Assigns replicas to brokers. Pure.

Kafka's AdminUtils.assignReplicasToBrokers without racks and with a fixed shift: replica j of partition i is on broker
(start + i + j) mod n. An assignment maps a partition to broker ids, the preferred leader first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from broker.errors import BrokerError, ErrorCode

__all__ = ["assign_replicas", "check_assignment", "check_replication_factor"]


def check_replication_factor(factor: int, asked: str) -> None:
    """Raise BrokerError `invalid_replication_factor` for more than one replica: records are not replicated yet.

    `asked` is the source of the factor, such as "default.replication.factor=3".
    """
    if factor > 1:
        raise BrokerError(
            ErrorCode.invalid_replication_factor,
            f"{asked}: pykafka does not replicate records, so a partition has one replica; use replication factor 1",
        )


def assign_replicas(
    brokers: Collection[int],
    partitions: int,
    replication_factor: int,
    *,
    start: int = 0,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """Assign partitions `first_partition … first_partition + partitions - 1` to the brokers, ordered by id.

    To add partitions to a topic, pass its partition count as `first_partition`, and the same `start`.
    Raises BrokerError `invalid_partitions`, `invalid_replication_factor`, `broker_not_available`.
    """
    if partitions < 1:
        raise BrokerError(ErrorCode.invalid_partitions, f"{partitions} partitions asked for, at least 1 is needed")
    ids = sorted(set(brokers))
    if not ids:
        raise BrokerError(ErrorCode.broker_not_available, "no broker is registered")
    if replication_factor < 1:
        raise BrokerError(
            ErrorCode.invalid_replication_factor, f"replication factor {replication_factor}, at least 1 is needed"
        )
    if replication_factor > len(ids):
        raise BrokerError(
            ErrorCode.invalid_replication_factor,
            f"replication factor {replication_factor} is larger than the number of available brokers, {len(ids)}",
        )
    return {
        partition: tuple(ids[(start + partition + replica) % len(ids)] for replica in range(replication_factor))
        for partition in range(first_partition, first_partition + partitions)
    }


def check_assignment(
    assignment: Mapping[int, Sequence[int]], brokers: Collection[int], *, first_partition: int = 0
) -> dict[int, tuple[int, ...]]:
    """The assignment that a client asked for, after checks.

    Raises BrokerError `invalid_replica_assignment` if partitions are not consecutive from `first_partition`, a
    partition has no or repeated replicas, replication factors differ, or a broker is not registered.
    """
    expected = list(range(first_partition, first_partition + len(assignment)))
    if not assignment or sorted(assignment) != expected:
        raise _refused(f"partitions {sorted(assignment)} are not consecutive from {first_partition}")
    factor = len(assignment[first_partition])
    for partition in expected:
        replicas = assignment[partition]
        if not replicas:
            raise _refused(f"partition {partition} has no replica")
        if len(set(replicas)) != len(replicas):
            raise _refused(f"partition {partition} names a broker twice: {list(replicas)}")
        if len(replicas) != factor:
            raise _refused(f"partition {partition} has {len(replicas)} replicas, partition {first_partition} {factor}")
        if unknown := sorted(set(replicas) - set(brokers)):
            raise _refused(f"partition {partition} names brokers that are not registered: {unknown}")
    return {partition: tuple(assignment[partition]) for partition in expected}


def _refused(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_replica_assignment, reason)
