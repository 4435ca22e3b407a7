"""What an audit reads of the log again: the records as the load has decoded them."""

from __future__ import annotations

from typing import Any

import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.formats.value_format import ParseMode
from spark_connector.loads.audit import kafka_log
from spark_connector.loads.audit.kafka_log import KafkaLog
from spark_connector.loads.reading import BESIDE
from spark_connector.loads.record import LoadRecord
from spark_connector.options.read_options import SourceOptions

READING = {"valueformat": "json", "valueschema": "id bigint"}


@pytest.mark.parametrize(
    ("reading", "mode"), [(READING | BESIDE, ParseMode.DROPMALFORMED), (READING, ParseMode.PERMISSIVE)]
)
def test_bad_records_of_a_load_with_dead_letters_are_left_out(
    monkeypatch: pytest.MonkeyPatch, reading: dict[str, str], mode: ParseMode
) -> None:
    asked: list[SourceOptions] = []

    def read_range(options: SourceOptions, part: Any) -> list[Any]:
        asked.append(options)
        return []

    monkeypatch.setattr(kafka_log, "read_range", read_range)
    load = LoadRecord("g-000001-00000000", "o", "delta", "table", 0, (), reading=reading)
    with KafkaLog("localhost:1", {}) as log:
        list(log.records(TopicPartition("t", 0), 0, 1, load))
    assert [options.formats.mode for options in asked] == [mode]
