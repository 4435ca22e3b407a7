"""The fetch response written by hand equals kio's, byte for byte in meaning, in every version."""

from __future__ import annotations

import uuid
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import (
    FETCH_VERSIONS,
    CurrentLeader,
    PartitionAnswer,
    TopicAnswer,
    encode_fetch_response,
)
from broker.protocol.messages import decode_response, field

VERSIONS = range(FETCH_VERSIONS[0], FETCH_VERSIONS[1] + 1)


class Blob(NamedTuple):
    """Stands for a file range: what the socket would be sent."""

    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


partitions = st.builds(
    PartitionAnswer,
    st.integers(0, 2**31 - 1),
    st.sampled_from([0, 1, 3, 6]),
    st.integers(-1, 2**62),
    st.integers(-1, 2**62),
    st.integers(-1, 2**62),
    st.none() | st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=3),
    st.none() | st.builds(Blob, st.binary(max_size=300)),
    st.none() | st.tuples(st.integers(-1, 2**31 - 1), st.integers(-1, 2**62)),
    st.integers(-1, 2**31 - 1),
    st.none()
    | st.builds(
        CurrentLeader,
        st.integers(-1, 2**31 - 1),
        st.integers(-1, 2**31 - 1),
        st.text("abc.-", max_size=200),
        st.integers(-1, 65535),
        st.none() | st.text("abc", max_size=9),
    ),
    st.integers(0, 2**62),
)
topics = st.builds(
    TopicAnswer,
    st.text("abc.-_", min_size=1, max_size=200),
    st.uuids(),
    st.lists(partitions, max_size=4),
)


@pytest.mark.parametrize("version", VERSIONS)
@given(answer=st.lists(topics, max_size=4))
def test_kio_reads_back_what_was_written(version: int, answer: list[TopicAnswer]) -> None:
    parts = encode_fetch_response(version, 42, answer)
    frame = b"".join(part if isinstance(part, bytes) else part.data for part in parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, body = decode_response(ApiKey.FETCH, version, frame[4:])
    assert correlation_id == 42
    assert len(body.responses) == len(answer)
    for decoded, given_topic in zip(body.responses, answer, strict=True):
        if version >= 13:
            assert (field(decoded, "topic_id") or uuid.UUID(int=0)) == given_topic.topic_id
        else:
            assert decoded.topic == given_topic.name
        for got, sent in zip(decoded.partitions, given_topic.partitions, strict=True):
            assert (got.partition_index, int(got.error_code)) == (sent.partition, sent.error)
            assert (got.high_watermark, got.last_stable_offset) == (sent.high_watermark, sent.last_stable_offset)
            assert (got.records or b"") == (sent.records.data if isinstance(sent.records, Blob) else b"")
            diverging = field(got, "diverging_epoch")
            if diverging is not None:
                assert (diverging.epoch, diverging.end_offset) == (sent.diverging or (-1, -1))
            archived = field(got, "snapshot_id")
            if archived is not None:
                assert max(archived.end_offset, 0) == sent.archived_end
            leader = field(got, "current_leader")
            if leader is not None:
                assert (leader.leader_id, leader.leader_epoch) == (sent.leader[:2] if sent.leader else (-1, -1))
            assert field(got, "preferred_read_replica", sent.preferred) == sent.preferred
            aborted = got.aborted_transactions
            assert (aborted is None) == (sent.aborted is None)
            if aborted is not None and sent.aborted is not None:
                assert [(int(a.producer_id), a.first_offset) for a in aborted] == list(sent.aborted)
    leaders = [one.leader for topic in answer for one in topic.partitions if one.leader and one.leader.host]
    endpoints = {one.broker_id: (one.broker_id, *one[2:]) for one in leaders} if version >= 16 else {}
    found = {int(at.node_id): (at.node_id, at.host, at.port, at.rack) for at in field(body, "node_endpoints", ())}
    assert found == endpoints


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 7])
def test_an_error_of_the_whole_answer_is_carried(version: int) -> None:
    (frame,) = encode_fetch_response(version, 1, (), error=70)
    _, body = decode_response(ApiKey.FETCH, version, frame[4:])
    assert int(body.error_code) == 70
