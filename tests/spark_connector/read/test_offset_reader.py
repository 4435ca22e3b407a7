"""How long the driver waits for a cluster that does not answer: seconds at the first contact, later a minute."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from broker.errors import ConfigError, ConnectionFailed
from spark_connector.first_contact import FIRST_CONTACT_S
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.offset_reader import OffsetReader
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.topics import Topic
from tests.support.waits import Waits


def reader_of(bootstrap: str, **options: str) -> OffsetReader:
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    parsed = parse_options({"kafka.bootstrap.servers": bootstrap, "subscribe": "t", **given}, Mode.BATCH)
    return OffsetReader(parsed)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, FIRST_CONTACT_S),
        ({"default_api_timeout_ms": "7000"}, 7),
        ({"default_api_timeout_ms": "90000"}, 90),
        ({"default_api_timeout_ms": "0"}, 0),
    ],
)
def test_a_cluster_that_was_never_reached_is_given_up_after_seconds_unless_the_user_sets_the_time(
    options: dict[str, str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(monkeypatch)
    reader = reader_of("127.0.0.1:1", **options)
    with pytest.raises(ConnectionFailed):
        reader.assigned()
    assert waits.now == seconds + 1  # the wait that would be too long is not waited
    reader.close()


def test_a_cluster_that_was_reached_before_may_take_a_minute_to_come_back(
    broker_factory: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_factory()
    Topic(broker.bootstrap, "t").number(3)
    with closing(reader_of(broker.bootstrap)) as before:
        before.assigned()
    broker.kill()

    def start_after_40_s(now: float) -> None:
        if now == 40:
            broker.start()

    Waits(monkeypatch, start_after_40_s)
    reader = reader_of(broker.bootstrap)
    assert sum(reader.batch_bounds().end.values()) == 3
    reader.close()


@pytest.mark.parametrize("mode", [Mode.BATCH, Mode.STREAM])
def test_a_topic_for_bad_records_that_is_missing_is_told_by_the_driver(broker: Kafka, topic: str, mode: Mode) -> None:
    Topic(broker.bootstrap, topic).number(1)
    bad = f"{topic}-bad"
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "badRecordsTopic": bad}
    formats = {"valueFormat": "json", "valueSchema": "a INT"}
    with closing(OffsetReader(parse_options({**options, **formats}, mode))) as reader:
        with pytest.raises(ConfigError, match=f"Option 'badRecordsTopic': create the topic before the read: .*'{bad}'"):
            reader.initial()
        Topic(broker.bootstrap, bad)
        assert reader.initial().offsets
