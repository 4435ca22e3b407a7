"""The Produce requests that clients in this process put on the wire, held against what Kafka takes from a client.

The rules are those of Kafka's `ProduceRequest.validateRecords`, `UnifiedLog.analyzeAndValidateRecords` and
`LogValidator.validateBatch`. A broker of ours that forgets one of them cannot make such a test pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.client.broker_connection import BrokerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_request, read_head
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import BatchHeader, verify_batch, walk_batches


class ProducedFrames:
    """Records what every connection of this process sends from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._frames: list[bytes] = []
        transmit = BrokerConnection._transmit

        def recorded(connection: BrokerConnection, parts: Sequence[bytes | bytearray | memoryview]) -> None:
            frame = b"".join(parts)
            if read_head(frame[4:]).key == ApiKey.PRODUCE:
                self._frames.append(frame)
            transmit(connection, parts)

        monkeypatch.setattr(BrokerConnection, "_transmit", recorded)

    @property
    def requests(self) -> int:
        """How many there were."""
        return len(self._frames)

    @property
    def sizes(self) -> list[int]:
        """The size of each in bytes."""
        return [len(frame) for frame in self._frames]

    def taken_by_kafka(self) -> dict[TopicPartition, list[BatchHeader]]:
        """The headers of all batches by partition, as they were sent. Fails for any that Kafka would refuse."""
        found: dict[TopicPartition, list[BatchHeader]] = {}
        for frame in self._frames:
            request = decode_request(frame[4:])
            sent = [
                (TopicPartition(topic.name, partition.index), partition.records)
                for topic in request.body.topic_data
                for partition in topic.partition_data
            ]
            assert len(sent) == len(dict(sent)), "a partition twice in one request"
            for tp, records in sent:
                batches = list(walk_batches(records))
                assert len(batches) == 1, f"{len(batches)} batches for {tp} in one request"
                header = batches[0][1]
                assert header.size == len(records), "bytes behind the batch"
                verify_batch(records, 0, header)
                assert header.base_offset == 0, f"base offset {header.base_offset}"
                assert header.record_count == header.last_offset_delta + 1 > 0
                assert not header.is_control
                assert not header.is_log_append_time
                assert header.producer_id < 0 or (header.base_sequence >= 0 and header.producer_epoch >= 0)
                assert header.is_transactional is (request.body.transactional_id is not None)
                found.setdefault(tp, []).append(header)
        return found
