"""Loads with a schema that does not fit: bad records fail the load, and fields that no record has are named."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_connector.load import LoadResult, run_load
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import LoadRequest, Target
from tests.support.console import error_of, output_of
from tests.support.kafka import Kafka
from tests.support.schema_registry import schema_registry
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("parquet", "delta", "iceberg", "json", "avro", "sql")


class Loads:
    """Loads of one topic into one place, without Spark unless a session is given."""

    def __init__(self, topic: Topic, root: Path, format: str) -> None:
        self.topic = topic
        catalog = add_catalog(root / "catalog") if format == "iceberg" else None
        places = {"iceberg": "iceberg:lake.rows", "sql": f"sqlite:///{root}/rows.db#rows"}
        self.target = Target(places.get(format, str(root / "rows")), topic.name, format=format, catalog=catalog)

    def __call__(self, schema: str, spark: SparkSession | None = None, **more: Any) -> LoadResult:
        options = {"valueFormat": "json", "valueSchema": schema, **more.pop("options", {})}
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.topic.bootstrap,
            topic=self.topic.name,
            publish_offsets=False,
            options={name: value for name, value in options.items() if value is not None},
            **more,
        )

        def session() -> SparkSession:
            assert spark is not None, "a load as small as this needs no Spark"
            return spark

        return run_load(request, session, lambda phase, record: None)


def loads_into(format: str, broker: Kafka, topic: str, root: Path) -> Loads:
    loads = Loads(Topic(broker.bootstrap, topic, 1), root, format)
    loads.topic.produce([b'{"sensor": "roof", "at": null}', b'{"sensor": "hall"}'])
    return loads


@pytest.mark.parametrize("format", FORMATS)
def test_a_bad_record_fails_a_load_unless_it_is_said_what_becomes_of_it(
    broker: Kafka, topic: str, tmp_path: Path, format: str
) -> None:
    loads = loads_into(format, broker, topic, tmp_path)
    with pytest.raises(LoadError) as raised:
        loads("sensor BIGINT")
    text = str(raised.value)
    assert f"2 of 2 records are malformed. The first is offset 0 of topic '{topic}', partition 0: value: field " in text
    for way in ("a schema that fits", "--dead-letters", "mode=PERMISSIVE"):
        assert way in text
    assert not raised.value.retriable
    assert not list(tmp_path.rglob("part-*"))
    kept = loads("sensor BIGINT", options={"mode": "PERMISSIVE"})
    assert (kept.rows, kept.read, kept.malformed) == (2, 2, 2)
    assert (kept.to_json()["read"], kept.to_json()["malformed"]) == (2, 2)
    loads.topic.produce([b'{"sensor": 7}'])
    good = loads("sensor BIGINT")  # as before: the default changes no row
    assert (good.rows, good.read, good.malformed) == (1, 1, 0)


def test_who_says_what_becomes_of_bad_records(broker: Kafka, topic: str, tmp_path: Path) -> None:
    ways: list[tuple[dict[str, Any], int]] = [
        ({"options": {"mode": "PERMISSIVE"}}, 2),
        ({"options": {"mode": "DROPMALFORMED"}}, 0),
        ({"options": {"columnNameOfCorruptRecord": "raw"}}, 2),
        ({"columns": "value.*,_corrupt_record"}, 2),
        ({"max_bad": "100%"}, 2),
        ({"dead_letters": f"delta:{tmp_path}/bad"}, 0),
        ({"dead_letters": f"topic:{topic}-bad"}, 2),
    ]
    Topic(broker.bootstrap, f"{topic}-bad", 1)
    source = Topic(broker.bootstrap, topic, 1)
    source.produce([b'{"sensor": "roof"}', b'{"sensor": "hall"}'])
    for number, (arguments, rows) in enumerate(ways):
        loads = Loads(source, tmp_path / str(number), "delta")
        result = loads("sensor BIGINT", **arguments)
        assert (result.rows, result.read, result.malformed) == (rows, 2, 2), arguments


@pytest.mark.parametrize(
    ("schema", "columns", "absent"),
    [
        ("sensor STRING, at STRING", None, ()),
        ("senso STRING, at STRING", None, ("value.senso",)),
        ("senso STRING, sensor STRING", "value.sensor,offset,topic,partition", ()),
        ("sensor STRING, place STRUCT<lat: DOUBLE, lon: DOUBLE>", None, ("value.place",)),
    ],
)
@pytest.mark.parametrize("format", ["parquet", "delta", "json", "avro"])
def test_a_field_that_no_record_has_is_named(
    broker: Kafka,
    topic: str,
    tmp_path: Path,
    format: str,
    schema: str,
    columns: str | None,
    absent: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not one that is null in every record that has it (`at`), nor one that the table does not get."""
    loads = loads_into(format, broker, topic, tmp_path)
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        result = loads(schema, columns=columns)
    assert (result.rows, result.absent_fields) == (2, absent)
    assert result.to_json()["absent_fields"] == absent
    assert ("no record has value." in caplog.text) is bool(absent)


