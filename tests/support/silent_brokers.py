"""Brokers on real sockets that fall silent when a test says so: the connection stays, and no byte comes any more.

They answer what a client asks before it writes or reads, and count what was produced. Partition `n` of the topic `t` is
led by `leaders[n]`. Whether a broker is in the cluster is what the others say (`alive`), as a session of ZooKeeper says
it some seconds after a host has vanished.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Final, Self

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_request, encode_response
from broker.records.batch import parse_header
from tests.support.tcp_peer import read_frame

TOPIC: Final = "t"
_ANY: Final = [{"api_key": int(api), "min_version": 0, "max_version": 99} for api in ApiKey]
_ANSWERED_BY_SLOW: Final = (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR)
_TOPIC_ID: Final = uuid.UUID(int=7)


class SilentBrokers:
    """`count` brokers with the ids 1, 2, …"""

    def __init__(self, count: int, leaders: Mapping[int, int]) -> None:
        self.leaders = dict(leaders)
        self.epoch = 0
        self.alive = set(range(1, count + 1))
        self.silent: set[int] = set()
        """They answer nothing, also no handshake."""
        self.slow: set[int] = set()
        """They answer nothing but handshakes, and who does what."""
        self.asked: list[tuple[int, ApiKey]] = []
        """Who got which request, in order, whether it was answered or not."""
        self.produced: list[tuple[int, int, int]] = []
        """Broker, partition and base sequence of each batch that came."""
        self.coordinator = 1
        self._listeners = {id_: socket.create_server(("127.0.0.1", 0)) for id_ in self.alive}
        self.ports: dict[int, int] = {id_: one.getsockname()[1] for id_, one in self._listeners.items()}
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def vanish(self, id_: int, successor: int) -> None:
        """The host of a broker has vanished, and the others have noticed."""
        self.silent.add(id_)
        self.bury(id_, successor)

    def bury(self, id_: int, successor: int) -> None:
        """The others say that it is gone, and who leads its partitions now."""
        self.epoch += 1
        self.leaders = {partition: successor if old == id_ else old for partition, old in self.leaders.items()}
        self.alive.discard(id_)

    def __enter__(self) -> Self:
        for id_ in self._listeners:
            self._start(self._accept, id_)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (*self._listeners.values(), *self._open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
        for thread in self._threads:
            thread.join(60)

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, id_: int) -> None:
        while True:
            try:
                sock, _ = self._listeners[id_].accept()
            except OSError:
                return
            self._open.append(sock)
            self._start(self._serve, id_, sock)

    def _serve(self, id_: int, sock: socket.socket) -> None:
        try:
            while True:
                request = decode_request(read_frame(sock))
                api, body = request.api, request.body
                self.asked.append((id_, api))
                if id_ in self.silent:
                    continue
                if api is ApiKey.PRODUCE:
                    self._note(id_, body)
                if id_ in self.slow and api not in _ANSWERED_BY_SLOW:
                    continue
                sock.sendall(encode_response(request, self._answer(id_, api, body)))
        except OSError:
            sock.close()

    def _note(self, id_: int, body: Any) -> None:
        for topic in body.topic_data:
            for row in topic.partition_data:
                self.produced.append((id_, int(row.index), parse_header(row.records).base_sequence))

    def _answer(self, id_: int, api: ApiKey, body: Any) -> dict[str, Any]:
        if api is ApiKey.API_VERSIONS:
            return {"api_keys": _ANY}
        if api is ApiKey.METADATA:
            return self._metadata()
        if api is ApiKey.INIT_PRODUCER_ID:
            return {"producer_id": 17, "producer_epoch": 0}
        if api is ApiKey.FIND_COORDINATOR:
            return {"node_id": self.coordinator, "host": "127.0.0.1", "port": self.ports[self.coordinator]}
        if api is ApiKey.PRODUCE:
            return {"responses": [self._written(id_, topic) for topic in body.topic_data]}
        if api is ApiKey.FETCH:
            return {"responses": [self._read(topic) for topic in body.topics]}
        if api is ApiKey.LIST_OFFSETS:
            return {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}]}
        if api is ApiKey.OFFSET_FOR_LEADER_EPOCH:
            end = {"partition": 0, "end_offset": 5, "leader_epoch": self.epoch}
            return {"topics": [{"topic": TOPIC, "partitions": [end]}]}
        return {}

    def _written(self, id_: int, topic: Any) -> dict[str, Any]:
        rows = [
            {"index": row.index, "base_offset": 0}
            | ({} if self.leaders[row.index] == id_ else {"error_code": ErrorCode.not_leader_or_follower})
            for row in topic.partition_data
        ]
        return {"name": topic.name, "partition_responses": rows}

    def _read(self, topic: Any) -> dict[str, Any]:
        rows = [
            {"partition_index": row.partition, "high_watermark": 5, "last_stable_offset": 5, "records": b""}
            for row in topic.partitions
        ]
        return {"topic_id": topic.topic_id, "partitions": rows}

    def _metadata(self) -> dict[str, Any]:
        partitions = [
            {
                "partition_index": partition,
                "leader_id": leader,
                "leader_epoch": self.epoch,
                "replica_nodes": list(self.ports),
                "isr_nodes": list(self.alive),
            }
            for partition, leader in self.leaders.items()
        ]
        return {
            "brokers": [{"node_id": id_, "host": "127.0.0.1", "port": self.ports[id_]} for id_ in sorted(self.alive)],
            "cluster_id": "c",
            "controller_id": min(self.alive),
            "topics": [{"name": TOPIC, "topic_id": _TOPIC_ID, "partitions": partitions}],
        }
