"""Typed values in a real Spark: schema and Arrow batches agree, and JSON and CSV read as Spark itself reads them."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.support.all_available import take_all
from tests.support.kafka import Kafka
from tests.support.schema_registry import schema_registry
from tests.support.topics import Topic

WIDE = (
    "i INT, l BIGINT, s STRING, d DOUBLE, f FLOAT, b BOOLEAN, y TINYINT, dt DATE, t TIMESTAMP, n TIMESTAMP_NTZ, "
    "p DECIMAL(9,3), a ARRAY<STRUCT<x: INT, y: DATE>>, o STRUCT<q: STRING, r: ARRAY<DOUBLE>>"
)
JSON_VALUES = [
    b'{"i":1,"l":9007199254740993,"s":"\xc3\xa9","d":1.5,"f":2.5,"b":true,"y":-128,"dt":"2024-02-29"}',
    b'{"t":"2024-01-02T03:04:05.678Z","n":"2024-01-02T03:04:05","p":12.3456,"a":[{"x":1,"y":"2024-01-01"},null,{}]}',
    b'{"o":{"q":"x","r":[1,2.5,null],"zz":1},"unknown":[{}]}',
    b'{ "s" : 12, "d" : 3 ,\n "p": "1.5" }',
    b'{"s":1.5,"b":null}',
    b'{"s":true,"t":"2024-01-02 03:04:05+02:00"}',
    b'{"i":1,"i":2}',
    b"{}",
]
BAD_JSON = [
    b"null",
    b'{"i":1',
    b'{"i":"1"}',
    b'{"i":1.5}',
    b'{"i":3000000000}',
    b'{"dt":"2024-02-30"}',
    b"nothing",
    b"[1]",
    b'"x"',
]
FLAT = "i INT, s STRING, d DOUBLE, b BOOLEAN, dt DATE, t TIMESTAMP, p DECIMAL(9,3)"
CSV_VALUES = [
    b"1,x,1.5,true,2024-02-29,2024-01-02T03:04:05Z,12.3456",
    b",,,,,,",
    b'-5,"a,b",1e3,FALSE,,2024-01-02 03:04:05,"1.5"',
    b'7,"",NaN,,,,',
    b'8,"a\\"b",,,,,',
    b',,1d,,,,"1,234.5"',
]
BAD_CSV = [b"x,,,,,,", b"1,2", b"1,,,maybe,,,", b",,,,2024-02-30,,"]


def read(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    options = {name.replace("__", "."): value for name, value in options.items()}
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", topic.bootstrap)
    return reader.option("subscribe", topic.name).options(**options).load()


@pytest.mark.parametrize(
    ("name", "schema", "good", "bad"), [("json", WIDE, JSON_VALUES, BAD_JSON), ("csv", FLAT, CSV_VALUES, BAD_CSV)]
)
def test_good_and_bad_values_are_those_of_spark(
    spark: SparkSession, broker: Kafka, topic: str, name: str, schema: str, good: list[bytes], bad: list[bytes]
) -> None:
    made = Topic(broker.bootstrap, topic)
    made.produce([*good, None, *bad])
    ours = read(spark, made, valueFormat=name, valueSchema=schema).orderBy("offset").collect()
    raw = read(spark, made).select("offset", F.col("value").cast("string").alias("text"))
    parse = F.from_json if name == "json" else F.from_csv
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"}
    theirs = (
        raw.withColumn("read", parse("text", f"{schema}, _bad STRING", options))
        .orderBy("offset")
        .select("read")
        .collect()
    )
    for value, row, their in zip([*good, None, *bad], ours, theirs, strict=True):
        if value in bad:
            assert row.value is None
            assert row["_corrupt_record"] == value
            assert their.read["_bad"] is not None, value
        elif value is None:
            assert (row.value, row["_corrupt_record"], their.read) == (None, None, None)
        else:
            expected = their.read.asDict(recursive=True)
            assert expected.pop("_bad") is None, value
            assert str(row.value.asDict(recursive=True)) == str(expected)
            assert row["_corrupt_record"] is None


PARTLY_BAD = {
    b'{"a":"x","b":"good","c":{"d":1}}': (None, "good", (1,)),
    b'{"a":1,"b":"good","c":{"d":"x"}}': (1, "good", (None,)),
    b'{"a":1.5,"b":"good","c":3}': (None, "good", None),
    b'{"a":1,"b":"good","c":[1]}': (1, "good", None),
}


def test_of_a_partly_bad_value_from_json_keeps_the_fields_that_fit_and_we_keep_its_bytes(
    spark: SparkSession, broker: Kafka, topic: str
) -> None:
    """As the options' page says."""
    made = Topic(broker.bootstrap, topic)
    schema = "a INT, b STRING, c STRUCT<d: INT>"
    made.produce(list(PARTLY_BAD))
    ours = read(spark, made, valueFormat="json", valueSchema=schema).orderBy("offset").collect()
    assert [(row.value, row["_corrupt_record"]) for row in ours] == [(None, raw) for raw in PARTLY_BAD]
    raw = read(spark, made).orderBy("offset").select(F.from_json(F.col("value").cast("string"), schema).alias("read"))
    assert [tuple(row.read) for row in raw.collect()] == list(PARTLY_BAD.values())


AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "m", "type": {"type": "map", "values": "int"}},
        {"name": "u", "type": ["int", "string"]},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "fx", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "dec", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
    ],
}


def avro(number: int) -> bytes:
    row: dict[str, Any] = {"id": number, "name": None, "at": 1_700_000_000_123, "day": 19000, "m": {"k": 1}, "u": "s"}
    stream = io.BytesIO()
    plain = json.loads(json.dumps(AVRO))
    fastavro.schemaless_writer(
        stream, fastavro.parse_schema(plain), {**row, "e": "B", "fx": b"ab", "dec": (number * 100).to_bytes(4, "big")}
    )
    return stream.getvalue()


def test_avro_from_a_registry_batch_and_stream(spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path) -> None:
    made, bad = Topic(broker.bootstrap, topic), Topic(broker.bootstrap, f"{topic}-bad", 2)
    with schema_registry() as registry:
        registry.user_info = "reader:hush"
        number = registry.register(f"{topic}-value", json.dumps(AVRO))
        prefix = b"\0" + number.to_bytes(4, "big")
        made.produce([prefix + avro(1), b"bad", prefix + avro(2), None], key=b"k\xc3\xa9")
        options = {
            "valueFormat": "avro",
            "keyFormat": "string",
            "schema__registry__url": registry.url,
            "schema__registry__basic__auth__user__info": "reader:hush",
        }
        frame = read(spark, made, **options, badRecordsTopic=bad.name).select(
            "offset", "key", "value", "_corrupt_record"
        )
        first, broken, second, tombstone = frame.orderBy("offset").collect()
        assert first.key == "ké"
        assert first.value.asDict(recursive=True) | {"at": None} == {
            "id": 1,
            "name": None,
            "at": None,
            "day": dt.date(2022, 1, 8),
            "m": {"k": 1},
            "u": {"member0": None, "member1": "s"},
            "e": "B",
            "fx": b"ab",
            "dec": first.value.dec,
        }
        assert str(first.value.dec) == "1.00"
        assert (broken.value, broken["_corrupt_record"]) == (None, b"bad")
        assert (second.value.id, tombstone.value, tombstone["_corrupt_record"]) == (2, None, None)
        stream = (
            spark.readStream.format("pykafka")
            .options(**{name.replace("__", "."): value for name, value in options.items()}, mode="DROPMALFORMED")
            .options(**{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"})
            .load()
        )
        writer = stream.select("offset", "value.id").writeStream.format("parquet")
        take_all(writer.option("checkpointLocation", str(tmp_path / "checkpoint")), str(tmp_path / "out"))
        rows = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
        assert [tuple(row) for row in rows] == [(0, 1), (2, 2), (3, None)]
    sent, *again = read(spark, bad, includeHeaders="true").collect()
    assert {bytes(row.value) for row in again} <= {b"bad"}, "sorting reads twice: at least once"
    headers = {one.key: one.value for one in sent.headers}
    assert (sent.key, sent.value, headers["pykafka.origin.offset"]) == (b"k\xc3\xa9", b"bad", b"1")


WRITTEN_BY_SPARK = {
    "type": "record",
    "name": "topLevelRecord",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "o",
            "type": {
                "type": "record",
                "name": "o",
                "namespace": "topLevelRecord",
                "fields": [{"name": "n", "type": ["int", "null"]}],
            },
        },
        {
            "name": "m",
            "type": {
                "type": "fixed",
                "name": "fixed",
                "namespace": "topLevelRecord.m",
                "size": 4,
                "logicalType": "decimal",
                "precision": 9,
                "scale": 2,
            },
        },
    ],
}
"""The schema of `to_avro` for id BIGINT, o STRUCT<n: INT>, m DECIMAL(9,2)."""


