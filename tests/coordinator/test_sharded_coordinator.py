"""The partition of an id."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.coordinator.sharded_coordinator import MAX_ID_LENGTH, partition_for


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("polygenelubricants", -(2**31)),  # of which Java has no absolute value
        ("x" * 200, None),  # too long to be kept
    ],
)
def test_partition_is_javas_hash_code_modulo_the_partitions(name: str, hashed: int | None) -> None:
    if hashed is None:
        hashed = 0
        for letter in name:
            hashed = (31 * hashed + ord(letter)) % 2**32
        hashed -= 2**32 if hashed >= 2**31 else 0
    expected = 0 if hashed == -(2**31) else abs(hashed) % 50
    assert [partition_for(name, 50) for _ in range(2)] == [expected, expected]


def test_long_ids_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(200):
            partition_for(f"{number}".ljust(MAX_ID_LENGTH, "x"), 50)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 10 * MAX_ID_LENGTH
