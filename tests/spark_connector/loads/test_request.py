"""What a load hands on to its tasks: the reader's options as they were checked, for the partitions of the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.write import options_of
from spark_connector.options.selection import Assign

RANGES = (LoadRange("u", 1, 5, 6, 5), LoadRange("t", 0, 3, 7, 3), LoadRange("t", 1, 5, 5, 5))


@pytest.mark.parametrize(
    "options",
    [
        {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "startingOffsetsByTimestampStrategy": "error"},
        {"endingTimestamp": "9", "minPartitions": "4"},
        {"valueFormat": "json", "valueSchema": "a INT", "mode": "DROPMALFORMED", "badRecordsTopic": "bad"},
        {"filterTimestampFrom": "5", "filterPartitions": "0", "failOnDataLoss": "false", "includeHeaders": "true"},
        {"kafka.default.api.timeout.ms": "70000"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_tasks_read_the_planned_partitions_with_the_options_of_the_load(options: dict[str, str]) -> None:
    target = Target("/data", "g")
    request = LoadRequest.build(target, bootstrap_servers="host:1", topic="t,u", options=options, is_impatient=True)
    read = options_of(request, LoadRecord("g-000001-00000000", "/data", "parquet", "files", 0, RANGES))
    assert read.subscription == Assign((TopicPartition("t", 0), TopicPartition("u", 1)))
    patient = LoadRequest.build(target, bootstrap_servers="host:1", topic="t,u", options=options).source
    assert replace(read, selection=patient.selection, formats=patient.formats) == patient, "only planning is impatient"
    assert request.source.client.default_api_timeout_ms < patient.client.default_api_timeout_ms
