"""A follower's hand-written Fetch request is read as it was written."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_request, to_ms
from broker.protocol.replica_fetch_request import (
    REPLICA_FETCH_VERSION,
    FetchPosition,
    ReplicaFetchLimits,
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
def test_it_is_read_as_it_was_written(
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
