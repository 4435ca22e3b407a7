"""Every option of Spark's own Kafka source: name, default, scope, a value and what it becomes, values it does not take.

The table behind tests/spark_connector/options/test_option_table.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.range_limit import Position, SpecificOffsets, Timestamps
from spark_connector.options.read_options import SourceOptions
from spark_connector.options.subscription_options import Assign, Subscribe, SubscribePattern

T0 = TopicPartition("t", 0)
TIMES = '{"t":{"0":5}}'
LONG = r"must be a whole number, not 'x'"
POSITIVE = r"must be positive, not 0"

Seen = Callable[[SourceOptions], object]


class Case(NamedTuple):
    """`unset`: what a read without it shows, in batch and in stream; `elsewhere`: what becomes of it in the other."""

    name: str
    default: str | None
    scope: str
    seen: Seen
    unset: tuple[object, object]
    given: str
    parsed: object
    wrong: dict[str, str]
    needs: dict[str, str] = {}  # noqa: RUF012
    elsewhere: str = "same"


def both(value: object) -> tuple[object, object]:
    return value, value


CASES = [
    Case(
        "kafka.bootstrap.servers",
        None,
        "both",
        lambda o: o.client.bootstrap_servers,
        both(("localhost:9092",)),
        "a:1, b:2",
        ("a:1", "b:2"),
        {" ": "must be specified for configuring Kafka consumer", "localhost:": "is not host or host:port"},
    ),
    Case(
        "subscribe",
        None,
        "both",
        lambda o: o.subscription,
        both(Subscribe(("t",))),
        " a , b,a",
        Subscribe(("a", "b")),
        {" , ": "No topics to subscribe to as specified value for option 'subscribe' is ','"},
    ),
    Case(
        "subscribePattern",
        None,
        "both",
        lambda o: o.subscription,
        both(Subscribe(("t",))),
        "topic[0-9]+",
        SubscribePattern("topic[0-9]+"),
        {" ": "Pattern to subscribe is empty", "a(": "is not a regular expression"},
    ),
    Case(
        "assign",
        None,
        "both",
        lambda o: o.subscription,
        both(Subscribe(("t",))),
        '{"t":[0,0]}',
        Assign((T0,)),
        {"t": "is not JSON", "{}": "No topicpartitions to assign", '{"t":0}': "Expected e.g.", "[]": "Expected e.g."},
    ),
    Case(
        "startingTimestamp",
        None,
        "both",
        lambda o: o.starting,
        (Position.EARLIEST, Position.LATEST),
        "5",
        Timestamps(5),
        {"x": LONG, "-1": "must be at least 0"},
    ),
    Case(
        "startingOffsetsByTimestamp",
        None,
        "both",
        lambda o: o.starting,
        (Position.EARLIEST, Position.LATEST),
        TIMES,
        Timestamps({T0: 5}),
        {"5": "Expected e.g.", '{"t":{"0":-2}}': "must not be negative"},
    ),
    Case(
        "startingOffsets",
        "earliest (batch), latest (stream)",
        "both",
        lambda o: o.starting,
        (Position.EARLIEST, Position.LATEST),
        '{"t":{"0":-2}}',
        SpecificOffsets({T0: -2}),
        {"newest": "must be earliest, latest, committed or JSON", '{"t":{"0":-3}}': "offset -3 of t-0 is negative"},
    ),
    Case(
        "startingOffsetsByTimestampStrategy",
        "error",
        "both",
        lambda o: isinstance(o.starting, Timestamps) and o.starting.latest_if_none,
        both(False),
        "LATEST",
        True,
        {"skip": "must be error or latest, not 'skip'"},
        {"startingTimestamp": "5"},
    ),
    Case(
        "endingTimestamp",
        None,
        "batch",
        lambda o: o.ending,
        both(Position.LATEST),
        "5",
        Timestamps(5, True),
        {"x": LONG},
        elsewhere="ending timestamp not valid in streaming queries",
    ),
    Case(
        "endingOffsetsByTimestamp",
        None,
        "batch",
        lambda o: o.ending,
        both(Position.LATEST),
        TIMES,
        Timestamps({T0: 5}, True),
        {"x": "is not JSON"},
        elsewhere="ending timestamp not valid in streaming queries",
    ),
    Case(
        "endingOffsets",
        "latest",
        "batch",
        lambda o: o.ending,
        both(Position.LATEST),
        '{"t":{"0":-1}}',
        SpecificOffsets({T0: -1}),
        {"earliest": "ending offset can't be earliest for batch", '{"t":{"0":-2}}': "t-0 can't be earliest for batch"},
        elsewhere="ending offset not valid in streaming queries",
    ),
    Case(
        "failOnDataLoss",
        "true",
        "both",
        lambda o: o.fail_on_data_loss,
        both(True),
        "False",
        False,
        {"no": "must be true or false, not 'no'"},
    ),
    Case(
        "kafkaConsumer.pollTimeoutMs",
        "120000",
        "both",
        lambda o: o.poll_timeout_ms,
        both(120_000),
        "512",
        512,
        {"0": POSITIVE, "x": LONG},
    ),
    Case("fetchOffset.numRetries", "3", "both", lambda o: o.num_retries, both(3), "5", 5, {"0": POSITIVE, "x": LONG}),
    Case(
        "fetchOffset.retryIntervalMs",
        "1000",
        "both",
        lambda o: o.retry_interval_ms,
        both(1000),
        "0",
        0,
        {"-1": "must be at least 0", "x": LONG},
    ),
    Case(
        "maxOffsetsPerTrigger",
        None,
        "stream",
        lambda o: o.max_offsets_per_trigger,
        both(None),
        "7",
        7,
        {"0": POSITIVE, "x": LONG, "99999999999999999999": "fit in 64 bits"},
        elsewhere="ignored",
    ),
    Case(
        "minOffsetsPerTrigger",
        None,
        "stream",
        lambda o: o.min_offsets_per_trigger,
        both(None),
        "7",
        7,
        {"0": POSITIVE, "-5": r"must be positive, not -5", "x": LONG},
        elsewhere="ignored",
    ),
    Case(
        "maxTriggerDelay",
        "15m",
        "stream",
        lambda o: o.max_trigger_delay_ms,
        both(900_000),
        "90s",
        90_000,
        {"soon": "must be a time like 500ms, 10s, 15m or 2h, not 'soon'"},
        {"minOffsetsPerTrigger": "1"},
        elsewhere="ignored",
    ),
    Case("minPartitions", None, "both", lambda o: o.min_partitions, both(None), "7", 7, {"0": POSITIVE, "x": LONG}),
    Case(
        "maxRecordsPerPartition",
        None,
        "both",
        lambda o: o.max_records_per_partition,
        both(None),
        "7",
        7,
        {"0": POSITIVE, "1.5": "must be a whole number"},
    ),
    Case(
        "includeHeaders",
        "false",
        "both",
        lambda o: "headers" in o.columns,
        both(False),
        "TRUE",
        True,
        {"1": "must be true or false, not '1'"},
    ),
    Case(
        "groupIdPrefix",
        "spark-kafka-relation (batch), spark-kafka-source (stream)",
        "both",
        lambda o: o.client.client_id,
        ("spark-kafka-relation", "spark-kafka-source"),
        "nightly",
        "nightly",
        {},
    ),
    Case(
        "kafka.group.id",
        None,
        "both",
        lambda o: o.group,
        both(None),
        "g",
        "g",
        {"a/b": "group 'a/b' cannot be used"},
        {"offsetStore": "group"},
    ),
]
