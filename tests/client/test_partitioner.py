"""Where records go: keys as in Kafka's Java client, the rest from partition to partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from broker.client.partitioner import next_sticky_partition
from broker.records.key_hash import murmur2, partition_of_key


@pytest.mark.parametrize(
    ("data", "signed"),  # Kafka's own vectors, UtilsTest.testMurmur2
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


@given(st.binary(max_size=64))
def test_murmur2_agrees_with_kafka_python(data: bytes) -> None:
    assert murmur2(data) == kafka_python_murmur2(data) & 0xFFFFFFFF


@given(st.binary(max_size=32), st.integers(1, 1000))
def test_a_key_always_meets_the_same_partition(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of_key(key, partitions) < partitions
    assert partition_of_key(key, partitions) == partition_of_key(bytes(key), partitions)


@given(st.integers(-1, 9), st.integers(1, 10))
def test_the_next_sticky_partition_is_another_one_if_there_is(current: int, partitions: int) -> None:
    chosen = next_sticky_partition(min(current, partitions - 1), partitions)
    assert 0 <= chosen < partitions
    assert partitions == 1 or chosen != current


def test_every_partition_gets_its_turn() -> None:
    seen, current = set(), 0
    for _ in range(500):
        current = next_sticky_partition(current, 4)
        seen.add(current)
    assert seen == {0, 1, 2, 3}
