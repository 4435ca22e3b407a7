"""CPU seconds of the Python processes of a read, without Spark: what the first query and the first write of a session
import and do in each, and one task that writes its batches to a socket as Spark's worker does, by the size of a batch.

The ceiling of a task are the same batches out of 64 MiB of memory. CPU seconds, because a busy machine disturbs them
less than the wall's. Cases take turns.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

from bench.measure import Row, broker_target
from bench.spark_common import fill, values
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.records.compression import Codec
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read import arrow_batches, fetch
from spark_connector.read.readers import KafkaBatchReader
from spark_connector.read.schema import spark_schema
from tests.support.source_tree import ROOT

ROUNDS = 5
COUNTS = {100: 1_000_000, 1024: 250_000}
SIZES = {
    "0.25 MiB": (2_500, 1 << 18),
    "1 MiB": (10_000, 1 << 20),
    "4 MiB": (10_000, 4 << 20),
    "8 MiB": (64_000, 8 << 20),
}
"""Most rows and bytes of a batch; 10,000 and 1 MiB are what the connector has."""

_FIRST = """
import pickle, sys, time, types
import pyspark.daemon, pyspark.worker, pyspark.sql.worker.plan_data_source_read as worker, pyspark_pykafka
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
phase, servers, topic, schema, task = sys.argv[1:]
source = pyspark_pykafka.DefaultSource({"kafka.bootstrap.servers": servers, "subscribe": topic})
start = time.process_time()
if phase == "schema":
    source.schema().json()
elif phase == "partitions":
    source.reader(worker._parse_datatype_json_string(schema)).partitions()
else:
    reader, partition = pickle.loads(bytes.fromhex(task))
    assert sum(batch.num_rows for batch in reader.read(partition)) == 4
print(time.process_time() - start)
"""

_FIRST_WRITE = """
import json, pickle, sys, time, types
import pyspark.daemon, pyspark.worker, pyspark.sql.worker.write_into_data_source as worker, pyspark_pykafka
from pyspark import TaskContext, cloudpickle
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
phase, options, schema, sent = sys.argv[1:]
if phase != "commit":
    import pyarrow as pa  # as Spark does there
start = time.process_time()
if phase == "plan":
    made = pyspark_pykafka.DefaultSource(json.loads(options)).writer(worker._parse_datatype_json_string(schema), False)
elif phase == "rows":
    context = TaskContext._getOrCreate()
    context.__dict__.update(_partitionId=0, _attemptNumber=0, _taskAttemptId=1, _localProperties={})
    rows = pa.RecordBatch.from_arrays([pa.nulls(1, pa.binary())], ["value"])
    made = pickle.loads(bytes.fromhex(sent)).write(iter([rows]))
    pa.array([b"x"])  # as Spark does of the message
else:
    writer, message = pickle.loads(bytes.fromhex(sent))
    made = writer.commit([message])
