"""Assigns replicas to brokers by the rule of Kafka's `AdminUtils.assignReplicasToBrokers`. Pure.

The preferred leaders of partitions go round the brokers. The other replicas of a partition follow its leader, one
broker further in each round, so that the followers of one broker's partitions are spread over all others. If every
broker has a rack (KIP-36), neighbours in the list of brokers are of different racks, and a partition gets a second
replica in one rack only when each rack has one. An assignment maps a partition to broker ids, the preferred leader
first. Kafka begins at random. Here the caller passes the start, so added partitions continue the same pattern.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from broker.errors import BrokerError, ErrorCode


def assign_replicas(
    brokers: Collection[int],
    partitions: int,
    replication_factor: int,
    *,
    start: int = 0,
    first_partition: int = 0,
    racks: Mapping[int, str | None] | None = None,
) -> dict[int, tuple[int, ...]]:
    """Assign partitions `first_partition … first_partition + partitions - 1` to the brokers, ordered by id.

    To add partitions to a topic, pass its partition count as `first_partition`, and the same `start`. `racks`: the rack
    of each broker; they count only if every broker has one.
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
    rack_of = {broker: (racks or {}).get(broker) or "" for broker in ids}
    if not all(rack_of.values()):
        rack_of = dict.fromkeys(ids, "")
    ring = _alternating(rack_of)
    return {
        partition: _replicas(ring, rack_of, start, partition, replication_factor)
        for partition in range(first_partition, first_partition + partitions)
    }


def with_replication_factor(
    assignment: Mapping[int, Sequence[int]], factor: int, racks: Mapping[int, str | None]
) -> dict[int, tuple[int, ...]]:
    """The assignment of a topic with `factor` replicas of each partition, so that as few as possible move.

    A partition keeps its first replicas on the brokers of `racks` (broker → rack). It gets others in racks where it has
    none yet, on the brokers with the fewest replicas. Raises BrokerError `invalid_replication_factor`.
    """
    if not 1 <= factor <= len(racks):
        raise BrokerError(
            ErrorCode.invalid_replication_factor, f"replication factor {factor}, but there are {len(racks)} brokers"
        )
    kept = {index: [one for one in ids if one in racks][:factor] for index, ids in sorted(assignment.items())}
    load = Counter(one for ids in kept.values() for one in ids)
    for ids in kept.values():
        while len(ids) < factor:
            used = {racks[one] for one in ids}
            chosen = min(racks.keys() - ids, key=lambda one: (racks[one] in used, load[one], one))
            ids.append(chosen)
            load[chosen] += 1
    return {index: tuple(ids) for index, ids in kept.items()}


def _alternating(rack_of: Mapping[int, str]) -> list[int]:
    by_rack: dict[str, list[int]] = defaultdict(list)
    for broker, rack in rack_of.items():
        by_rack[rack].append(broker)
    columns = [by_rack[rack] for rack in sorted(by_rack)]
    return [column[row] for row in range(len(rack_of)) for column in columns if row < len(column)]


def _replicas(
    ring: Sequence[int], rack_of: Mapping[int, str], start: int, partition: int, count: int
) -> tuple[int, ...]:
    size, racks = len(ring), set(rack_of.values())
    leader = (start + partition) % size
    chosen = [ring[leader]]
    shift = (start + partition // size) * len(racks)
    while len(chosen) < count:
        broker = ring[(leader + 1 + shift % (size - 1)) % size]
        shift += 1
        used = {rack_of[one] for one in chosen}
        if broker not in chosen and (rack_of[broker] not in used or used == racks):
            chosen.append(broker)
    return tuple(chosen)


def check_assignment(
    assignment: Mapping[int, Sequence[int]], brokers: Collection[int], *, first_partition: int = 0
) -> dict[int, tuple[int, ...]]:
    """The assignment that a client asked for, after checks.

    Raises BrokerError `invalid_replica_assignment` if partitions are not consecutive from `first_partition`, a
    partition has no or repeated replicas, replication factors differ, or a broker is not registered.
    """
    expected = list(range(first_partition, first_partition + len(assignment)))
    if not assignment or sorted(assignment) != expected:
        raise refused_assignment(f"partitions {sorted(assignment)} are not consecutive from {first_partition}")
    factor = len(assignment[first_partition])
    for partition in expected:
        replicas = assignment[partition]
        if not replicas:
            raise refused_assignment(f"partition {partition} has no replica")
        if len(set(replicas)) != len(replicas):
            raise refused_assignment(f"partition {partition} names a broker twice: {list(replicas)}")
        if len(replicas) != factor:
            raise refused_assignment(
                f"partition {partition} has {len(replicas)} replicas, partition {first_partition} {factor}"
            )
        if unknown := sorted(set(replicas) - set(brokers)):
            raise refused_assignment(f"partition {partition} names brokers that are not registered: {unknown}")
    return {partition: tuple(assignment[partition]) for partition in expected}


def refused_assignment(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_replica_assignment, reason)
