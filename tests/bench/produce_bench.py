"""Ready-made batches of 1 MB from raw sockets: what the broker's side of a produce costs, checks and all.

No client library is measured: four connections each send requests of one batch, a few ahead of the answers. Where
`PYKAFKA_BENCH_TREE` names another checkout (with its kernel built), its broker stands in the ceiling's column, both in
turns, so that a drift of the machine hits both: the way to hold a change against what was before.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_request
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from tests.bench.measure import Row
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests

__all__ = ["run"]

TREE = os.environ.get("PYKAFKA_BENCH_TREE", "")
ROUNDS, CONNECTIONS, AHEAD = 5, 4, 5
BATCH_BYTES = 1_000_000
_ERROR_CODE = slice(13, 15)  # behind correlation id, a topic of one letter, and the partition's number
CASES = [(codec, size) for size in (1024, 100) for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.GZIP)]


def run(scale: float = 1.0) -> list[Row]:
    """MB/s of plain records, and the broker's CPU, for each codec and record size."""
    rows = []
    for codec, size in CASES:
        seen: dict[str, list[tuple[float, float]]] = {"": [], TREE: []}
        for _ in range(ROUNDS):
            for tree in seen:
                seen[tree].append(_measure(tree, codec, size, scale))
        ours, other = [[statistics.median(column) for column in zip(*seen[tree], strict=True)] for tree in ("", TREE)]
        name = f"produce ready-made batches, {size} B, {codec.name.lower()}"
        for unit, mine, theirs in zip(("MB/s", "CPU s/GB"), ours, other, strict=True):
            rows.append(Row(name, mine, unit, theirs if TREE else None))
    return rows


def _batch(codec: Codec, size: int) -> tuple[bytes, int]:
    """A batch of about 1 MB, half of each value being noise; and its plain bytes."""
    builder = BatchBuilder(codec=codec, max_bytes=BATCH_BYTES)
    now = int(time.time() * 1000)
    while builder.append(now + builder.record_count // 100, None, os.urandom(size // 2) + b"x" * (size - size // 2)):
        pass
    return builder.build(), builder.size


@contextlib.contextmanager
def _broker(tree: str) -> Iterator[BrokerProcess]:
    """Ours, or that of another checkout."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        if tree:
            os.environ["PYTHONPATH"] = tree
        try:
            broker = stack.enter_context(BrokerProcess(Path(directory) / "data"))
        finally:
            os.environ.pop("PYTHONPATH", None)
            if before is not None:
                os.environ["PYTHONPATH"] = before
        yield broker


def _measure(tree: str, codec: Codec, size: int, scale: float) -> tuple[float, float]:
    batch, plain = _batch(codec, size)
    each = max(int((400 if codec in (Codec.NONE, Codec.LZ4) else 150) * scale), 10)
    with _broker(tree) as broker, Requests(broker.bootstrap) as ask:
        ask.create("t", CONNECTIONS)
        process = psutil.Process(broker.pid)
        _send(broker.bootstrap, 0, batch, 20)
        threads = [threading.Thread(target=_send, args=(broker.bootstrap, n, batch, each)) for n in range(CONNECTIONS)]
        cpu, begun = process.cpu_times(), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, after = time.perf_counter() - begun, process.cpu_times()
    gigabytes = plain * each * CONNECTIONS / 1e9
    return gigabytes * 1e3 / took, (after.user + after.system - cpu.user - cpu.system) / gigabytes


def _send(bootstrap: str, partition: int, batch: bytes, count: int) -> None:
    data = {"name": "t", "partition_data": [{"index": partition, "records": batch}]}
    body = {"transactional_id": None, "acks": 1, "timeout": 30_000, "topic_data": [data]}
    request = encode_request(ApiKey.PRODUCE, 9, 1, "bench", body)
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
        for number in range(count + AHEAD):
            if number < count:
                connection.sendall(request)
            if number >= AHEAD:
                (length,) = struct.unpack(">i", answers.read(4))
                answer = answers.read(length)
                assert answer[_ERROR_CODE] == b"\0\0", answer
