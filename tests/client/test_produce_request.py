"""What the answer to a Produce request says, as an error that tells the user."""

from __future__ import annotations

from typing import Any

import pytest

from broker.client.client_settings import ClientSettings
from broker.client.produce_request import read_produce_response
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_response, encode_response
from broker.protocol.topic_partition import TopicPartition

TP = TopicPartition("t", 3)
IN_ALL = "One or more records have been rejected due to invalid timestamp"


SETTINGS = ClientSettings.of("localhost:1")


def failure(version: int, code: ErrorCode, message: str | None, *records: tuple[int, str | None]) -> str:
    """The error that comes of such a partition response, by way of the wire."""
    errors = [{"batch_index": index, "batch_index_error_message": text} for index, text in records]
    row = {"index": 3, "error_code": code, "base_offset": -1, "record_errors": errors, "error_message": message}
    body: dict[str, Any] = {"responses": [{"name": "t", "partition_responses": [row]}]}
    frame = encode_response(Request(ApiKey.PRODUCE, version, 7, None, None, 0), body)
    result = read_produce_response(decode_response(ApiKey.PRODUCE, version, frame[4:])[1])[TP]
    return str(result.failure(TP, SETTINGS, None))


@pytest.mark.parametrize("version", [8, 9, 11])
def test_the_brokers_words_and_those_for_records_are_told(version: int) -> None:
    code = ErrorCode.invalid_timestamp
    assert failure(version, code, "no room") == "INVALID_TIMESTAMP (32): producing to t-3: no room"
    assert failure(version, code, IN_ALL, (4, "out of range"), (9, None)) == (
        f"INVALID_TIMESTAMP (32): producing to t-3: {IN_ALL}; record 4 of the batch: out of range; "
        "record 9 of the batch: refused"
    )
    assert failure(version, code, None, (0, "no key")).endswith("t-3: record 0 of the batch: no key")
    assert failure(version, code, "[no key]", (0, "no key")).endswith("t-3: [no key]")


def test_of_many_bad_records_three_are_told() -> None:
    said = failure(9, ErrorCode.invalid_record, None, *((n, f"bad {n}") for n in range(1000)))
    assert said.endswith("record 1 of the batch: bad 1; record 2 of the batch: bad 2; 1000 records in all")


def test_where_the_broker_says_nothing_there_is_a_hint() -> None:
    assert "raise the topic's max.message.bytes" in failure(9, ErrorCode.message_too_large, None)
    assert "the broker refused the batch and gave no reason" in failure(7, ErrorCode.invalid_record, "not sent in v7")
