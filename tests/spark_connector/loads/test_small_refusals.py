"""What loads and their commands refuse, or find out by themselves. Against a real broker, without Spark."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import ConfigError
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import Target
from spark_connector.maintenance import history, verify
from tests.support.kafka import Kafka
from tests.support.small_loads import SmallLoads
from tests.support.topics import Topic

_counter = itertools.count()


@pytest.fixture
def records(broker: Kafka, topic: str) -> Topic:
    return Topic(broker.bootstrap, topic)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_value_that_does_not_fit_names_its_record_whatever_the_columns(
    records: Topic, tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    records.produce([b'{"s": "a", "at": 1}'] * 5)
    records.produce([b'{"s": "a\\u0000b", "at": 2000000000000}'])
    records.produce([b'{"s": "c", "at": 1}'])
    options = {"valueFormat": "json", "valueSchema": "s STRING, at TIMESTAMP"}
    to = f"{request.getfixturevalue('postgres')}#unfit{next(_counter)}_small" if database == "postgres" else None
    loads = SmallLoads(records, tmp_path, "sql", to=to, columns="value.s" if to else "value.at")
    named = f"the record at offset 5 of topic '{records.name}', partition 0, does not fit into the table"
    with pytest.raises(LoadError, match=named):
        loads.load(options)


def test_maintenance_takes_the_format_of_what_is_there(records: Topic, tmp_path: Path) -> None:
    records.produce([b"1", b"2"])
    loads = SmallLoads(records, tmp_path, "delta")
    loads.load()
    unsaid = replace(loads.target, format=None, offsets=None)
    assert verify(unsaid, records.bootstrap).ok
    assert len(history(unsaid).entries) == 1


def test_a_tilde_that_no_shell_has_replaced_is_refused() -> None:
    with pytest.raises(ConfigError, match="'to' is ~/out: .*or ./~/out for a directory of this name"):
        Target("~/out", "g").check()
    assert Target("./~/out", "g").check().format == "parquet"
