"""`python -m tests.support.avro_fuzz KERNEL SEED EXAMPLES`: Avro, and JSON, through a kernel built with sanitizers.

Each value is read alone, out of memory that ends with it, into buffers that are always just too small. A kernel that
reads or writes beyond them ends the process with the sanitizer's report. `sanitized` builds such a kernel and runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.records import native
from broker.records.native import ColumnsDecoder, Kernel
from spark_connector.formats.avro_batches import BatchProgram
from spark_connector.formats.avro_columns import column_of
from spark_connector.formats.avro_resolver import resolve
from spark_connector.formats.avro_schema import parse_avro
from spark_connector.formats.json_batches import JsonProgram
from spark_connector.formats.kernel_columns import NotByColumns
from spark_connector.formats.schema_text import parse_ddl
from spark_connector.formats.value_format import AvroSchema
from tests.support.avro_cases import Case, cases
from tests.support.example_search import search
from tests.support.requirements import Unavailable
from tests.support.source_tree import ROOT

_FLAGS = [
    "-std=c11",
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-shared",
    "-fPIC",
]
_LEVELS = 2
_DDL = "a INT, b STRING, c ARRAY<STRUCT<x: DOUBLE, t: TIMESTAMP>>, m MAP<STRING, TINYINT>, d DECIMAL(9,3), e DATE"
_DOCUMENT = rb"""{"a":-17, "b":"q\ud83d\ude00\n %s","other":{"x":[1.5e-3,[true,{}]]},
"c":[{"x":0.12345678901234567,"t":"2024-02-29T01:02:03.5+02:00"},null], "\u006d":{"k":1,"l":null},
"d":"-1.2345","e":"2024-02-29"}""" % "é".encode()


def sanitized(directory: Path, number: int, examples: int) -> str:
    """What a run in a process of its own prints. Raises Unavailable without a compiler that has the sanitizers, and
    AssertionError with their report."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise Unavailable("no gcc")
    library = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(library.stdout.strip()).is_file():
        raise Unavailable("gcc has no sanitizers")
    kernel = directory / "_kernel.so"
    sources = [str(path) for path in (ROOT / "broker" / "records").glob("_kernel*.c")]
    include = sysconfig.get_paths()["include"]
    subprocess.run([compiler, *_FLAGS, f"-I{include}", *sources, "-o", str(kernel)], check=True)
    environment = {"LD_PRELOAD": library.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    environment |= {"PYTHONPATH": ""}  # has a directory that spares what tests start the import of Hypothesis
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.avro_fuzz", str(kernel), str(number), str(examples)],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def fuzz(kernel: Kernel, number: int, examples: int) -> int:
    """The number of values that were read."""

    def read(drawn: tuple[Case, list[bytes], st.DataObject], counts: Counter[str]) -> None:
        case, hostile, data = drawn
        program = _program(case)
        if program is None:
            return
        values = [*hostile, *case.values]
        for raw in case.values:
            values += [raw[:end] for end in range(len(raw))]
            values += [raw[:at] + data.draw(st.binary(max_size=10)) + raw[at + 1 :] for at in range(0, len(raw), 3)]
        for raw in values:
            _read(kernel.decode_avro, program, raw)
        counts["values"] += len(values)

    drawn = st.tuples(cases(), st.lists(st.binary(max_size=40), min_size=2, max_size=8), st.data())
    return search(number, examples, drawn, read)["values"] + _fuzz_json(kernel)


def _fuzz_json(kernel: Kernel) -> int:
    """Each beginning of a document, and it with each of its bytes replaced."""
    program = JsonProgram(parse_ddl(_DDL))
    values = [_DOCUMENT[:end] for end in range(len(_DOCUMENT) + 1)]
    for other in (b"", b'"', b"\\", b"{", b"]", b"1", b"e", b"\xf0", b"\0"):
        values += [_DOCUMENT[:at] + other + _DOCUMENT[at + 1 :] for at in range(len(_DOCUMENT))]
    for raw in values:
        _read(kernel.decode_json, program, raw)
    return len(values)


def _program(case: Case) -> BatchProgram | None:
    try:
        ours = parse_avro(AvroSchema(case.reader))
        return BatchProgram(resolve(parse_avro(AvroSchema(case.writer)), ours), column_of(ours, _LEVELS))
    except (ConfigError, NotByColumns):
        return None


def _read(decoder: ColumnsDecoder, program: BatchProgram | JsonProgram, raw: bytes) -> None:
    data, edges = np.frombuffer(raw, np.uint8).copy(), np.array([0, len(raw)], np.int32)
    # numpy's arrays are as long as they say: pyarrow's would end with some unused bytes.
    columns, shapes = program._reader._columns, program._reader._shapes
    buffers: list[list[Any]] = [[np.zeros(1, np.uint8), np.zeros(16, np.uint8), None] for _ in columns]
    for number, column in enumerate(columns):
        if column is not None and column.kind.name == "TEXTS":
            buffers[number][2] = np.zeros(0, np.uint8)
    state, refused = np.zeros(2 + 3 * len(buffers), np.int64), np.zeros(1, np.int32)
    while True:
        given = edges, None, data, 0
        full = decoder(program._code, shapes, state, buffers, given, 1, 0, refused)
        if full < 0:
            return
        grown = buffers[full // 2]
        for index in (2,) if full % 2 else (0, 1):
            grown[index] = np.concatenate([grown[index], np.zeros(1 + 16 * index * (index < 2), np.uint8)])


if __name__ == "__main__":
    print(fuzz(native._import_file(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])), "values")
