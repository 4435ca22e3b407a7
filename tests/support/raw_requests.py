"""Requests in a chosen version, field by field, for tests that look at what a broker answers on the wire."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self

from broker.api.table import API_TABLE
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response, encode_request, field
from broker.records.builder import BatchBuilder
from broker.records.record import Record, decode_records

NO_ID = uuid.UUID(int=0)
LATEST, EARLIEST = -1, -2


SERVED = {api: (low, high) for api, low, high, *_ in API_TABLE}
FIRST_WITH_TOPIC_IDS = {ApiKey.PRODUCE: 13, ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10}
"""Without names of topics from there on."""


def versions(api: ApiKey) -> range:
    """Every version the broker serves."""
    low, high = SERVED[api]
    return range(low, high + 1)


def newest_by_name(api: ApiKey) -> int:
    """The highest version that is served and in which topics are called by their names."""
    high = SERVED[api][1]
    return min(high, FIRST_WITH_TOPIC_IDS.get(api, high + 1) - 1)


class Requests:
    """A socket to a broker and the requests that most tests make, in any version; without one, in `newest_by_name`."""

    def __init__(self, bootstrap: str, timeout_s: float = 30.0, client_id: str = "tests") -> None:
        self._client_id = client_id
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._sent = 0
        self._ids: dict[str, uuid.UUID] = {}
        """Of topics that were made or named."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, api: ApiKey, body: Mapping[str, Any], version: int | None = None) -> None:
        """Only send; `receive` takes the answer."""
        self._sent += 1
        version = newest_by_name(api) if version is None else version
        self.socket.sendall(encode_request(api, version, self._sent, self._client_id, body))

    def receive(self, api: ApiKey, version: int | None = None) -> Any:
        """The oldest answer not yet taken. Raises ConnectionError when the broker hung up."""
        (length,) = struct.unpack(">i", self.read(4))
        return decode_response(api, newest_by_name(api) if version is None else version, self.read(length))[1]

    def read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("the broker hung up")
            data += piece
        return bytes(data)

    def is_hung_up(self) -> bool:
        """Whether the broker closes the connection (waits for it), with nothing more to say."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def ask(self, api: ApiKey, body: Mapping[str, Any], version: int | None = None) -> Any:
        """The decoded body of the answer."""
        self.send(api, body, version)
        return self.receive(api, version)

    # --- topics

    def create_topics(self, *topics: Mapping[str, Any], validate_only: bool = False, version: int | None = None) -> Any:
        defaults = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        body = {
            "topics": [{**defaults, **topic} for topic in topics],
            "timeout": 30_000,
            "validate_only": validate_only,
        }
        return self.ask(ApiKey.CREATE_TOPICS, body, version).topics

    def create(self, name: str, partitions: int = 1, **config: str) -> uuid.UUID:
        """A topic; config keys with `_` for `.`; gives its id."""
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        (made,) = self.create_topics({"name": name, "num_partitions": partitions, "configs": configs})
        assert made.error_code is ErrorCode.none, made
        self._ids[name] = uuid.UUID(bytes=made.topic_id.bytes)
        return self._ids[name]

    def named(self, topic: str) -> dict[str, Any]:
        """A topic by its name and by its id, for a request in any version."""
        if topic not in self._ids:
            (known,) = self.metadata(topic, version=12).topics
            self._ids[topic] = known.topic_id or NO_ID
        return {"name": topic, "topic_id": self._ids[topic]}

    def name_of(self, topic: Any) -> str:
        """The name of a topic in an answer."""
        name: str | None = field(topic, "name")
        return name if name is not None else next(name for name, id_ in self._ids.items() if id_ == topic.topic_id)

    def delete(self, name: str) -> ErrorCode:
        body = {"topics": [{"name": name, "topic_id": NO_ID}], "topic_names": [name], "timeout": 30_000}
        return ErrorCode(self.ask(ApiKey.DELETE_TOPICS, body).responses[0].error_code)

    def metadata(self, *names: str, version: int | None = None, create: bool = False) -> Any:
        body = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": create}
        return self.ask(ApiKey.METADATA, body, version)

    # --- records

    def produce(
        self,
        records: Mapping[tuple[str, int], bytes | None],
        *,
        acks: int = -1,
        version: int | None = None,
        transactional_id: str | None = None,
    ) -> dict[tuple[str, int], Any]:
        """(topic, partition) → the partition's response."""
        by_id = version is not None and version >= FIRST_WITH_TOPIC_IDS[ApiKey.PRODUCE]
        rows = [
            {**(self.named(name) if by_id else {"name": name}), "partition_data": [{"index": index, "records": data}]}
            for (name, index), data in records.items()
        ]
        body = {"transactional_id": transactional_id, "acks": acks, "timeout": 30_000, "topic_data": rows}
        answer = self.ask(ApiKey.PRODUCE, body, version)
        return {(self.name_of(topic), p.index): p for topic in answer.responses for p in topic.partition_responses}

    def put(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """Produce the values as one batch; gives its base offset."""
        response = self.produce({(topic, partition): batch(*values)})[topic, partition]
        assert response.error_code is ErrorCode.none, response
        return int(response.base_offset)

    def list_offset(self, topic: str, timestamp: int, partition: int = 0, version: int | None = None) -> Any:
        asked = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}], "timeout": 1000}
        return self.ask(ApiKey.LIST_OFFSETS, body, version).topics[0].partitions[0]

    def fetch(self, wanted: Sequence[Mapping[str, Any]], *, version: int | None = None, **body: Any) -> list[Any]:
        """The answer of each partition asked for by `ask_for`, in order."""
        answer = self.ask(ApiKey.FETCH, fetch_body(wanted, **body), version)
        return [partition for topic in answer.responses for partition in topic.partitions]

    def values(self, topic: str, offset: int = 0, partition: int = 0) -> list[bytes | None]:
        """All values from an offset on, as one fetch gives them."""
        (found,) = self.fetch([ask_for(topic, offset, partition)], version=12)
        assert found.error_code is ErrorCode.none, found
        return [record.value for record in records_of(found) if record.offset >= offset]


def ask_for(
    topic: str | uuid.UUID, offset: int = 0, partition: int = 0, *, epoch: int = -1, max_bytes: int = 1 << 20
) -> dict[str, Any]:
    """One topic with one partition of a Fetch request; by id when the topic is given by its id."""
    names = {"topic_id": topic} if isinstance(topic, uuid.UUID) else {"topic": topic}
    asked = {
        "partition": partition,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    return {**names, "partitions": [asked]}


def fetch_body(
    wanted: Sequence[Mapping[str, Any]],
    *,
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    session_id: int = 0,
    session_epoch: int = -1,
    isolation_level: int = 0,
) -> dict[str, Any]:
    """A Fetch request; times in ms."""
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": wanted,
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def batch(*values: bytes, timestamp: int = 1_700_000_000_000, **producer: int) -> bytes:
    """One record batch; `producer_id`, `producer_epoch`, `base_sequence` make it an idempotent producer's."""
    builder = BatchBuilder(max_bytes=1 << 30, **producer)  # type: ignore[arg-type]
    for value in values:
        builder.append(timestamp, None, value)
    return builder.build()


def records_of(partition: Any) -> list[Record]:
    """The records of one partition of a Fetch answer."""
    return list(decode_records(partition.records or b""))
