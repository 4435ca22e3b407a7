"""What a load hands on to the reader: all the reader's options that still mean something, and no others."""

from __future__ import annotations

import pytest

from spark_connector.loads.request import LoadRequest, Target
from spark_connector.options.read_options import Mode, parse_options


@pytest.mark.parametrize(
    "options",
    [
        {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "startingOffsetsByTimestampStrategy": "error"},
        {"endingTimestamp": "9", "minPartitions": "4"},
        {"valueFormat": "json", "valueSchema": "a INT", "mode": "DROPMALFORMED", "badRecordsTopic": "bad"},
        {"filterTimestampFrom": "5", "filterPartitions": "0", "failOnDataLoss": "false", "includeHeaders": "true"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_the_options_go_with_the_ranges_that_a_load_has_planned(options: dict[str, str]) -> None:
    request = LoadRequest.build(Target("/data", "g"), bootstrap_servers="host:1", topic="t", options=options)
    planned = {"assign": '{"t":[0]}', "startingOffsets": '{"t":{"0":3}}', "endingOffsets": '{"t":{"0":7}}'}
    parse_options({**request.options, **planned}, Mode.BATCH)
