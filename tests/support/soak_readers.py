"""The consumers of the soak test, and those who come and go.

Run by soak_load.py, one thread each. `GroupReader` and `Copier` stay and must keep up; a `Visitor` does one of the
things that leave something behind in a broker that forgets to clear up: connects and hangs up, joins and leaves,
takes a new transactional id and dies with a transaction open, makes and deletes a topic, asks for more than it reads.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from broker.protocol.api_keys import ApiKey
from tests.support.raw_requests import LATEST, Requests, ask_for, fetch_body

RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close() resets the connection
ABANDONED_TIMEOUT_MS = 2_000
SHARE = 2  # partitions of each reader, once all have joined
BEHIND = 20_000  # records a slow reader is behind the end, some 20 MB
VISITORS = "visitors-"
"""Groups of this prefix are gone once they have been here; nobody waits for their lag."""
TRIED_AGAIN = {KafkaError._PARTITION_EOF, KafkaError._MAX_POLL_EXCEEDED, KafkaError.UNKNOWN_TOPIC_OR_PART}


def _consumer(bootstrap: str, group: str, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1_000,
            "session.timeout.ms": 10_000,
            "queued.max.messages.kbytes": 16_384,
            **settings,
        }
    )


def _sets(joined: threading.Event) -> Callable[[Consumer, Sequence[TopicPartition]], None]:
    """Set it when the reader's share is assigned: the first to join a group has all at first, and loses half."""
    return lambda _, assigned: joined.set() if len(assigned) == SHARE else None


class GroupReader:
    """A member of a group that only counts; commits by itself."""

    def __init__(
        self, name: str, bootstrap: str, topic: str, group: str, ending: threading.Event, **settings: object
    ) -> None:
        self.name = name
        self.read = 0
        self.failures: list[str] = []
        self.joined = threading.Event()
        self._ending = ending
        self._consumer = _consumer(bootstrap, group, **settings)
        self._consumer.subscribe([topic], on_assign=_sets(self.joined))

    def run(self) -> None:
        while not self._ending.is_set():
            for message in self._consumer.consume(1000, timeout=0.2):
                error = message.error()
                if error is None:
                    self.read += 1
                elif error.code() not in TRIED_AGAIN:
                    self.failures.append(str(error))
        self._consumer.close()


LOST_MEMBERSHIP = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}
"""A client that did not get to send a heartbeat for a whole session has left its group, and commits nothing."""


class Copier:
    """Reads committed records and writes them once more, with its offsets in the same transaction.

    When the group has lost it, it aborts, as Kafka asks its users to, and joins again where the group has committed.
    """

    def __init__(self, name: str, bootstrap: str, source: str, target: str, ending: threading.Event) -> None:
        self.name = name
        self.read = 0
        self.failures: list[str] = []
        self.joined = threading.Event()
        self._target = target
        self._ending = ending
        self._consumer = _consumer(
            bootstrap, name, **{"isolation.level": "read_committed", "enable.auto.commit": False}
        )
        self._consumer.subscribe([source], on_assign=_sets(self.joined))
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "transactional.id": name})
        self._committed: list[int] = []

    def run(self) -> None:
        self._producer.init_transactions(30)
        while not self._ending.is_set():
            self._copy()
        self._consumer.close()

    def _copy(self) -> None:
        messages = [m for m in self._consumer.consume(2000, timeout=0.2) if m.error() is None]
        offsets = self._consumer.position(self._consumer.assignment())
        positions = [each.offset for each in offsets]
        if positions == self._committed or max(positions, default=OFFSET_INVALID) == OFFSET_INVALID:
            return  # an aborted transaction is nothing to copy, but moves the position all the same
        try:
            self._producer.begin_transaction()
            for message in messages:
                self._producer.produce(self._target, message.value(), message.key())
            group = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(offsets, group, 30)
            self._producer.commit_transaction(30)
            self._committed = positions
            self.read += len(messages)
        except KafkaException as failure:
            if failure.args[0].code() not in LOST_MEMBERSHIP:
                self.failures.append(str(failure))
            self._producer.abort_transaction(30)


class Visitors:
    """Threads' work for those that come and go; `visits` counts them by kind."""

    def __init__(self, bootstrap: str, busy_topic: str, transactional_topic: str, ending: threading.Event) -> None:
        self.visits: dict[str, int] = {}
        self._servers = bootstrap
        self._busy_topic = busy_topic
        self._transactional_topic = transactional_topic
        self._ending = ending
        self.kinds: dict[str, tuple[Callable[[int], None], float]] = {
            "connections": (self._connect, 0.2),
            "members": (self._join, 4.0),
            "transactions": (self._abandon, 2.0),
            "topics": (self._topic, 3.0),
            "slow": (self._read_slowly, 1.0),
        }
        """What each kind does on its nth visit, and the seconds between two."""

    def run(self, kind: str) -> None:
        visit, pause_s = self.kinds[kind]
        for number in itertools.count():
            if self._ending.wait(pause_s):
                return
            visit(number)
            self.visits[kind] = number + 1

    def _connect(self, number: int) -> None:
        """Every third one hangs up with a reset, every fifth in the middle of a frame."""
        with Requests(self._servers) as ask:
            ask.ask(ApiKey.API_VERSIONS, {"client_software_name": "soak", "client_software_version": "1"})
            ask.metadata(self._busy_topic)
            if number % 5 == 0:
                ask.socket.sendall(struct.pack(">ih", 1000, 3))
            if number % 3 == 0:
                ask.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _join(self, number: int) -> None:
        """Even ones join those that read the transactional topic, odd ones are a new group each."""
        group = "committed" if number % 2 == 0 else f"{VISITORS}{number}"
        topic = self._transactional_topic if number % 2 == 0 else self._busy_topic
        consumer = _consumer(
            self._servers, group, **{"auto.offset.reset": "latest", "isolation.level": "read_committed"}
        )
        consumer.subscribe([topic])
        for _ in range(10):
            consumer.consume(1000, timeout=0.2)
        consumer.close()

    def _abandon(self, number: int) -> None:
        """A transactional id of its own; every second one dies with its transaction open."""
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "log_level": 0,
                "transactional.id": f"visitor-{number}",
                "transaction.timeout.ms": ABANDONED_TIMEOUT_MS,
                "message.timeout.ms": ABANDONED_TIMEOUT_MS,
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(self._transactional_topic, b"never to be seen")
        producer.flush(10)
        if number % 2 == 0:
            producer.abort_transaction(30)

    def _topic(self, number: int) -> None:
        with Requests(self._servers) as ask:
            name = f"visitor-{number}"
            ask.create(name, 2)
            for partition in range(2):
                ask.put(name, b"a", b"b", partition=partition)
            ask.delete(name)

    def _read_slowly(self, _: int) -> None:
        """Asks for far more than it takes off the socket, and hangs up in the middle."""
        with Requests(self._servers) as ask:
            ask.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
            # Not from the very start: retention may be quicker than the fetch.
            start = max(ask.list_offset(self._busy_topic, LATEST).offset - BEHIND, 0)
            wanted = fetch_body([ask_for(self._busy_topic, start, max_bytes=50_000_000)], max_bytes=50_000_000)
            for _ in range(5):
                ask.send(ApiKey.FETCH, wanted, 12)
            for _ in range(20):
                ask.socket.recv(1024)
                if self._ending.wait(0.1):
                    return
