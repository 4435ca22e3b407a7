"""Protobuf in a real Spark: columns read and written again, and Java's Protobuf as a judge of which values are bad.

from_protobuf itself is in a module that PySpark does not bring. Its parser, Java's DynamicMessage, is in Spark Connect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import struct_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from broker.records import native
from spark_connector.formats.protobuf_decoder import ProtobufDecoder
from spark_connector.formats.protobuf_descriptors import file_of, message_of, schema_of_file
from spark_connector.formats.value_format import ProtobufRules
from tests.support.kafka import Kafka
from tests.support.protobuf_cases import drawn_message, every_kind, hostile
from tests.support.randomness import seeded
from tests.support.topics import Topic

SCHEMA = every_kind()


def test_columns_are_read_and_written_again(spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path) -> None:
    (tmp_path / "t.desc").write_bytes(SCHEMA.descriptors)
    dice = seeded(1)
    sent = [drawn_message(dice, message_of(SCHEMA)).SerializeToString(deterministic=True) for _ in range(5)]
    before, after = Topic(broker.bootstrap, topic), Topic(broker.bootstrap, f"{topic}-again")
    before.produce([*sent, b"\x08"])
    after.produce([])
    options = {"valueFormat": "protobuf", "valueSchema": str(tmp_path / "t.desc"), "valueMessage": "t.All"}
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", before.bootstrap)
    frame = reader.option("subscribe", before.name).options(**options).load()
    types = dict(frame.select("value.*").dtypes)
    assert types["one_duration"] == "interval day to second"
    assert types["all_timestamp"] == "array<timestamp>"
    assert types["to_enum"] == "map<int,string>"
    assert [row.offset for row in frame.where("_corrupt_record IS NOT NULL").select("offset").collect()] == [5]
    good = frame.where("value IS NOT NULL").select("value.*")
    writer = good.write.format("pykafka").option("kafka.bootstrap.servers", after.bootstrap).option("topic", after.name)
    writer.options(**options, valueColumns="*").mode("append").save()
    plain = spark.read.format("pykafka").option("kafka.bootstrap.servers", after.bootstrap)
    rows = plain.option("subscribe", after.name).load().select("value").collect()
    message = type(drawn_message(dice, message_of(SCHEMA)))
    again = [message.FromString(bytes(row.value)).SerializeToString(deterministic=True) for row in rows]
    assert sorted(again) == sorted(sent)


class Java:
    """Java's Protobuf, as from_protobuf uses it."""

    def __init__(self, spark: SparkSession, schema: Any) -> None:
        self._java = spark._jvm.org.sparkproject.connect.protobuf  # type: ignore[union-attr]
        gateway: Any = spark.sparkContext._gateway
        names = ("TimestampProto", "DurationProto", "WrappersProto")
        imports = gateway.new_array(self._java.Descriptors.FileDescriptor, len(names))
        for index, name in enumerate(names):
            imports[index] = getattr(self._java, name).getDescriptor()
        file = self._java.DescriptorProtos.FileDescriptorProto.parseFrom(file_of(schema))
        self._type = self._java.Descriptors.FileDescriptor.buildFrom(file, imports).findMessageTypeByName("All")
        self._fields = [field for field in self._type.getFields() if not field.isRepeated()]
        self._numbers = {field.getNumber() for field in self._type.getFields()}

    def set_fields(self, raw: bytes) -> set[str] | None:
        """The fields that are not repeated and not null to Spark; None for a bad record."""
        try:
            read = self._java.DynamicMessage.parseFrom(self._type, raw)
        except Py4JJavaError:
            return None
        if self._numbers & set(read.getUnknownFields().asMap().keySet()):
            return None
        return {field.getName() for field in self._fields if read.hasField(field)}


@pytest.mark.parametrize("syntax", ["proto3", "proto2"])
def test_bad_records_and_nulls_are_those_of_java(spark: SparkSession, syntax: str) -> None:
    schema, dice = every_kind(syntax), seeded(2)
    java = Java(spark, schema)
    sent = [drawn_message(dice, message_of(schema), 0.05).SerializeToString() for _ in range(60)]
    raw = [hostile(dice, one) if index % 3 else one for index, one in enumerate(sent)]
    decoded = ProtobufDecoder(schema).decode(pa.array(raw, pa.binary()))
    found = decoded.column
    singular = [field.name for field in message_of(schema).fields if not field.is_repeated]
    for row, one in enumerate(raw):
        wanted = java.set_fields(one)
        if row in decoded.bad and ("is not UTF-8" in decoded.bad[row] or "beyond all" in decoded.bad[row]):
            continue  # Spark replaces the text, and refuses such times later
        assert (row in decoded.bad) == (wanted is None), (one, decoded.bad.get(row))
        if wanted is not None:
            assert {name for name in singular if found[row][name].is_valid} == wanted


def test_entries_of_a_map_are_those_of_java(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of classes that protoc makes, whose maps have a key once. Field 3 of an entry is one of a newer schema."""
    files = FileDescriptorSet()
    struct_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    schema, dice = schema_of_file(files.SerializeToString(), "google.protobuf.Struct"), seeded(3)
    one = struct_pb2.Struct.FieldsEntry
    raw = []
    for _ in range(50):
        drawn = [one(key=dice.choice("ab"), value={"number_value": index}) for index in range(dice.randint(0, 4))]
        entries = [entry.SerializeToString() + dice.choice([b"", b"\x18\x01"]) for entry in drawn]
        raw.append(b"".join(b"\x0a" + bytes([len(entry)]) + entry for entry in entries))
    java = spark._jvm.org.sparkproject.connect.protobuf.Struct  # type: ignore[union-attr]
    read = [java.parseFrom(one).getFieldsMap() for one in raw]
    wanted = [{key: fields[key].getNumberValue() for key in fields} for fields in read]
    for with_kernel in (True, False):
        if not with_kernel:
            monkeypatch.setattr(native, "kernel", None)
        decoded = ProtobufDecoder(schema, None, ProtobufRules(1)).decode(pa.array(raw))
        assert decoded.bad == {}
        found = [{key: value["number_value"] for key, value in row["fields"]} for row in decoded.column.to_pylist()]
        assert found == wanted
