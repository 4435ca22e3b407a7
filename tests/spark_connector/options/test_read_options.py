"""Options as Spark's own source has them: defaults, precedence, any case, and a clear error for all else."""

from __future__ import annotations

import logging
import pickle

import pytest

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.options.selection import Assign, Position, SpecificOffsets, Subscribe, SubscribePattern, Timestamps

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MINIMUM = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}


def parse(mode: Mode = Mode.BATCH, /, **options: str) -> SourceOptions:
    return parse_options({**MINIMUM, **options}, mode)


def test_defaults_of_a_batch() -> None:
    options = parse()
    assert options.subscription == Subscribe(("t",))
    assert (options.starting, options.ending) == (Position.EARLIEST, Position.LATEST)
    assert options.fail_on_data_loss
    assert options.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert (options.min_partitions, options.max_records_per_partition, options.max_offsets_per_trigger) == (None,) * 3
    assert (options.num_retries, options.retry_interval_ms, options.poll_timeout_ms) == (3, 1000, 120000)
    assert (options.offset_store, options.group) == (None, None)
    assert options.client.client_id == "spark-kafka-relation"


def test_defaults_of_a_stream() -> None:
    options = parse(Mode.STREAM)
    assert options.starting is Position.LATEST
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.client.client_id == "spark-kafka-source"


def test_names_match_in_any_case() -> None:
    options = parse(STARTINGoffsets="EARLIEST", includeheaders="True", minpartitions="7")
    assert (options.starting, options.columns[-1], options.min_partitions) == (Position.EARLIEST, "headers", 7)


def test_many_options_together_are_accepted_and_an_instance_can_be_pickled() -> None:
    values = {
        "startingOffsets": "committed",
        "failOnDataLoss": "false",
        "maxOffsetsPerTrigger": "10",
        "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "90s",
        "maxBytesPerTrigger": "64m",
        "maxBytesPerPartition": "1000",
        "minPartitions": "3",
        "maxRecordsPerPartition": "1000",
        "includeHeaders": "true",
        "groupIdPrefix": "nightly",
        "kafka.group.id": "g",
        "fetchOffset.numRetries": "5",
        "fetchOffset.retryIntervalMs": "10",
        "kafkaConsumer.pollTimeoutMs": "512",
        "offsetStore": "Files",
        "offsetStore.path": "/offsets",
        "offsetStore.zookeeper.connect": "localhost:2181",
        "group": "g2",
        "kafka.isolation.level": "read_committed",
    }
    options = parse(Mode.STREAM, **values)
    assert options == pickle.loads(pickle.dumps(options))
    assert options.starting is Position.COMMITTED
    assert (options.offset_store, options.group, options.client.client_id) == ("files", "g2", "nightly")
    assert options.store_options["offsetstore.path"] == "/offsets"
    assert options.client.isolation_level == "read_committed"
    assert options.max_trigger_delay_ms == 90_000
    assert options.max_bytes_per_trigger == 64 << 20
    assert (options.max_bytes_per_partition, options.min_bytes_per_partition) == (1000, 1000)


def test_subscriptions() -> None:
    servers = {"kafka.bootstrap.servers": "h:1"}
    assert parse(subscribe=" a, b ,,a").subscription == Subscribe(("a", "b"))
    assigned = parse_options({**servers, "assign": '{"t":[1,0,1]}'}, Mode.BATCH)
    assert assigned.subscription == Assign((T0, T1))
    pattern = parse_options({**servers, "subscribePattern": " topic[0-9] "}, Mode.BATCH).subscription
    assert isinstance(pattern, SubscribePattern)
    assert pattern.matches("topic1")


def test_a_pattern_must_match_the_whole_name() -> None:
    assert not SubscribePattern("topic1").matches("mytopic12")
    assert SubscribePattern(".*topic1.*").matches("mytopic12")
    assert not SubscribePattern("a|topic").matches("topic2")


def test_one_timestamp_wins_over_timestamps_and_those_over_offsets() -> None:
    by_offset = {"startingOffsets": '{"t":{"0":23,"1":-2}}'}
    by_time = {"startingOffsetsByTimestamp": '{"t":{"0":5,"1":6}}'}
    for_all = {"startingTimestamp": "7"}
    assert parse(**by_offset).starting == SpecificOffsets({T0: 23, T1: -2})
    assert parse(**by_offset, **by_time).starting == Timestamps({T0: 5, T1: 6})
    assert parse(**by_offset, **by_time, **for_all).starting == Timestamps(7)
    assert parse(**for_all, startingOffsetsByTimestampStrategy="LATEST").starting == Timestamps(7, True)
    assert parse(endingTimestamp="9", endingOffsets="latest").ending == Timestamps(9, True)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("value", ("value",)),
        (" value , KEY", ("value", "key")),
        ("TimestampTYPE,headers", ("timestampType", "headers")),
    ],
)
def test_columns_come_in_the_order_asked_for(text: str, columns: tuple[str, ...]) -> None:
    assert parse(columns=text).columns == columns
    assert parse(columns="headers,key", includeHeaders="true").columns == ("headers", "key")


def test_the_group_falls_back_to_the_one_of_the_client() -> None:
    assert parse(offsetStore="group", **{"kafka.group.id": "g"}).group == "g"


@pytest.mark.parametrize(
    "name",
    ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger", "maxPrefetchedRecords"],
)
def test_a_batch_ignores_trigger_limits_with_a_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        parse(**{name: "10"})
    assert f"{name} option ignored in batch queries" in caplog.text


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(name, '{"t":{"0":5}}')
    parse(Mode.ANY, **{name: value})
    with pytest.raises(ConfigError, match=f"not valid in streaming queries .*'{name}'"):
        parse(Mode.STREAM, **{name: value})


def test_a_stream_may_start_at_latest() -> None:
    assert parse(Mode.STREAM, startingOffsets='{"t":{"0":-1}}').starting == SpecificOffsets({T0: -1})


@pytest.mark.parametrize(
    ("start", "end", "condition"),
    [
        ('{"t":{"0":1}}', '{"t":{"1":2}}', "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET"),
        ('{"t":{"0":9}}', '{"t":{"0":2}}', "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"),
    ],
)
def test_contradicting_ranges_are_refused(start: str, end: str, condition: str) -> None:
    with pytest.raises(ConnectorError, match=rf"^\[{condition}\]"):
        parse(startingOffsets=start, endingOffsets=end)


def test_named_places_are_not_compared_before_they_are_looked_up() -> None:
    parse(startingOffsets='{"t":{"0":9}}', endingOffsets='{"t":{"0":-1}}')
    parse(startingOffsets='{"t":{"0":-2}}', endingOffsets='{"t":{"0":2}}')


def test_a_password_is_passed_on_and_never_shown() -> None:
    login = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "alice"}
    options = parse_options(
        {"subscribe": "t", "kafka.bootstrap.servers": "h:1", **login, "kafka.sasl.password": "s3cret"}, Mode.ANY
    )
    assert options.client.sasl_password == "s3cret"
    assert "s3cret" not in repr(options)
