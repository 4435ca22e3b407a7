"""The records of the internal topics: Kafka's bytes, round trips, invalid bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinator import group_records as classic
from broker.coordinator import modern_group_records as modern
from broker.coordinator import share_group_records as share
from broker.coordinator import transaction_records as transactions
from broker.coordinator.group_records import GroupKey, GroupMetadata, MemberMetadata, OffsetAndMetadata, OffsetKey
from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.coordinator.modern_group_records import ConsumerGroupKey, CurrentAssignment, MemberState, RecordKind
from broker.coordinator.record_format import MalformedRecord
from broker.coordinator.share_group_records import ShareAssignment, ShareGroupKey, ShareRecord, StatePartitions
from broker.coordinator.transaction_records import TransactionMetadata, TransactionState
from broker.protocol.consumer_protocol import subscribed_topics
from broker.protocol.topic_partition import TopicPartition
from broker.share import share_records as states
from broker.share.persister import SharePartitionKey, StateBatch
from broker.share.share_records import ShareSnapshot, ShareUpdate

text, null = st.text(max_size=40), st.none()
i16 = st.integers(-(2**15), 2**15 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ids = st.integers(-1, 2**63 - 1)
texts = st.frozensets(text, max_size=3)
members = st.builds(MemberMetadata, text, null | text, text, text, i32, i32, st.binary(), st.binary())
partitions = st.builds(TopicIdPartition, st.uuids(), i32)
epochs = st.dictionaries(partitions, i32, max_size=5)
protocols = st.lists(st.tuples(text, st.binary(max_size=9)), max_size=3).map(tuple)
membership = null | st.builds(modern.ClassicMembership, i32, protocols)
topic_shares = st.builds(share.TopicShares, text, st.frozensets(i32, max_size=4))
shares = st.dictionaries(st.uuids(), topic_shares, max_size=3)
tps = st.frozensets(st.builds(TopicPartition, st.text(max_size=300), i32), min_size=1, max_size=8)
batches = st.lists(i16, max_size=4).map(
    lambda counts: [StateBatch(9 * at, 9 * at + 3, 2, count) for at, count in enumerate(counts)]
)


def transaction(client_version: int, ids: st.SearchStrategy[int]) -> st.SearchStrategy[TransactionMetadata]:
    states = st.sampled_from(sorted(set(TransactionState) - {TransactionState.EMPTY}))
    version = st.just(client_version)
    metadata = st.builds(TransactionMetadata, i64, i16, i32, states, i64, tps, i64, st.just(-1), ids, ids, version)
    return metadata | metadata.map(lambda one: one._replace(state=TransactionState.EMPTY, partitions=frozenset()))


class Format(NamedTuple):
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    values: st.SearchStrategy[Any]


def of_group(kind: RecordKind, values: st.SearchStrategy[Any]) -> Format:
    return Format(modern.encode_value, partial(modern.decode_value, kind), values)


def of_share(kind: ShareRecord, values: st.SearchStrategy[Any]) -> Format:
    return Format(share.encode_value, partial(share.decode_value, kind), values)


OF_GROUP = RecordKind.GROUP_EPOCH, RecordKind.TARGET_EPOCH
OF_SHARE_GROUP = ShareRecord.GROUP_EPOCH, ShareRecord.TARGET_EPOCH, ShareRecord.STATE_PARTITIONS
FORMATS = {
    "offset key": Format(
        lambda key: classic.encode_offset_key(*key), classic.decode_key, st.builds(OffsetKey, text, text, i32)
    ),
    "group key": Format(lambda key: classic.encode_group_key(*key), classic.decode_key, st.builds(GroupKey, text)),
    "offset": Format(
        classic.encode_offset,
        classic.decode_offset,
        st.builds(OffsetAndMetadata, i64, i32, text, i64, st.just(-1))
        | st.builds(OffsetAndMetadata, i64, st.just(-1), text, i64, st.integers(0, 2**63 - 1)),
    ),
    "group": Format(
        classic.encode_group,
        classic.decode_group,
        st.builds(GroupMetadata, text, i32, null | text, null | text, i64, st.lists(members, max_size=3).map(tuple)),
    ),
    "consumer group key": Format(
        modern.encode_key,
        modern.decode_key,
        st.builds(ConsumerGroupKey, st.sampled_from(OF_GROUP), text, st.just(""))
        | st.builds(ConsumerGroupKey, st.sampled_from(sorted({*RecordKind} - {*OF_GROUP})), text, text),
    ),
    "group epoch": of_group(RecordKind.GROUP_EPOCH, st.builds(modern.GroupEpoch, i32, i64)),
    "member": of_group(
        RecordKind.MEMBER,
        st.builds(
            modern.MemberSubscription,
            *(null | text, null | text, text, text, texts, text, i32, null | text),
            membership,
        ),
    ),
    "target epoch": of_group(RecordKind.TARGET_EPOCH, st.builds(modern.TargetEpoch, i32, i64)),
    "target": of_group(RecordKind.TARGET, st.frozensets(partitions, max_size=5)),
    "current": of_group(
        RecordKind.CURRENT, st.builds(CurrentAssignment, i32, i32, st.sampled_from(MemberState), epochs, epochs)
    ),
    "regex": of_group(RecordKind.REGEX, st.builds(modern.ResolvedRegex, texts, i64, i64)),
    "share group key": Format(
        share.encode_key,
        share.decode_key,
        st.builds(ShareGroupKey, st.sampled_from(OF_SHARE_GROUP), text, st.just(""))
        | st.builds(ShareGroupKey, st.sampled_from(sorted({*ShareRecord} - {*OF_SHARE_GROUP})), text, text),
    ),
    "share member": of_share(ShareRecord.MEMBER, st.builds(share.ShareSubscription, null | text, text, text, texts)),
    "share group epoch": of_share(ShareRecord.GROUP_EPOCH, st.builds(share.GroupEpoch, i32, i64)),
    "share target epoch": of_share(ShareRecord.TARGET_EPOCH, st.builds(modern.TargetEpoch, i32, i64)),
    "share target": of_share(ShareRecord.TARGET, st.frozensets(partitions, max_size=5)),
    "share current": of_share(
        ShareRecord.CURRENT, st.builds(ShareAssignment, i32, i32, st.frozensets(partitions, max_size=5))
    ),
    "share states": of_share(
        ShareRecord.STATE_PARTITIONS,
        st.builds(StatePartitions, shares, shares, st.dictionaries(st.uuids(), text, max_size=2)),
    ),
    "transaction key": Format(transactions.encode_transaction_key, transactions.decode_transaction_key, text),
    "transaction": Format(
        transactions.encode_transaction,
        transactions.decode_transaction,
        transaction(0, st.just(-1)) | transaction(2, ids),
    ),
    "snapshot key": Format(
        lambda key: states.encode_snapshot_key(key[0]),
        states.decode_key,
        st.tuples(st.builds(SharePartitionKey, text, st.uuids(), i32), st.just(True)),
    ),
    "update key": Format(
        lambda key: states.encode_update_key(key[0]),
        states.decode_key,
        st.tuples(st.builds(SharePartitionKey, text, st.uuids(), i32), st.just(False)),
    ),
    "snapshot": Format(
        states.encode_snapshot,
        states.decode_snapshot,
        st.builds(ShareSnapshot, i32, i32, i32, i64, i64, i64, batches, i32),
    ),
    "update": Format(states.encode_update, states.decode_update, st.builds(ShareUpdate, i32, i32, i64, batches, i32)),
}
KEYS = sorted(name for name in FORMATS if name.endswith("key"))

few = settings(max_examples=20)
each_format = pytest.mark.parametrize("name", FORMATS)


@few
@each_format
@given(data=st.data())
def test_what_is_written_is_read_and_refused_if_it_is_shorter_or_longer(name: str, data: st.DataObject) -> None:
    encode, decode, values = FORMATS[name]
    value = data.draw(values)
    encoded = encode(value)
    assert decode(encoded) == value
    with pytest.raises(MalformedRecord):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(MalformedRecord, match="too many"):
        decode(encoded + b"\0")


@few
@each_format
@given(data=st.data())
def test_hostile_bytes_are_malformed_or_a_value(name: str, data: st.DataObject) -> None:
    encode, decode, values = FORMATS[name]
    hostile = bytearray(encode(data.draw(values)))
    for _ in range(data.draw(st.integers(0, 4))):
        hostile[data.draw(st.integers(0, len(hostile) - 1))] = data.draw(st.integers(0, 255))
    of_any_kind = data.draw(st.binary(max_size=60))
    for one in (bytes(hostile), of_any_kind, bytes(hostile[:2]) + of_any_kind):
        try:
            value = decode(one)
        except MalformedRecord:
            continue
        if value is not None and name not in KEYS:
            written = decode(encode(value))  # in the version that it needs, so without what nobody asks for
            assert decode(encode(written)) == written


TOPIC, ZEROS = UUID("00112233-4455-6677-8899-aabbccddeeff"), UUID(int=7)
ONE, TWO, THREE, FOUR = (TopicIdPartition(TOPIC, number) for number in (1, 2, 3, 4))
NULL = TopicIdPartition(TOPIC, 0)
MEMBER = MemberMetadata("m", None, "c", "h", 10, 20, b"s", b"as")
T5 = frozenset({TopicPartition("t", 5)})
SHARE_KEY = SharePartitionKey("g", UUID("9f16f47c-adc6-4ad7-b2a9-80dca62fe5b8"), 0)

# (format, the bytes that Kafka writes, the value)
KAFKAS_BYTES = [
    ("offset key", "00010001670002746f00000005", OffsetKey("g", "to", 5)),
    ("group key", "0002000167", GroupKey("g")),
    ("offset", "00030000000000000001000000020001780000000000000003", OffsetAndMetadata(1, 2, "x", 3)),
    (
        "group",
        (
            "00030008636f6e73756d657200000004000572616e676500016d000000000000000900000001"
            "00016dffff0001630001680000000a000000140000000173000000026173"
        ),
        GroupMetadata("consumer", 4, "range", "m", 9, (MEMBER,)),
    ),
    ("transaction key", "000000026964", "id"),
    (
        "transaction",
        "0000000000000000000700030000ea600100000001000174000000010000000500000000000003e80000000000000384",
        TransactionMetadata(7, 3, 60_000, TransactionState.ONGOING, 1_000, T5, 900),
    ),
    (
        "transaction",
        "0000000000000000000700000000ea6000ffffffff00000000000003e8ffffffffffffffff",
        TransactionMetadata(7, 0, 60_000, TransactionState.EMPTY, 1_000),
    ),
    (
        "transaction",
        "000100000000000000077fff0000ea600202027402000000050000000000000003e80000000000000384020108000000000000000802020002",
        TransactionMetadata(
            *(7, 32767, 60_000, TransactionState.PREPARE_COMMIT, 1_000, T5, 900), next_producer_id=8, client_version=2
        ),
    ),
    # What Kafka 4.3's own classes write.
    ("consumer group key", "0003000167", ConsumerGroupKey(RecordKind.GROUP_EPOCH, "g")),
    ("consumer group key", "000800016700016d", ConsumerGroupKey(RecordKind.CURRENT, "g", "m")),
    ("consumer group key", "00100001670003612e2a", ConsumerGroupKey(RecordKind.REGEX, "g", "a.*")),
    ("group epoch", "000000000005010008000000000000004d", modern.GroupEpoch(5, 77)),
    ("group epoch", "00000000000500", modern.GroupEpoch(5)),
    (
        "member",
        "00000269000263032f68030261026201000493e00672616e6765010011010000afc8020672616e67650300010000",
        modern.MemberSubscription(
            *("i", None, "c", "/h", frozenset({"a", "b"}), "", 300_000, "range"),
            modern.ClassicMembership(45_000, (("range", b"\0\1"),)),
        ),
    ),
    (
        "member",
        "000001010263032f68010278ffffffff0100",
        modern.MemberSubscription("", "", "c", "/h", frozenset(), "x", -1, ""),
    ),
    ("target epoch", "0000000000090100080000011f71fb04cb", modern.TargetEpoch(9, 1_234_567_890_123)),
    ("target", "00000200112233445566778899aabbccddeeff0300000000000000030000", frozenset({NULL, THREE})),
    (
        "current",
        (
            "0000000000070000000601"
            "0200112233445566778899aabbccddeeff030000000000000003010009030000000500000007"
            "0200112233445566778899aabbccddeeff0200000001010005020000000600"
        ),
        CurrentAssignment(7, 6, MemberState.UNREVOKED, {NULL: 5, THREE: 7}, {ONE: 6}),
    ),
    (
        "regex",
        "00000302610361620000000000000003000000000000006300",
        modern.ResolvedRegex(frozenset({"a", "ab"}), 99, 3),
    ),
    # By the layouts of ShareGroup*.json.
    ("share group key", "000a00016700016d", ShareGroupKey(ShareRecord.MEMBER, "g", "m")),
    ("share group key", "000f000167", ShareGroupKey(ShareRecord.STATE_PARTITIONS, "g")),
    ("share group epoch", "000000000007000000000000000500", share.GroupEpoch(7, 5)),
    (
        "share member",
        "0000000263032f68030261026200",
        share.ShareSubscription(None, "c", "/h", frozenset({"b", "a"})),
    ),
    (
        "share current",
        "00000000000400000003000200112233445566778899aabbccddeeff02000000010000",
        ShareAssignment(4, 3, frozenset({ONE})),
    ),
    (
        "share states",
        "0000010200112233445566778899aabbccddeeff02740200000001000200112233445566778899aabbccddeeff02740000",
        StatePartitions({}, {TOPIC: share.TopicShares("t", frozenset({1}))}, {TOPIC: "t"}),
    ),
    ("update key", "00010001670000000000000000000000000000000700000003", (SharePartitionKey("g", ZEROS, 3), False)),
    (
        "snapshot",
        (
            "0000000000010000000200000003000000000000000a000000000000006400000000000000c8"
            "02000000000000000a000000000000000c0200010000"
        ),
        ShareSnapshot(1, 2, 3, 10, 100, 200, [StateBatch(10, 12, 2, 1)]),
    ),
    ("update", "00000000000100000003ffffffffffffffff0101000400000005", ShareUpdate(1, 3, -1, [], 5)),
    # What Kafka 4.3.0 wrote when a share consumer began, and when it had accepted 40.
    ("snapshot key", "00000001679f16f47cadc64ad7b2a980dca62fe5b800000000", (SHARE_KEY, True)),
    (
        "snapshot",
        "0000000000000000000200000000ffffffffffffffff000001a2196f30c1000001a2196f30c10100",
        ShareSnapshot(0, 2, 0, -1, 1795723047105, 1795723047105, []),
    ),
    (
        "update",
        "00000000000000000000000000000000001402000000000000001400000000000000270200010001000400000014",
        ShareUpdate(0, 0, 20, [StateBatch(20, 39, 2, 1)], 20),
    ),
]


@pytest.mark.parametrize(("name", "kafkas", "value"), KAFKAS_BYTES)
def test_records_are_the_bytes_that_kafka_writes(name: str, kafkas: str, value: object) -> None:
    assert FORMATS[name].encode(value).hex() == kafkas
    assert FORMATS[name].decode(bytes.fromhex(kafkas)) == value


# (format, bytes of an older or a later Kafka, the value)
ONLY_READ = [
    ("offset", "000000000000000000010001780000000000000003", OffsetAndMetadata(1, -1, "x", 3)),
    ("offset", "0001000000000000000100017800000000000000030000000000000004", OffsetAndMetadata(1, -1, "x", 3, 4)),
    ("offset", "000200000000000000010001780000000000000003", OffsetAndMetadata(1, -1, "x", 3)),
    # Version 4 is flexible (KIP-915), and has tagged fields.
    ("offset", "00040000000000000001000000020278000000000000000300", OffsetAndMetadata(1, 2, "x", 3)),
    ("offset", "000400000000000000010000000202780000000000000003010003616263", OffsetAndMetadata(1, 2, "x", 3)),
    (
        "group",
        "000409636f6e73756d6572000000040672616e676500000000000000000902026d0269026302680000000a0000001402730101000361626300",
        GroupMetadata(*("consumer", 4, "range", None, 9), (MemberMetadata("m", "i", "c", "h", 10, 20, b"s", b""),)),
    ),
    *(
        (
            "group",
            (
                f"000{version}0008636f6e73756d657200000004000572616e676500016d{stamp}"
                f"0000000100016d000163000168{rebalance}000000140000000173ffffffff"
            ),
            GroupMetadata(
                *("consumer", 4, "range", "m", stamp_ms),
                (MemberMetadata("m", None, "c", "h", rebalance_ms, 20, b"s", b""),),
            ),
        )
        for version, stamp, stamp_ms, rebalance, rebalance_ms in (
            (0, "", -1, "", 20),
            (1, "", -1, "0000000a", 10),
            (2, "0000000000000009", 9, "0000000a", 10),
        )
    ),
    # A Kafka before 4.3 stores no assignment epochs: the member's epoch stands for them.
    (
        "current",
        "00000000000700000006020200112233445566778899aabbccddeeff030000000100000004000100",
        CurrentAssignment(7, 6, MemberState.UNRELEASED, {ONE: 7, FOUR: 7}, {}),
    ),
    ("current", "0000000000000000000009010100", CurrentAssignment(state=MemberState.UNKNOWN)),
    (
        "transaction",
        "0001000000000000000700000000000100000000000000000002ffffffffffffffff020202000209036162 63",
        TransactionMetadata(7, 0, 1, TransactionState.EMPTY, 2, client_version=2),
    ),
]


@pytest.mark.parametrize(("name", "kafkas", "value"), ONLY_READ)
def test_other_versions_states_and_tagged_fields_are_read(name: str, kafkas: str, value: object) -> None:
    assert FORMATS[name].decode(bytes.fromhex(kafkas)) == value


@pytest.mark.parametrize(
    ("name", "malformed", "why"),
    [
        *((name, "", "") for name in FORMATS),
        *((name, "ffff", "") for name in FORMATS),
        *((name, "0009" + 40 * "00", "version 9") for name in FORMATS if name not in KEYS),
        ("offset key", "0001000567", ""),
        ("group key", "0002ffff", "group_id"),
        ("group", "0003000000000000ffffffff00000000000000007fffffff", "an array of 2147483647 elements"),
        (
            "current",
            "00000000000000000000000200112233445566778899aabbccddeeff03000000010000000401000502000000070100",
            "1 assignment epochs of 2 partitions",
        ),
        ("transaction", "0000000000000000000700000000000609ffffffff0000000000000001ffffffffffffffff", "9 is not"),
        ("update", states.encode_update(ShareUpdate(0, 0, 0, [StateBatch(5, 4, 0, 1)])).hex(), "a batch from offset"),
        ("update", states.encode_update(ShareUpdate(0, 0, 0, [StateBatch(-1, 4, 0, 1)])).hex(), "a batch from offset"),
    ],
)
def test_malformed_records_are_refused(name: str, malformed: str, why: str) -> None:
    with pytest.raises(MalformedRecord, match=why or None):
        FORMATS[name].decode(bytes.fromhex(malformed))


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("offset key", range(3)),
        ("consumer group key", [*RecordKind]),
        ("share group key", [*ShareRecord]),
        ("transaction key", [0]),
        ("snapshot key", [0, 1]),
    ],
)
def test_the_key_of_another_record_is_skipped(name: str, versions: Collection[int]) -> None:
    for version in {*range(20), 32767} - {*versions}:
        assert FORMATS[name].decode(version.to_bytes(2) + b"anything") is None


LONG = "x" * 32768


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group key", GroupKey(LONG)),
        ("offset", OffsetAndMetadata(0, metadata=LONG)),
        ("consumer group key", ConsumerGroupKey(RecordKind.REGEX, "g", LONG)),
        ("share group key", ShareGroupKey(ShareRecord.MEMBER, LONG, "m")),
        ("transaction key", LONG),
        ("update", ShareUpdate(0, 0, 0, [StateBatch(0, 4, 0, 40_000)])),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, value: object) -> None:
    with pytest.raises(MalformedRecord, match="does not fit"):
        FORMATS[name].encode(value)


def test_an_offset_with_an_expiry_is_written_without_leader_epoch() -> None:
    encoded = classic.encode_offset(OffsetAndMetadata(7, 3, "m", 100, 200))
    assert classic.decode_offset(encoded) == OffsetAndMetadata(7, -1, "m", 100, 200)


def test_topics_of_a_subscription() -> None:
    assert subscribed_topics(bytes.fromhex("00010000000200016100 0162ffffffff")) == frozenset({"a", "b"})
    assert subscribed_topics(b"no subscription") is None
    assert subscribed_topics(b"") is None