def test_a_field_within_a_field_is_named_where_that_one_is_there(broker: Kafka, topic: str, tmp_path: Path) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, "parquet")
    loads.topic.produce([b'{"place": {"lat": 1.5}, "lines": [{"n": 1}], "tags": [null]}', b'{"place": null}', None])
    schema = "place STRUCT<lat: DOUBLE, lon: DOUBLE>, lines ARRAY<STRUCT<n: INT, sku: STRING>>, tags ARRAY<STRING>"
    assert loads(schema).absent_fields == ("value.place.lon", "value.lines.sku")
    loads.topic.produce([None, None])
    assert loads(schema).absent_fields == ()  # no record has a value where a field could be
    loads.topic.produce([b'{"place": {"lon": null}, "lines": [{"sku": "a"}]}'])
    assert loads(schema).absent_fields == ("value.place.lat", "value.lines.n", "value.tags")


def test_a_misspelt_field_of_avro_is_named_and_an_older_writers_is_not(
    broker: Kafka, topic: str, tmp_path: Path
) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, "delta")

    def record(*fields: str) -> str:
        made = [f'{{"name": "{one}", "type": ["null", "long"], "default": null}}' for one in fields]
        return f'{{"type": "record", "name": "R", "fields": [{", ".join(made)}]}}'

    with schema_registry() as registry:
        id_ = registry.register(f"{topic}-value", record("a", "b"))
        loads.topic.produce([b"\0" + id_.to_bytes(4) + b"\x02\x04\x00"] * 2)  # b is null, but the schema has it
        avro = {"valueFormat": "avro", "schema.registry.url": registry.url}
        result = loads(record("a", "b", "c"), options=avro)
    assert (result.rows, result.malformed, result.absent_fields) == (2, 0, ("value.c",))


@pytest.mark.parametrize("own", ["{}", '["null", {}]', '["long", {}]'])
def test_the_fields_of_a_record_that_a_writer_puts_into_a_union_are_had(
    broker: Kafka, topic: str, tmp_path: Path, own: str
) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, "delta")
    fields = (f'{{"name": "{one}", "type": ["null", "long"], "default": null}}' for one in "ab")
    record = f'{{"type": "record", "name": "R", "fields": [{", ".join(fields)}]}}'
    with schema_registry() as registry:
        id_ = registry.register(f"{topic}-value", f'["null", {record}]')
        loads.topic.produce([b"\0" + id_.to_bytes(4) + b"\x02\x02\x04\x00"])  # R with a = 2; b is null
        avro = {"valueFormat": "avro", "schema.registry.url": registry.url}
        result = loads(own.replace("{}", record), options=avro)
    assert (result.rows, result.malformed, result.absent_fields) == (1, 0, ())


def test_the_command_says_so_in_its_last_line(broker: Kafka, topic: str, tmp_path: Path) -> None:
    Topic(broker.bootstrap, topic, 1).produce([b'{"sensor": "roof"}', b'{"sensor": "hall"}'])
    words: tuple[str, ...] = (
        "load",
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        topic,
        "--to",
        str(tmp_path),
        "--group",
        "g",
    )
    words += ("--option", "valueFormat=json", "--option", "valueSchema=sensor BIGINT")
    assert "2 of 2 records are malformed" in error_of(*words)
    assert output_of(*words, "--option", "mode=PERMISSIVE").splitlines()[-1] == "2 of 2 malformed"
