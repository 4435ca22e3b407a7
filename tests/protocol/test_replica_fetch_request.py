"""A follower's hand-written Fetch request against kio's decoding."""

from __future__ import annotations

import dataclasses
import uuid

from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import _decode, decode_request, encode_request, to_ms
from broker.protocol.replica_fetch_request import (
    REPLICA_FETCH_VERSION,
    FetchPosition,
    ReplicaFetchLimits,
    decode_replica_fetch,
    encode_replica_fetch,
)

counts = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
topic_ids = st.sampled_from([uuid.uuid4() for _ in range(3)])
positions = st.builds(FetchPosition, topic_ids, counts, counts, offsets, st.integers(-1, 2**31 - 1), offsets, counts)


@given(
    replica=st.tuples(counts, st.integers(-1, 2**63 - 1)),
    limits=st.builds(ReplicaFetchLimits, counts, counts, counts),
    session=st.tuples(counts, counts),
    asked=st.lists(positions, max_size=6, unique_by=lambda position: position[:2]),
    forgotten=st.lists(st.tuples(topic_ids, counts), max_size=4, unique=True),
)
def test_kio_reads_what_was_written(
    replica: tuple[int, int],
    limits: ReplicaFetchLimits,
    session: tuple[int, int],
    asked: list[FetchPosition],
    forgotten: list[tuple[uuid.UUID, int]],
) -> None:
    frame = encode_replica_fetch(
        "broker-1",
        replica,
        limits,
        session_id=session[0],
        session_epoch=session[1],
        positions=asked,
        forgotten=forgotten,
    )
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    request = decode_request(frame[4:])
    body = request.body
    assert (request.api, request.version, request.client_id) == (ApiKey.FETCH, REPLICA_FETCH_VERSION, "broker-1")
    assert (body.replica_state.replica_id, body.replica_state.replica_epoch) == replica
    assert (body.isolation_level, body.rack_id) == (0, "")
    assert (to_ms(body.max_wait), body.min_bytes, body.max_bytes) == limits
    assert (body.session_id, body.session_epoch) == session
    read = {
        FetchPosition(
            topic.topic_id,
            one.partition,
            one.current_leader_epoch,
            one.fetch_offset,
            one.last_fetched_epoch,
            one.log_start_offset,
            one.partition_max_bytes,
        )
        for topic in body.topics
        for one in topic.partitions
    }
    assert read == set(asked)
    left = {(topic.topic_id, index) for topic in body.forgotten_topics_data for index in topic.partitions}
    assert left == set(forgotten)
    by_kio = _decode(ApiKey.FETCH, REPLICA_FETCH_VERSION, frame[4:])[1]
    for name, value in body._asdict().items():
        if name not in ("max_wait", "replica_state", "topics", "forgotten_topics_data"):
            assert value == getattr(by_kio, name)


@given(data=st.data())
def test_a_request_in_any_other_form_is_left_to_kio(data: st.DataObject) -> None:
    """Bytes changed, cut or added: the answer is kio's, also that the frame is malformed."""
    asked = [FetchPosition(uuid.UUID(int=7), number, 3, 5, 3, 0, 1 << 20) for number in (0, 1)]
    frame = encode_replica_fetch(
        "b", (2, 9), ReplicaFetchLimits(500, 1, 1 << 20), session_id=4, session_epoch=1, positions=asked
    )[4:]
    at = data.draw(st.integers(8, len(frame) - 1))
    kind = data.draw(st.sampled_from(["change", "cut", "add"]))
    if kind == "change":
        frame[at] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del frame[at:]
    else:
        frame.insert(at, data.draw(st.integers(0, 255)))
    found = decode_replica_fetch(frame)
    if found is not None:
        kio_client_id, by_kio = _decode(ApiKey.FETCH, REPLICA_FETCH_VERSION, frame)
        client_id, body = found
        assert client_id == kio_client_id
        assert tuple(body.replica_state) == (by_kio.replica_state.replica_id, by_kio.replica_state.replica_epoch)
        assert (body.session_id, body.session_epoch) == (by_kio.session_id, by_kio.session_epoch)
        assert [(topic.topic_id, [tuple(one) for one in topic.partitions]) for topic in body.topics] == [
            (topic.topic_id, [dataclasses.astuple(one) for one in topic.partitions]) for topic in by_kio.topics
        ]
        assert [(topic.topic_id, list(topic.partitions)) for topic in body.forgotten_topics_data] == [
            (topic.topic_id, list(topic.partitions)) for topic in by_kio.forgotten_topics_data
        ]


def test_what_only_kio_can_read_is_left_to_it() -> None:
    fields = {"replica_state": {"replica_id": 2, "replica_epoch": 9}, "session_id": 4, "session_epoch": 1}
    position = {"partition": 1, "current_leader_epoch": 3, "fetch_offset": 5}
    for more in ({"rack_id": "r"}, {"cluster_id": "c"}, {"topics": [{"topic_id": None, "partitions": [position]}]}):
        frame = encode_request(ApiKey.FETCH, REPLICA_FETCH_VERSION, 1, "b", {**fields, **more})[4:]
        assert decode_replica_fetch(frame) is None
        assert decode_request(frame).body.session_id == 4
    many = [FetchPosition(uuid.UUID(int=7), number, 3, 5, 3, 0, 1) for number in range(200)]
    limits = ReplicaFetchLimits(500, 1, 1 << 20)
    long = encode_replica_fetch("b", (2, 9), limits, session_id=4, session_epoch=1, positions=many)[4:]
    assert [one.partition for one in decode_request(long).body.topics[0].partitions] == list(range(200))