def test_avro_with_the_schema_that_spark_writes_is_read_as_another_record(
    spark: SparkSession, broker: Kafka, topic: str
) -> None:
    made = Topic(broker.bootstrap, topic)
    writer = json.dumps(WRITTEN_BY_SPARK)
    stream = io.BytesIO()
    parsed = fastavro.parse_schema(json.loads(writer))
    fastavro.schemaless_writer(stream, parsed, {"id": 1, "o": {"n": 2}, "m": Decimal("1.25")})
    money = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    inner = {"type": "record", "name": "com.x.O", "fields": [{"name": "n", "type": ["int", "null"]}]}
    fields = [
        {"name": "new", "type": money, "default": "\u00ff"},
        {"name": "o", "type": inner},
        {"name": "id", "type": "long"},
    ]
    with schema_registry() as registry:
        prefix = b"\0" + registry.register("s", writer).to_bytes(4, "big")
        made.produce([prefix + stream.getvalue()])
        reader = json.dumps({"type": "record", "name": "com.x.Order", "fields": fields})
        options = {"valueFormat": "avro", "valueSchema": reader, "schema__registry__url": registry.url}
        (row,) = read(spark, made, **options).select("value.*").collect()
    assert row.asDict(recursive=True) == {"new": Decimal("-0.01"), "o": {"n": 2}, "id": 1}


def test_levels_of_a_tree(spark: SparkSession, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    kids = {"type": "array", "items": "Tree"}
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "v", "type": "int"}, {"name": "kids", "type": kids}]}
    made.produce([b"\2\4\4\0\6\2\x08\0\0\0"])
    options = {"valueFormat": "avro", "valueSchema": json.dumps(tree), "recursiveFieldMaxDepth": "2"}
    (row,) = read(spark, made, **options).select("value.*").collect()
    assert row.asDict(recursive=True) == {"v": 1, "kids": [{"v": 2}, {"v": 3}]}


def test_json_behind_the_prefix_of_a_registry(spark: SparkSession, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    with schema_registry() as registry:
        number = registry.register(f"{topic}-value", '{"type":"object"}', schemaType="JSON")
        prefix = b"\0" + number.to_bytes(4, "big")
        made.produce([prefix + b'{"id":1}', b'{"id":2}', prefix + b'{"id":3}', None])
        options = {"valueFormat": "json", "valueSchema": "id INT", "schema__registry__url": registry.url}
        frame = read(spark, made, **options).select("value.id", "_corrupt_record", "offset").orderBy("offset")
        assert [tuple(row)[:2] for row in frame.collect()] == [(1, None), (None, b'{"id":2}'), (3, None), (None, None)]


def test_failfast_names_the_record(spark: SparkSession, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    made.produce([b'{"i":1}', b'{"i":"x"}'])
    with pytest.raises(PySparkException) as raised:
        read(spark, made, valueFormat="json", valueSchema="i INT", mode="FAILFAST").collect()
    text = str(raised.value)
    assert f"[MALFORMED_RECORD_IN_PARSING] Malformed record at offset 1 of topic '{topic}', partition 0" in text
    assert "field i: 'x' is not a valid int32" in text


def test_only_what_is_asked_for_and_in_that_order(spark: SparkSession, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    made.produce([b'{"i":1}', b"bad"], key=b"\xff")
    frame = read(spark, made, valueFormat="json", valueSchema="i INT", columns="partition,value", mode="DROPMALFORMED")
    assert frame.schema.simpleString() == "struct<partition:int,value:struct<i:int>>"
    assert [tuple(row) for row in frame.select("partition", "value.i").collect()] == [(0, 1)]
