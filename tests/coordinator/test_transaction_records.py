"""The formats of `__transaction_state`: round trips, Kafka's bytes, invalid bytes."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinator.record_reader import MalformedRecord
from broker.coordinator.transaction_records import (
    TransactionMetadata,
    TransactionState,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from broker.protocol.topic_partition import TopicPartition

i16, i32 = st.integers(-1, 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
partitions = st.frozensets(st.builds(TopicPartition, st.text(max_size=300), i32), max_size=8)
ids = st.integers(-1, 2**63 - 1)


def metadata(client_version: int, ids: st.SearchStrategy[int]) -> st.SearchStrategy[TransactionMetadata]:
    states = st.sampled_from(TransactionState)
    version = st.just(client_version)
    return st.builds(TransactionMetadata, i64, i16, i32, states, i64, partitions, i64, st.just(-1), ids, ids, version)


plain, bumping = metadata(0, st.just(-1)), metadata(2, ids)


def without_what_is_not_stored(metadata: TransactionMetadata) -> TransactionMetadata:
    if metadata.state is TransactionState.EMPTY:
        metadata = metadata._replace(partitions=frozenset())
    return metadata


@given(st.text(max_size=50))
def test_key_round_trips(transactional_id: str) -> None:
    assert decode_transaction_key(encode_transaction_key(transactional_id)) == transactional_id


@given(plain | bumping)
def test_value_round_trips(metadata: TransactionMetadata) -> None:
    assert decode_transaction(encode_transaction(metadata)) == without_what_is_not_stored(metadata)


def test_version_0_is_kafkas() -> None:
    metadata = TransactionMetadata(
        7, 3, 60_000, TransactionState.ONGOING, 1_000, frozenset({TopicPartition("t", 5)}), 900
    )
    assert encode_transaction_key("id") == b"\x00\x00\x00\x02id"
    assert encode_transaction(metadata) == (
        pack(">hqhib", 0, 7, 3, 60_000, 1) + pack(">ih1sii", 1, 1, b"t", 1, 5) + pack(">qq", 1_000, 900)
    )


def test_empty_state_has_null_partitions() -> None:
    metadata = TransactionMetadata(7, 0, 60_000, TransactionState.EMPTY, 1_000)
    assert encode_transaction(metadata) == pack(">hqhibiqq", 0, 7, 0, 60_000, 0, -1, 1_000, -1)


def test_version_1_is_kafkas() -> None:
    metadata = TransactionMetadata(
        7,
        32767,
        60_000,
        TransactionState.PREPARE_COMMIT,
        1_000,
        frozenset({TopicPartition("t", 5)}),
        900,
        next_producer_id=8,
        client_version=2,
    )
    assert encode_transaction(metadata) == (
        pack(">hqhib", 1, 7, 32767, 60_000, 2)
        + b"\x02\x02t\x02"
        + pack(">i", 5)
        + b"\x00"
        + pack(">qq", 1_000, 900)
        + b"\x02"
        + pack(">BBq", 1, 8, 8)
        + pack(">BBh", 2, 2, 2)
    )


def test_tags_of_a_later_kafka_are_skipped() -> None:
    encoded = encode_transaction(TransactionMetadata(7, 0, 1, TransactionState.EMPTY, 2, client_version=2))
    tags = b"\x01" + pack(">BBh", 2, 2, 2)
    assert encoded.endswith(tags)
    longer = encoded[: -len(tags)] + b"\x02" + tags[1:] + b"\x09\x03abc"
    assert decode_transaction(longer) == decode_transaction(encoded)


def test_key_of_a_later_kafka_is_skipped() -> None:
    assert decode_transaction_key(b"\x00\x01whatever") is None


@pytest.mark.parametrize("value", [b"", b"\x00\x02", b"\xff\xff", pack(">hqhibiqq", 0, 7, 0, 6, 9, -1, 1, -1)])
def test_bad_values_are_refused(value: bytes) -> None:
    with pytest.raises(MalformedRecord):
        decode_transaction(value)


@given(plain | bumping, st.data())
def test_hostile_bytes_raise_nothing_else(metadata: TransactionMetadata, data: st.DataObject) -> None:
    mutated = bytearray(encode_transaction(metadata))
    for _ in range(data.draw(st.integers(0, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    del mutated[data.draw(st.integers(0, len(mutated))) :]
    try:
        decode_transaction(bytes(mutated))
    except MalformedRecord:
        pass
    try:
        decode_transaction_key(bytes(mutated))
    except MalformedRecord:
        pass
