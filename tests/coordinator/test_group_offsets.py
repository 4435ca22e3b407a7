"""Which committed offsets expire (KIP-211), on the pure state machine."""

from __future__ import annotations

from struct import pack

from broker.coordinator.group import Now
from broker.coordinator.group_messages import NO_OFFSET
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.group_records import OffsetAndMetadata
from broker.protocol.topic_partition import TopicPartition
from tests.support.groups import START_MS, GroupDriver

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
READS_A = (("range", pack(">hi", 0, 1) + b"\x00\x01a" + pack(">i", -1)),)
WEEK_MS = 10_080 * 60_000


def committed(at_ms: int, expire_at: int = -1) -> OffsetAndMetadata:
    return OffsetAndMetadata(1, -1, "", at_ms, expire_at)


def expired_at(driver: GroupDriver, ms: int) -> list[TopicPartition]:
    return driver.group.expired_offsets(Now(0.0, ms))


def test_of_some_partitions_answers_each() -> None:
    offsets = GroupOffsets()
    offsets.apply(A0, committed(5))
    assert offsets.of([A0, B0]) == {A0: committed(5), B0: NO_OFFSET}
    assert offsets.all() == {A0: committed(5)}
    assert offsets.known([A0, B0]) == [A0]


def test_tombstone_removes_what_was_committed() -> None:
    offsets = GroupOffsets()
    offsets.apply(A0, committed(5))
    offsets.apply(A0, None)
    offsets.apply(B0, None)
    assert len(offsets) == 0


def test_offsets_of_a_transaction_count_from_its_end_on() -> None:
    offsets = GroupOffsets()
    offsets.apply(A0, committed(1))
    offsets.begin_append([A0, B0])
    assert (offsets.is_unstable(A0), offsets.is_unstable(A1)) == (True, False)
    for partition in (A0, B0):
        offsets.add_pending(7, partition, committed(5))
    offsets.end_append([A0, B0])
    assert (offsets.is_unstable(A0), offsets.has_pending) == (True, True)
    assert offsets.all() == {A0: committed(1)}
    offsets.end_transaction(7, commit=True)
    assert offsets.all() == {A0: committed(5), B0: committed(5)}
    assert (offsets.is_unstable(A0), offsets.has_pending) == (False, False)


def test_commit_that_could_not_be_stored_leaves_the_partition_stable() -> None:
    offsets = GroupOffsets()
    offsets.begin_append([A0])
    offsets.begin_append([A0])
    offsets.end_append([A0])
    assert offsets.is_unstable(A0)
    offsets.end_append([A0])
    assert not offsets.is_unstable(A0)


def test_plain_commit_after_a_pending_one_wins() -> None:
    offsets = GroupOffsets()
    offsets.add_pending(7, A0, committed(5))
    offsets.apply(A0, committed(6))
    assert offsets.is_unstable(A0)
    offsets.end_transaction(7, commit=True)
    assert offsets.all() == {A0: committed(6)}


def test_offset_that_a_transaction_moves_does_not_expire(driver: GroupDriver) -> None:
    for partition in (A0, A1):
        driver.group.offsets.apply(partition, committed(START_MS))
    driver.group.offsets.add_pending(7, A0, committed(START_MS))
    assert expired_at(driver, START_MS + WEEK_MS) == [A1]
    driver.group.offsets.end_transaction(7, commit=False)
    assert expired_at(driver, START_MS + WEEK_MS) == [A0, A1]


def test_simple_consumers_offsets_expire_by_their_age(driver: GroupDriver) -> None:
    driver.group.offsets.apply(A0, committed(START_MS))
    driver.group.offsets.apply(A1, committed(START_MS + 1))
    assert expired_at(driver, START_MS + WEEK_MS - 1) == []
    assert expired_at(driver, START_MS + WEEK_MS) == [A0]


def test_empty_groups_offsets_expire_together_after_it_became_empty(driver: GroupDriver) -> None:
    driver.stable(1)
    driver.group.offsets.apply(A0, committed(START_MS - WEEK_MS))
    driver.advance(10_000)
    empty_since = START_MS + 10_000
    assert expired_at(driver, empty_since + WEEK_MS - 1) == []
    assert expired_at(driver, empty_since + WEEK_MS) == [A0]


def test_stable_groups_offsets_expire_where_nobody_subscribes(driver: GroupDriver) -> None:
    driver.stable(1, protocols=READS_A)
    for partition in (A0, B0):
        driver.group.offsets.apply(partition, committed(START_MS))
    assert expired_at(driver, START_MS + WEEK_MS) == [B0]


def test_nothing_expires_while_a_rebalance_goes_on_or_subscriptions_are_unreadable(driver: GroupDriver) -> None:
    driver.stable(1, protocols=(("range", b"?"),))
    driver.group.offsets.apply(A0, committed(START_MS))
    assert expired_at(driver, START_MS + 2 * WEEK_MS) == []
    driver.join(protocols=READS_A)
    assert expired_at(driver, START_MS + 2 * WEEK_MS) == []


def test_offset_with_an_expiry_of_its_own_keeps_to_it(driver: GroupDriver) -> None:
    driver.group.offsets.apply(A0, committed(START_MS, START_MS + 5))
    assert expired_at(driver, START_MS + 4) == []
    assert expired_at(driver, START_MS + 5) == [A0]