print(time.process_time() - start, cloudpickle.dumps(made).hex())
"""


def run(scale: float = 1.0) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory, broker_target(Path(directory) / "data", 1) as target:
        yield from _first_query(target.bootstrap, Path(directory))
        yield from _first_write(target.bootstrap, Path(directory))
        for size, count in COUNTS.items():
            yield from _task(target.bootstrap, size, max(int(count * scale) // 10_000, 1) * 10_000)


def _first_query(bootstrap: str, directory: Path) -> Iterator[Row]:
    """Our part of each process of a first query; the time of an empty source there is next to nothing.

    With bytecode on disk, as pip leaves it: where none may be written, a third of the time would go to the compiler."""
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic("bench-first", 4)
    fill(bootstrap, "bench-first", values(100, 1), 4, keyed=False, codec=Codec.NONE)
    environment = _as_installed(directory)
    reader = _reader(bootstrap, "bench-first")
    task = pickle.dumps((reader, *reader.partitions())).hex()
    for phase in ("schema", "partitions", "rows"):
        command = [sys.executable, "-c", _FIRST, phase, bootstrap, "bench-first", spark_schema().json(), task]
        taken = [float(subprocess.check_output(command, env=environment, cwd=ROOT)) for _ in range(ROUNDS + 1)][1:]
        yield Row(f"first query, our CPU in the process of the {phase}", statistics.median(taken) * 1000, "ms")


def _first_write(bootstrap: str, directory: Path) -> Iterator[Row]:
    """Our part of each process of a first write, exactly once, of one row."""
    environment, schema = _as_installed(directory), StructType([StructField("value", BinaryType())]).json()
    options = json.dumps({"kafka.bootstrap.servers": bootstrap, "topic": "bench-first", "delivery": "exactly-once"})

    def once(phase: str, sent: str = "") -> tuple[float, bytes]:
        command = [sys.executable, "-c", _FIRST_WRITE, phase, options, schema, sent]
        taken, made = subprocess.check_output(command, env=environment, cwd=ROOT, text=True).split()
        return float(taken), bytes.fromhex(made)

    rounds: list[list[float]] = []
    for _ in range(ROUNDS + 1):
        plan, writer = once("plan")
        rows, message = once("rows", writer.hex())
        commit, _none = once("commit", cloudpickle.dumps((pickle.loads(writer), pickle.loads(message))).hex())
        rounds.append([plan, rows, commit])
    for phase, *taken in zip(("plan", "rows", "commit"), *rounds[1:], strict=True):
        yield Row(f"first write, our CPU in the process of the {phase}", statistics.median(taken) * 1000, "ms")


def _as_installed(directory: Path) -> dict[str, str]:
    """The environment of a process that imports as from an installation: bytecode on disk, and no hypothesis."""
    (directory / "hypothesis.py").write_text("raise ImportError('kio imports it where it is installed')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}
    return environment | {"PYTHONPYCACHEPREFIX": str(directory / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}


def _reader(bootstrap: str, topic: str) -> KafkaBatchReader:
    return KafkaBatchReader(parse_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic}, Mode.BATCH))


def _task(bootstrap: str, size: int, count: int) -> Iterator[Row]:
    topic = f"bench-task-{size}"
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1)
    fill(bootstrap, topic, values(size), count, keyed=True, codec=Codec.NONE, partitions=1)
    reader = _reader(bootstrap, topic)
    (partition,) = reader.partitions()
    held: list[pa.RecordBatch] = []
    for batch in reader.read(partition):
        held.append(batch)
        if sum(one.nbytes for one in held) > 64 << 20:
            break

    def ceiling() -> float:
        again = (held[number % len(held)] for number in range(sys.maxsize))
        return _written(again, count)

    def ours(rows: int, most: int) -> float:
        arrow_batches._constants.cache_clear()
        with (
            mock.patch.multiple(arrow_batches, MAX_ROWS=rows, MAX_BYTES=most),
            mock.patch.multiple(fetch, MAX_ROWS=rows, MAX_BYTES=most),
        ):
            taken = _written(reader.read(partition), count)
        arrow_batches._constants.cache_clear()
        return taken

    cases: list[Callable[[], float]] = [ceiling, *(lambda limits=limits: ours(*limits) for limits in SIZES.values())]
    rounds = [[case() for case in cases] for _ in range(ROUNDS + 1)][1:]
    best, *all_taken = (statistics.median(column) for column in zip(*rounds, strict=True))
    for name, taken in zip(SIZES, all_taken, strict=True):
        yield Row(f"a task of {count:,} × {size} B with keys, batches of {name}", taken, "s CPU", best)


def _written(batches: Iterable[pa.RecordBatch], count: int) -> float:
    """CPU seconds of this thread to make batches of `count` rows and to write them to a socket that another drains."""
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as sending:
        receiving, _ = server.accept()
        drain = threading.Thread(target=_drain, args=(receiving,))
        drain.start()
        rows, start = 0, time.thread_time()
        with sending.makefile("wb", 1 << 16) as out:
            writer = None
            for batch in batches:
                batch = batch.slice(0, count - rows)
                writer = writer or pa.RecordBatchStreamWriter(out, batch.schema)
                writer.write_batch(batch)
                rows += batch.num_rows
                if rows >= count:
                    break
            assert writer is not None
            writer.close()
        taken = time.thread_time() - start
    drain.join()
    return taken


def _drain(sock: socket.socket) -> None:
    with sock:
        memory = bytearray(1 << 16)
        while sock.recv_into(memory):
            pass
