"""A client's view of a cluster: which broker leads which partition, how to reach it, and when to ask again.

Offsets, fetchers, producers and consumers are all given a `Cluster`. It caches metadata, which it renews after errors
and after `metadata.max.age.ms`, and shares connections, at most one per broker. `retrying()` is the one place that
retries retriable errors.

Thread-safe. It holds sockets, so it can neither be pickled nor shared with a forked child: send `cluster.settings`
and make a new one there.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from broker.client.auto_closeable import AutoCloseable
from broker.client.broker_connection import OVERDUE_S, BrokerConnection
from broker.client.client_settings import ClientSettings, parse_bootstrap
from broker.client.cluster_metadata import (
    CoordinatorKind,
    Metadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
    UnknownTopic,
    parse_metadata,
)
from broker.client.denials import check, refusal
from broker.client.node_pool import NodePool
from broker.client.read_replicas import ReadReplicas
from broker.errors import (
    BrokerError,
    ConnectionFailed,
    ErrorCode,
    PykafkaError,
    RequestTimedOut,
)
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_names import check_topic_name
from broker.protocol.topic_partition import TopicPartition

T = TypeVar("T")

Address = tuple[str, int]

logger = logging.getLogger(__name__)

_WARN_AFTER_S: Final = 1.0
_WARN_EVERY_S: Final = 10.0
_AVOID_S: Final = 30.0
"""How long other brokers are asked first after a connection failed: on a dead machine each attempt takes seconds."""
_LOOKS_FOR_A_TOPIC: Final = 3
"""How many brokers are asked about an unknown topic or partition: some may not have heard of it yet."""
_LOOKS_S: Final = 5.0
"""So long those are waited for that connect slowly, while others say that they do not know it."""


class Outage:
    """Brokers do not answer since `since` (monotonic seconds): warns after a second, then every ten seconds."""

    def __init__(self, since: float) -> None:
        self._warn_at = since + _WARN_AFTER_S

    def failed(self, error: PykafkaError) -> None:
        """An attempt failed, and another one will follow."""
        now = time.monotonic()
        if isinstance(error, ConnectionFailed) and now > self._warn_at:
            logger.warning("%s; trying again", error)
            self._warn_at = now + _WARN_EVERY_S


class Cluster(AutoCloseable):
    """A client's view of one cluster. It connects at the first request."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Mapping[str, Any] | ClientSettings,
        properties: Mapping[str, Any] | None = None,
        *,
        create_topics: bool | None = None,
        first_contact_s: float | None = None,
    ) -> None:
        """`bootstrap`: "host:port,…", a list, or properties or settings with `bootstrap.servers`.

        `create_topics` (True for producers) overrides `allow.auto.create.topics`. Calls to a cluster that was never
        reached fail soon, because its address may be mistyped: after `first_contact_s` seconds, by default
        `socket.connection.setup.timeout.ms`. Raises ConfigError.
        """
        self.settings = settings = ClientSettings.of(bootstrap, properties)
        self._create_topics = settings.allow_auto_create_topics if create_topics is None else create_topics
        setup_s = settings.socket_connection_setup_timeout_ms / 1000
        self._first_contact_s = setup_s if first_contact_s is None else first_contact_s
        self._pool = NodePool(parse_bootstrap(settings.bootstrap_servers), settings)
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._thread = threading.local()
        self._metadata = Metadata()
        self._asked: set[str] = set()
        self._expires = 0.0
        self._metadata_source: Address | None = None
        """The broker that sent the metadata."""
        self._invalidated: dict[Address, float] = {}
        """When the metadata of a broker was last found wrong; in the future for a broker that did not answer."""
        self._unconnected: dict[Address, float] = {}
        """The same of one that failed to connect, or took so long that another one was asked; until it connects."""
        self._metadata_patience_s = 2 * OVERDUE_S
        """So long one of several brokers may take to answer a request for metadata. Then another one is asked."""
        self._coordinators: dict[tuple[CoordinatorKind, str], Node] = {}
        self.read_replicas = ReadReplicas(settings.client_rack, settings.metadata_max_age_ms / 1000)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Cluster holds sockets: pickle cluster.settings and make a new one from it")

    def close(self) -> None:
        """Close the shared connections; calls that are waiting fail. May be called again."""
        self._closing.set()
        self._pool.close()

    # --- metadata -------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicMetadata]:
        """All topics by name, internal ones included; always asks the cluster."""

        def ask() -> dict[str, TopicMetadata]:
            with self._lock:
                self._refresh(None)
                return dict(self._metadata.topics)

        return self.retrying(ask)

    def topic(self, name: str, accept: Callable[[TopicMetadata], bool] | None = None) -> TopicMetadata:
        """One topic. Raises UnknownTopic (a BrokerError) when there is no topic with that name.

        When `accept(topic)` is False, the broker may not have heard of a change yet: other brokers are asked, and the
        last answer is returned in any case.
        """
        return self.retrying(lambda: self._find_topic(name, accept))

    def partitions(self, topic: str) -> list[int]:
        """Partition indexes, ascending. Raises UnknownTopic."""
        return list(self.topic(topic).partitions)

    def brokers(self) -> list[Node]:
        """The live brokers, by id."""
        return self.retrying(lambda: sorted(self._current().brokers.values()))

    def cluster_id(self) -> str | None:
        return self.retrying(lambda: self._current().cluster_id)

    def controller(self) -> Node:
        """The broker that creates and deletes topics. Raises BrokerError when there is no controller."""
        return self.retrying(lambda: self._node(self._current().controller_id, "the controller"))

    def controller_id(self) -> int:
        """The controller as the brokers know it, -1 while there is none. Brokers of KRaft name any broker."""
        return self.retrying(lambda: self._current().controller_id)

    def leader(self, tp: TopicPartition) -> Node:
        """The broker that leads `tp`. Raises UnknownTopic; BrokerError `leader_not_available` after retries."""
        known = None if self.stale else self.known_leader(tp)
        return known or self.retrying(lambda: self._node(self._find_partition(tp).leader, f"the leader of {tp}"))

    def read_replica(self, tp: TopicPartition) -> Node:
        """The broker to read `tp` from: the replica that its leader named, or the leader. Raises as `leader` does."""
        broker_id = self.read_replicas.get(tp)
        if broker_id is None:
            return self.leader(tp)
        node = self._metadata.brokers.get(broker_id)
        if node is None:
            self.read_replicas.fall_back(tp)
        return node or self.leader(tp)

    def by_leader(self, partitions: Collection[TopicPartition]) -> dict[Node, dict[TopicPartition, int]]:
        """The partitions of each leader, with their leader epochs. Raises as `leader` does."""
        return self.retrying(lambda: self._by_leader(partitions))

    def leader_epoch(self, tp: TopicPartition) -> int:
        """The leader epoch of `tp`; -1 from brokers that are too old to tell."""
        return self.retrying(lambda: self._find_partition(tp).leader_epoch)

    def coordinator(self, name: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> Node:
        """The coordinator of a group or transactional id, cached until `forget_coordinator`."""
        return self.retrying(lambda: self._find_coordinator(name, kind))

    def known_leader(self, tp: TopicPartition) -> Node | None:
        """The leader according to the cached metadata, for threads that must not wait."""
        metadata = self._metadata
        topic = metadata.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic else None
        return metadata.brokers.get(partition.leader) if partition else None

    def known_leaders(self, partitions: Iterable[TopicPartition]) -> dict[Node, list[TopicPartition]]:
        """The partitions of each leader, by the cached metadata; those without a leader are left out."""
        found: dict[Node, list[TopicPartition]] = {}
        for tp in partitions:
            node = self.known_leader(tp)
            if node is not None:
                found.setdefault(node, []).append(tp)
        return found

    def known_partitions(self, topic: str) -> int:
        """The number of partitions according to the cached metadata; 0 if unknown."""
        found = self._metadata.topics.get(topic)
        return len(found.partitions) if found else 0

    # --- connections -----------------------------------------------------------------------

    def connection(self, node: Node) -> BrokerConnection:
        """The shared connection to a broker, for `request()` only."""
        return self._pool.get(node)

    def known_connection(self, node: Node) -> BrokerConnection | None:
        """The shared connection if it is open, for those that must not wait."""
        return self._pool.known(node)

    def open_connection(self, node: Node) -> BrokerConnection:
        """A new connection for the caller, who may pipeline on it and must close it."""
        return self._pool.open(node.host, node.port)

    def check(self, node: Node) -> None:
        """Raise ConnectionFailed if a broker that owes an answer has left the cluster, as another one says.

        May take two seconds. Connections of this cluster do so themselves while they wait for an answer.
        """
        self._pool.live.check(node.host, node.port)

    def check_leader(self, node: Node, partitions: Iterable[TopicPartition]) -> None:
        """As `check`, for a broker that leads `partitions`: also if other brokers lead all of them now.

        Renews the metadata in one attempt, from another broker.
        """
        self.check(node)
        self.doubt(node)
        with contextlib.suppress(PykafkaError):
            self.renew()
        if all(self.known_leader(tp) not in (None, node) for tp in partitions):
            raise ConnectionFailed(f"{node} has not answered, and other brokers lead its partitions now")

    def any_connection(self) -> BrokerConnection:
        """A connection to any broker. ConnectionFailed lists why each bootstrap address failed."""
        return self.retrying(self._any_connection)

    # --- renewal and retries ---------------------------------------------------------------------

    def invalidate(self) -> None:
        """The metadata is wrong: the next call asks another broker for it.

        As long as a broker's metadata is right, the same broker is asked, since the answers of one broker never go back
        in time. (Java's client asks the broker with the fewest requests in flight.)
        """
        if self._metadata_source is not None:
            self._invalidated[self._metadata_source] = time.monotonic()
        self.expire()

    def doubt(self, node: Node) -> None:
        """A broker owes an answer: the next call asks another one for metadata, since there may be new leaders."""
        self._invalidated[node.host, node.port] = time.monotonic() + _AVOID_S
        self.expire()

    def expire(self) -> None:
        """The metadata may be old: the next call asks the cluster."""
        self._expires = 0.0

    def include(self, topics: Iterable[str]) -> None:
        """Ask about all of `topics` in the next request. One by one, each request would repeat the topics before."""
        with self._lock:
            unknown = set(topics) - self._asked - self._metadata.topics.keys()
            if unknown:
                self._asked |= unknown
                self.expire()

    @property
    def reached(self) -> bool:
        """Whether the cluster was ever reached."""
        return bool(self._metadata.brokers)

    @property
    def stale(self) -> bool:
        """Whether the next call asks the cluster."""
        return time.monotonic() >= self._expires

    def renew(self) -> None:
        """Renew stale metadata in one attempt, and raise its error."""
        self.retrying(self._current, timeout_s=0)

    def reach(self) -> None:
        """Try once to reach a cluster that was never reached, and raise the error."""
        if not self.reached:
            self.renew()

    def forget_coordinator(self, name: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> None:
        """Find the coordinator again next time: this broker did not answer, or is not the coordinator."""
        self._coordinators.pop((kind, name), None)

    def retrying(self, attempt: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Call `attempt()` until it succeeds or fails with an error that is not retriable.

        Between attempts it invalidates the metadata and waits `retry.backoff.ms`, doubling to `retry.backoff.max.ms`.
        The last error is raised after `retries` or `timeout_s` (`default.api.timeout.ms`), or after `first_contact_s`
        if no broker was ever reached. Inside another `retrying` of the same thread it tries once, and the outer call
        retries.
        """
        if getattr(self._thread, "retrying", False):
            return attempt()
        settings = self.settings
        started = time.monotonic()
        limit_s = settings.default_api_timeout_ms / 1000 if timeout_s is None else timeout_s
        failures = 0
        outage: Outage | None = None
        self._thread.retrying = True
        try:
            while True:
                try:
                    return attempt()
                except PykafkaError as error:
                    failures += 1
                    if not self.reached:
                        limit_s = min(limit_s, self._first_contact_s)
                    wait_s = self.backoff_s(failures)
                    out_of_time = time.monotonic() + wait_s - started > limit_s
                    if not error.retriable or out_of_time or failures > settings.retries:
                        raise
                    outage = outage or Outage(started)
                    outage.failed(error)
                    self.invalidate()
                    if self._closing.wait(wait_s):
                        raise
        finally:
            self._thread.retrying = False

    def backoff_s(self, failures: int) -> float:
        """Seconds to wait after `failures` (at least 1) in a row: exponential, with 20 % of jitter (KIP-580)."""
        return _backoff_s(failures, self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)

    def reconnect_backoff_s(self, failures: int) -> float:
        """Seconds to wait before the next connection to a broker after `failures` in a row, at least 1 (KIP-144)."""
        return _backoff_s(failures, self.settings.reconnect_backoff_ms, self.settings.reconnect_backoff_max_ms)

    # --- one attempt each ----------------------------------------------------------------------

    def _current(self, topic: str | None = None) -> Metadata:
        """Metadata that is not stale and covers `topic`."""
        with self._lock:
            known = topic is None or topic in self._asked or topic in self._metadata.topics
            if topic is not None:
                self._asked.add(topic)
            if not known or time.monotonic() >= self._expires:
                self._refresh(self._asked)
            return self._metadata

    def _refresh(self, topics: Iterable[str] | None) -> None:
        """Ask about `topics`, or about all topics. The caller holds the lock."""
        connection = self._any_connection()
        self._metadata_source = connection.host, connection.port
        body = {
            "topics": None if topics is None else [{"name": name} for name in sorted(topics)],
            "allow_auto_topic_creation": self._create_topics and topics is not None,
        }
        answer = parse_metadata(self._ask_for_metadata(connection, body))
        if not answer.brokers:
            raise BrokerError(ErrorCode.broker_not_available, f"{connection.address} knows no broker")
        self._metadata = self._metadata.updated(answer, topics)
        self._expires = time.monotonic() + self.settings.metadata_max_age_ms / 1000
        self._pool.adopt_bootstrap(answer.brokers.values())
        self._pool.live.learn(answer.brokers.values())

    def _ask_for_metadata(self, connection: BrokerConnection, body: Mapping[str, Any]) -> Any:
        """The answer of one broker, if it does not take longer than it should where another one could be asked."""
        longest_s = self.settings.request_timeout_ms / 1000
        patience_s = min(self._metadata_patience_s, longest_s) if len(self._metadata.brokers) > 1 else longest_s
        started = time.monotonic()
        try:
            answer = connection.request(ApiKey.METADATA, body, timeout_s=patience_s)
        except (ConnectionFailed, RequestTimedOut) as error:
            self._invalidated[connection.host, connection.port] = time.monotonic() + _AVOID_S
            if isinstance(error, RequestTimedOut):
                self._metadata_patience_s = 2 * patience_s  # where all are slow, one of them must be waited for
            raise
        self._metadata_patience_s = max(2 * OVERDUE_S, 4 * (time.monotonic() - started))
        return answer

    def _any_connection(self) -> BrokerConnection:
        """Prefers brokers whose metadata was never wrong, or was wrong longest ago.

        Of equal brokers it prefers the one that was asked last, then those with a connection.
        """

        def rank(node: Node) -> tuple[bool, float, bool, bool]:
            address = node.host, node.port
            connects = not self._pool.has(node)
            late = self._unconnected.get(address, 0.0) if connects else 0.0
            doubted = max(self._invalidated.get(address, 0.0), late)
            return address in gone, doubted, address != self._metadata_source, connects

        gone = self._pool.live.gone
        nodes = list(self._metadata.brokers.values())
        random.shuffle(nodes)
        nodes.sort(key=rank)
        found = self._pool.first_of(nodes)
        for node in nodes:  # those before it failed, or were not waited for
            if found is not None and (node.host, node.port) == (found.host, found.port):
                break
            self._unconnected[node.host, node.port] = time.monotonic() + _AVOID_S
        return found or self._pool.bootstrap()

    def _find_topic(self, name: str, accept: Callable[[TopicMetadata], bool] | None = None) -> TopicMetadata:
        found = None
        heard: set[Address | None] = set()
        until, look = time.monotonic() + min(_LOOKS_S, self.settings.default_api_timeout_ms / 1000), 0
        while look < _LOOKS_FOR_A_TOPIC or (
            len(heard) < min(_LOOKS_FOR_A_TOPIC, len(self._metadata.brokers)) and time.monotonic() < until
        ):
            if look:
                self.invalidate()
                self._closing.wait(self.backoff_s(look))
            look += 1
            metadata = self._current(name)
            heard.add(self._metadata_source)
            found = metadata.topics.get(name)
            if found is not None:
                if accept is None or accept(found):
                    return found
                continue
            code = metadata.errors.get(name, ErrorCode.unknown_topic_or_partition)
            if code is ErrorCode.invalid_topic_exception:
                check_topic_name(name)  # says which rule it breaks, which brokers do not
            if code is not ErrorCode.unknown_topic_or_partition:
                also = " (or Create, if it is missing)" if self._create_topics else ""
                raise refusal(self.settings, ApiKey.METADATA, code, f"topic {name!r}", name, also=also)
            if self._create_topics:
                raise BrokerError(code, f"topic {name!r} was not created (auto.create.topics.enable=false?)")
        if found is not None:
            return found
        raise UnknownTopic(f"there is no topic {name!r} on {','.join(self.settings.bootstrap_servers)}")

    def _find_partition(self, tp: TopicPartition) -> PartitionMetadata:
        partitions = self._find_topic(tp.topic, lambda topic: tp.partition in topic.partitions).partitions
        found = partitions.get(tp.partition)
        if found is None:
            raise UnknownTopic(f"topic {tp.topic!r} has {len(partitions)} partitions, but no {tp.partition}")
        return found

    def _by_leader(self, partitions: Collection[TopicPartition]) -> dict[Node, dict[TopicPartition, int]]:
        self.include({tp.topic for tp in partitions})
        topics = self._current().topics
        found: dict[Node, dict[TopicPartition, int]] = {}
        for tp in partitions:
            topic = topics.get(tp.topic)
            known = topic.partitions.get(tp.partition) if topic is not None else None
            partition = self._find_partition(tp) if known is None else known
            leader = self._metadata.brokers.get(partition.leader) or self._node(partition.leader, f"the leader of {tp}")
            found.setdefault(leader, {})[tp] = partition.leader_epoch
        return found

    def _node(self, node_id: int, role: str) -> Node:
        node = self._metadata.brokers.get(node_id)
        if node is None:
            raise BrokerError(ErrorCode.leader_not_available, f"{role} is not known now")
        return node

    def _find_coordinator(self, name: str, kind: CoordinatorKind) -> Node:
        node = self._coordinators.get((kind, name))
        if node is None:
            body = {"key": name, "key_type": int(kind)}
            answer = self._any_connection().request(ApiKey.FIND_COORDINATOR, body)
            what = f"no coordinator for {kind} {name!r}"
            check(self.settings, ApiKey.FIND_COORDINATOR, answer.error_code, what, name)
            node = self._coordinators[kind, name] = Node(int(answer.node_id), answer.host, int(answer.port))
        return node


def _backoff_s(failures: int, first_ms: int, longest_ms: int) -> float:
    return min(first_ms << min(failures - 1, 30), longest_ms) * random.uniform(0.8, 1.2) / 1000
