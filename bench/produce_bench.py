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
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bench.measure import Row
from broker.log.append_checks import BatchCheck
from broker.log.log_config import LogConfig
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_request
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from broker.records.crc32c import crc32c
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests

TREE = os.environ.get("PYKAFKA_BENCH_TREE", "")
ROUNDS, CONNECTIONS, AHEAD = 9, 4, 5
BATCH_BYTES, BATCHES = 1_000_000, 100
CASES = [(codec, size) for size in (1024, 100) for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.GZIP)]


def run(scale: float = 1.0) -> list[Row]:
    """What a check costs by itself; MB/s of plain records and the broker's CPU, for each codec and record size."""
    rows = [_check(codec, size) for codec, size in CASES]
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(_broker(tree)) for tree in ("", TREE)[: 2 if TREE else 1]]
        for codec, size in CASES:
            batch, plain = _batch(codec, size)
            topic = f"{codec.name.lower()}-{size}"
            for broker in brokers:
                with Requests(broker.bootstrap) as ask:
                    ask.create(topic, CONNECTIONS, segment_bytes=str(64 << 20), retention_bytes=str(64 << 20))
                _send(broker.bootstrap, topic, 0, batch, 20)
            count = max(int((BATCHES if codec in (Codec.NONE, Codec.LZ4) else BATCHES // 3) * scale), 10)
            seen = [[_measure(broker, topic, batch, plain, count) for broker in brokers] for _ in range(ROUNDS)]
            figures = [
                [statistics.median(column) for column in zip(*rounds, strict=True)]
                for rounds in zip(*seen, strict=True)
            ]
            name = f"produce ready-made batches, {size} B, {codec.name.lower()}"
            for number, unit in enumerate(("MB/s", "CPU s/GB")):
                rows.append(Row(name, figures[0][number], unit, figures[1][number] if TREE else None))
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
    """Ours, or that of another checkout: `python -m broker` takes what lies where it is started."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        with contextlib.chdir(tree or "."):
            broker = stack.enter_context(BrokerProcess(Path(directory) / "data"))
        yield broker


def _check(codec: Codec, size: int) -> Row:
    """The least of many times, which other processes disturb little; the ceiling is the checksum alone."""
    batch, plain = _batch(codec, size)
    buffer, now = bytearray(batch), int(time.time() * 1000)
    checked = min(_seconds(lambda: BatchCheck(buffer, LogConfig(), now).run()) for _ in range(200))
    summed = min(_seconds(lambda: crc32c(buffer)) for _ in range(200))
    megabytes = plain / 1e6
    return Row(
        f"check of a batch, {size} B, {codec.name.lower()}",
        checked * 1e6 / megabytes,
        "µs/MB",
        summed * 1e6 / megabytes,
    )


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _measure(broker: BrokerProcess, topic: str, batch: bytes, plain: int, count: int) -> tuple[float, float]:
    process = psutil.Process(broker.pid)
    threads = [
        threading.Thread(target=_send, args=(broker.bootstrap, topic, n, batch, count)) for n in range(CONNECTIONS)
    ]
    before, begun = process.cpu_times(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, after = time.perf_counter() - begun, process.cpu_times()
    gigabytes = plain * count * CONNECTIONS / 1e9
    return gigabytes * 1e3 / took, (after.user + after.system - before.user - before.system) / gigabytes


def _send(bootstrap: str, topic: str, partition: int, batch: bytes, count: int) -> None:
    data = {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
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
                assert answer[12 + len(topic) : 14 + len(topic)] == b"\0\0", answer  # the error code
