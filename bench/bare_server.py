"""The ceiling of a broker: receive → CRC → pwrite, and sendfile back; nothing else.

One blocking thread per connection, no metadata but one topic, no validation, no groups, no recovery.
It speaks just enough of the protocol for confluent-kafka, so that the client's cost is the same as
against the real broker. `python -m bench.bare_server DIR PARTITIONS` prints its port.
"""

from __future__ import annotations

import bisect
import os
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from broker.errors import ErrorCode
from broker.freed_memory import keep_freed_memory
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import PartitionAnswer, TopicAnswer, encode_fetch_response
from broker.protocol.messages import Request, encode_response, read_head
from broker.records.batch import walk_batches
from broker.records.crc32c import crc32c
from broker.tools.run_broker import KEPT_BYTES

TOPIC = "bench"
VERSIONS = {
    ApiKey.PRODUCE: (0, 9),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 6),
    ApiKey.METADATA: (0, 9),
    ApiKey.API_VERSIONS: (0, 3),
}


class Range(NamedTuple):
    """Bytes of a file to send."""

    descriptor: int
    position: int
    length: int


class Partition:
    """A file, and where each batch begins in it."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.size = 0
        self.end = 0
        self.offsets: list[int] = []
        self.positions: list[int] = []

    def append(self, records: bytes) -> int:
        base = self.end
        out = bytearray(records)
        view = memoryview(records)
        for position, header in walk_batches(records):
            assert crc32c(view[position + 21 : position + header.size]) == header.crc
            struct.pack_into(">q", out, position, self.end)
            self.offsets.append(self.end)
            self.positions.append(self.size + position)
            self.end += header.last_offset_delta + 1
        os.pwrite(self.descriptor, out, self.size)
        self.size += len(out)
        return base

    def read(self, offset: int, limit: int) -> Range | None:
        if offset >= self.end:
            return None
        start = self.positions[bisect.bisect_right(self.offsets, offset) - 1]
        stop = bisect.bisect_right(self.positions, start + limit) - 1
        until = self.size if self.size - start <= limit else self.positions[stop]
        return Range(self.descriptor, start, until - start)


class BareServer:
    """Accepts, and serves each connection in a thread of its own."""

    def __init__(self, directory: Path, partitions: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.partitions = [Partition(directory / f"{i}.log") for i in range(partitions)]
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

    def serve(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        with connection:
            while head := _receive(connection, 4):
                frame = _receive(connection, int.from_bytes(head, "big"))
                asked = read_head(frame)
                if asked.key == ApiKey.API_VERSIONS and asked.version > 3:
                    request = Request(ApiKey.API_VERSIONS, 0, asked.correlation_id, None, None, 0)
                else:
                    request = asked.decode()
                self._answer(connection, request)

    def _answer(self, connection: socket.socket, request: Request) -> None:
        if request.api is ApiKey.FETCH:
            for part in self._fetch(request):
                if isinstance(part, bytes):
                    connection.sendall(part)
                else:
                    sent = 0
                    while sent < part.length:
                        offset, left = part.position + sent, part.length - sent
                        sent += os.sendfile(connection.fileno(), part.descriptor, offset, left)
            return
        body = getattr(self, f"_{request.api.name.lower()}")(request)
        if body is not None:
            connection.sendall(encode_response(request, body))

    def _api_versions(self, request: Request) -> dict[str, Any]:
        error = ErrorCode.none if request.body is not None else ErrorCode.unsupported_version
        keys = [{"api_key": int(k), "min_version": lo, "max_version": hi} for k, (lo, hi) in VERSIONS.items()]
        return {"error_code": error, "api_keys": keys}

    def _metadata(self, request: Request) -> dict[str, Any]:
        partitions = [
            {"partition_index": i, "leader_id": 0, "replica_nodes": [0], "isr_nodes": [0]}
            for i in range(len(self.partitions))
        ]
        return {
            "brokers": [{"node_id": 0, "host": "127.0.0.1", "port": self.port}],
            "controller_id": 0,
            "topics": [{"name": TOPIC, "partitions": partitions}],
        }

    def _produce(self, request: Request) -> dict[str, Any] | None:
        responses = [
            {
                "name": topic.name,
                "partition_responses": [
                    {
                        "index": data.index,
                        "base_offset": self.partitions[data.index].append(data.records),
                        "log_append_time": -1,
                    }
                    for data in topic.partition_data
                ],
            }
            for topic in request.body.topic_data
        ]
        return {"responses": responses} if request.body.acks else None

    def _list_offsets(self, request: Request) -> dict[str, Any]:
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": p.partition_index,
                            "offset": self.partitions[p.partition_index].end if p.timestamp == -1 else 0,
                        }
                        for p in topic.partitions
                    ],
                }
                for topic in request.body.topics
            ]
        }

    def _fetch(self, request: Request) -> list[Any]:
        topics = []
        for topic in request.body.topics:
            answers = []
            for asked in topic.partitions:
                held = self.partitions[asked.partition]
                found = held.read(asked.fetch_offset, asked.partition_max_bytes)
                answers.append(PartitionAnswer(asked.partition, 0, held.end, held.end, 0, None, found))
            topics.append(TopicAnswer(topic.topic, None, answers))  # type: ignore[arg-type]
        return encode_fetch_response(request.version, request.correlation_id, topics)


def _receive(connection: socket.socket, length: int) -> bytearray:
    frame = bytearray(length)
    view, filled = memoryview(frame), 0
    while filled < length:
        count = connection.recv_into(view[filled:])
        if count == 0:
            return bytearray()
        filled += count
    return frame


if __name__ == "__main__":
    keep_freed_memory(KEPT_BYTES)  # a ceiling has every advantage of ours
    server = BareServer(Path(sys.argv[1]), int(sys.argv[2]))
    print(server.port, flush=True)
    server.serve()
