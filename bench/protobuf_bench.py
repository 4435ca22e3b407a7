"""Protobuf messages per CPU second: to columns and back, by the kernel and by protobuf's own runtime.

The runtime's way is the fastest one in Python: a message per value, and a list per field.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.message_factory import GetMessageClass

from bench.measure import Row
from spark_connector.formats.protobuf_decoder import ProtobufDecoder
from spark_connector.formats.protobuf_descriptors import message_of
from spark_connector.formats.protobuf_encoder import ProtobufEncoder
from tests.support.protobuf_cases import add, file_with, schema_with

FIELDS = {"id": "int64", "customer": "string", "amount": "double", "paid": "bool", "note": "string"}
_VALUES = 20_000


def run(scale: float = 1.0) -> Iterator[Row]:
    """The best of some rounds, in turn."""
    order = DescriptorProto(name="Order")
    for number, (name, kind) in enumerate(FIELDS.items(), 1):
        add(order, name, number, kind)
    schema = schema_with(file_with(order), message="Order")
    message = GetMessageClass(message_of(schema))
    rows = [
        {"id": row, "customer": f"c{row % 977}", "amount": row / 7, "paid": row % 2 == 1, "note": "at the front door"}
        for row in range(1, _VALUES + 1)
    ]
    decoder = ProtobufDecoder(schema)
    columns = pa.array(rows, decoder.type)
    encoder = ProtobufEncoder(schema, decoder.type)
    values = encoder.encode(columns).values
    assert decoder.decode(values).column.to_pylist()[0] == rows[0]

    def decode() -> None:
        messages = [message.FromString(one) for one in values.to_pylist()]
        pa.StructArray.from_arrays(
            [pa.array([getattr(one, field.name) for one in messages], field.type) for field in decoder.type],
            fields=list(decoder.type),
        )

    def encode() -> None:
        lists = zip(*(columns.field(name).to_pylist() for name in FIELDS), strict=True)
        pa.array([message(**dict(zip(FIELDS, row, strict=True))).SerializeToString() for row in lists], pa.binary())

    rounds = max(2, int(10 * scale))
    for case, ours, theirs in (
        ("protobuf to columns", lambda: decoder.decode(values), decode),
        ("columns to protobuf", lambda: encoder.encode(columns), encode),
    ):
        best = [min(_cpu(way) for _ in range(rounds)) for way in (ours, theirs)]
        yield Row(case, _VALUES / best[0], "values/s", _VALUES / best[1], "ceiling: protobuf's runtime, upb")


def _cpu(way: Callable[[], Any]) -> float:
    start = time.process_time()
    way()
    return time.process_time() - start
