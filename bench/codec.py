"""Record batches to Arrow columns and back, rows a second of one core: `python -m bench.codec`.

Each case with the kernel, where it was built, and without. CPU time of this process, best of several
rounds, so that neighbours on the machine matter little. The ceiling of decoding is what cannot be saved:
the CRC, the decompression and one copy of the plain bytes; that of encoding is the compression and one copy.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bench.measure import Row
from broker.records.batch import HEADER_SIZE, walk_batches
from broker.records.builder import BatchBuilder
from broker.records.columns import decode_columns, encode_columns, partitions_of_keys
from broker.records.compression import Codec, compress, decompress
from broker.records.crc32c import crc32c
from broker.records.record import decode_records
from tests.support.codec_choice import in_turn
from tests.support.record_batches import follow

CHUNK_BYTES = 4 << 20
ENCODE_ROWS = 10_000
ROUNDS = 15
CHECKED = 21
"""Where in a batch the bytes begin that its CRC covers."""
NOW = 1_760_000_000_000

WORDS = "alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november oscar papa".split()


class Columns(NamedTuple):
    """What is encoded: one key per row, or none."""

    key: pa.Array | None
    value: pa.Array
    timestamp: pa.Array


def run(scale: float) -> list[Row]:
    """All cases; `scale` shortens the rounds."""
    rounds = max(3, round(ROUNDS * scale))
    rows: list[Row] = []
    for size in (100, 1024):
        for keyed in (False, True):
            for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
                case = f"{size} B, {'keyed' if keyed else 'no key'}, {codec.name.lower()}"
                rows += _columns_case(case, size, keyed, codec, rounds)
    return [*rows, *_keys_case(rounds), *_object_cases(rounds)]


def json_values(size: int, count: int) -> list[bytes]:
    """JSON-like, of `size` bytes give or take a tenth."""
    rnd = random.Random(size)
    values = []
    for number in range(count):
        words = " ".join(rnd.choice(WORDS) + str(rnd.randrange(97)) for _ in range(size // 7))
        text = f'{{"id":{rnd.randrange(10**8)},"amount":{rnd.randrange(10**6) / 100:.2f},"name":"{words}'
        length = size - size // 10 + number * 7919 % (size // 5 + 1)
        values.append(text[: length - 2].encode() + b'"}')
    return values


def columns_of(size: int, keyed: bool, count: int) -> Columns:
    values = json_values(size, min(count, 5000))
    value = pa.array([values[number % len(values)] for number in range(count)], pa.binary())
    key = pa.array([b"user-%08d" % (number * 7919 % 10**8) for number in range(count)], pa.binary()) if keyed else None
    return Columns(key, value, pa.array(NOW + np.arange(count) // 10))


def best_rate(count: int, rounds: int, work: Callable[[], object]) -> float:
    """Rows a second: `count` by the shortest CPU time of `work`."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return count / best


def _columns_case(case: str, size: int, keyed: bool, codec: Codec, rounds: int) -> list[Row]:
    columns = columns_of(size, keyed, CHUNK_BYTES // size)
    chunk = follow(encode_columns(*columns, codec=codec))
    count = decode_columns(chunk).num_rows
    part = Columns(*(None if column is None else column.slice(0, ENCODE_ROWS) for column in columns))
    sections = [bytes(section) for batch in encode_columns(*part) for section in plain_sections(batch_spans(batch))]
    spans = batch_spans(chunk)
    works: list[tuple[str, int, Callable[[], object], Callable[[], object]]] = [
        ("decode", count, lambda: decode_columns(chunk).timestamp_us(), lambda: b"".join(plain_sections(spans))),
        (
            "decode the value of",
            count,
            lambda: decode_columns(chunk, fields=("value",)),
            lambda: b"".join(plain_sections(spans)),
        ),
        (
            "encode",
            len(part.value),
            lambda: encode_columns(*part, codec=codec),
            lambda: [bytearray(compress(codec, section)) for section in sections],
        ),
    ]
    return [
        row for name, number, work, ceiling in works for row in _rows(f"{name} {case}", number, rounds, work, ceiling)
    ]


def _rows(
    case: str, count: int, rounds: int, work: Callable[[], object], ceiling: Callable[[], object] | None = None
) -> list[Row]:
    """A row per implementation. They and the ceiling take turns, for the machine's speed drifts."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for implementation in in_turn():
            best[implementation] = max(best.get(implementation, 0), best_rate(count, 1, work))
        if ceiling is not None:
            best["ceiling"] = max(best.get("ceiling", 0), best_rate(count, 1, ceiling))
    limit = best.pop("ceiling", None)
    return [Row(case, rate, "rows/s", limit, note=f"({implementation})") for implementation, rate in best.items()]


def batch_spans(chunk: bytes) -> list[tuple[int, memoryview, memoryview]]:
    """Codec, checked bytes and record section of each batch."""
    view = memoryview(chunk)
    return [
        (
            header.codec,
            view[position + CHECKED : position + header.size],
            view[position + HEADER_SIZE : position + header.size],
        )
        for position, header in walk_batches(view)
    ]


def plain_sections(spans: Sequence[tuple[int, memoryview, memoryview]]) -> list[bytes | bytearray | memoryview]:
    """The decompressed record sections, CRCs computed."""
    for _, checked, _ in spans:
        crc32c(checked)
    return [decompress(codec, section) for codec, _, section in spans]


def _keys_case(rounds: int) -> list[Row]:
    keys = columns_of(100, True, 100_000).key
    assert keys is not None
    return _rows("partitions of keys of 13 B", len(keys), rounds, lambda: partitions_of_keys(keys, 12))


def _object_cases(rounds: int) -> list[Row]:
    """The Python-object way that producer, console and consumers use."""
    return [row for size in (100, 1024) for row in _objects_case(size, rounds)]


def _objects_case(size: int, rounds: int) -> list[Row]:
    values = json_values(size, 5000)
    chunk = b"".join(_build(values))
    case = f"{size} B, keyed, none"
    return [
        Row(f"builder {case}", best_rate(len(values), rounds, lambda: _build(values)), "rows/s"),
        Row(f"records {case}", best_rate(len(values), rounds, lambda: list(decode_records(chunk))), "rows/s"),
    ]


def _build(values: Sequence[bytes]) -> list[bytes]:
    batches, builder = [], BatchBuilder()
    for number, value in enumerate(values):
        if not builder.append(NOW + number // 10, b"user-12345678", value):
            batches.append(builder.build())
            builder = BatchBuilder()
            builder.append(NOW + number // 10, b"user-12345678", value)
    return [*batches, builder.build()]


if __name__ == "__main__":
    for row in run(1.0):
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} of {row.ceiling:,.0f}"
        print(f"{row.case:46} {row.note:8} {row.value:12,.0f} {row.unit}  {ratio}")
