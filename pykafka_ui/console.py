"""What pages and API have in common: sampler, readers and decoder, and questions that are asked when needed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from broker.client.admin import Admin
from broker.client.admin_types import GroupDescription, LogDir, NewTopic, TransactionDescription, TransactionListing
from broker.client.archive_status import archive_statuses
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.denials import DENIED
from broker.client.hanging_transactions import OpenInPartition, hanging_transactions
from broker.client.partition_offsets import list_offsets
from broker.client.producer import Producer
from broker.client.producer_batch import RecordFuture
from broker.errors import BrokerError, PykafkaError
from broker.protocol.archive_status import ArchiveStatus
from broker.protocol.described_config import ConfigEntry, ResourceType
from broker.protocol.topic_partition import TopicPartition
from broker.storage.url_secrets import without_secrets
from pykafka_ui.loads.places import LoadPlaces
from pykafka_ui.loads.series_health import Survey
from pykafka_ui.loads.verifications import Verifications
from pykafka_ui.records.browse import Readers
from pykafka_ui.records.records_query import FoundRecords, RecordsQuery
from pykafka_ui.records.values import Decoder
from pykafka_ui.seen.history import HOUR_S, PastRates
from pykafka_ui.seen.recent import Recent
from pykafka_ui.seen.sampler import Sampler
from pykafka_ui.seen.snapshot import Topic
from pykafka_ui.seen.streams import Streams
from pykafka_ui.v3.record_json import RecordToSend

T = TypeVar("T")

logger = logging.getLogger("pykafka.ui")

PATIENCE_MS = 5_000
"""How long a cluster that does not answer is asked. Somebody looks at an empty page meanwhile."""
DELIVERED_S = 3 * PATIENCE_MS / 1000
"""A record that is not acknowledged then was given up: nobody writes it later."""
FRESH_S, SELDOM_S, MINUTE_S = 3.0, 15.0, 60.0
"""So long an answer is shown without being asked for again, by whoever looks."""
MOST_PARTITIONS = 500
"""Of the topics of a page whose newest records are looked for."""
_SHOWN = ("cleanup.policy", "retention.ms", "retention.bytes", "remote.storage.enable")
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
OVERDUE_AFTER_MS = 60_000
MOST_DESCRIBED = 20
"""Transactions, one request each, for a page that only counts them."""
LONGEST_MS = 900_000
"""Longer than any transaction may take by the broker's default (transaction.max.timeout.ms)."""


@dataclasses.dataclass(frozen=True)
class Loads:
    places: LoadPlaces
    verifications: Verifications

    @functools.cached_property
    def survey(self) -> Survey:
        """Of all series, for the lists."""
        return Survey(self.places)


@dataclasses.dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is neither committed nor aborted. `age_ms` is -1 if it has not begun."""

    about: TransactionDescription
    age_ms: int

    @property
    def is_overdue(self) -> bool:
        """Whether its coordinator should have aborted it by now; it looks every ten seconds by default."""
        return self.age_ms > max(self.about.timeout_ms, 0) + OVERDUE_AFTER_MS

    @property
    def state(self) -> tuple[str, str]:
        """(ok, warn or bad; in words). One that is being ended waits for brokers that do not answer."""
        if self.is_overdue:
            return "bad", f"{self.about.state}, overdue"
        return ("ok" if self.about.state == "Ongoing" else "warn"), self.about.state


class Console:
    """Everything of one cluster. Thread-safe."""

    def __init__(self, settings: ClientSettings, decoder: Decoder, loads: Loads | None = None) -> None:
        self.bootstrap = ",".join(settings.bootstrap_servers)
        settings = dataclasses.replace(settings, request_timeout_ms=PATIENCE_MS, default_api_timeout_ms=PATIENCE_MS)
        self.settings = settings
        self.patience_s = PATIENCE_MS / 1000
        self.sampler = Sampler(settings)
        self.loads = loads
        self.streams = Streams()
        self._decoder = decoder
        self._readers = Readers(settings)
        self._cluster = Cluster(settings, create_topics=False)
        self._admin = Admin(self._cluster)
        self._past = PastRates(self._cluster, lambda: self.sampler.snapshot)
        self._recent: Recent[Any] = Recent(FRESH_S)
        self._seldom: Recent[Any] = Recent(SELDOM_S)
        self._minutely: Recent[list[OpenTransaction] | None] = Recent(MINUTE_S)
        self._producing = threading.Lock()
        self._to_produce = dataclasses.replace(
            settings, max_block_ms=PATIENCE_MS, delivery_timeout_ms=2 * PATIENCE_MS, allow_auto_create_topics=False
        )
        self._producer: Producer | None = None

    def start(self) -> None:
        self.sampler.start()

    def stop(self) -> None:
        if self.loads is not None:
            self.loads.verifications.stop()
        self.sampler.stop()
        self._readers.close()
        if self._producer is not None:
            self._producer.close(timeout_s=0)
        self._cluster.close()

    def series(self, kind: str, name: str = "") -> list[tuple[float, float | None]]:
        """The last hour of `records` or `read` per second, or of `lag`: (Unix seconds, value), None for a gap.

        What was written before the console began to look is known from the times of records.
        """
        history = self.sampler.history(kind)
        if kind == "lag":
            return history.values(kind, name)
        found = history.rate(kind, name)
        now, began = time.time(), history.began_s
        is_there = not self.sampler.snapshot.error
        if kind == "records" and is_there and began is not None and now - began < HOUR_S:
            with contextlib.suppress(PykafkaError):  # then it begins when the console began
                past = self._seldom.soon(("past", name), lambda: self._past.rate(name, began))
                found = [point for point in past if now - point[0] < HOUR_S] + found
        return found

    def written(self, name: str = "") -> float | None:
        """Records per second that were written last, of a topic or of all; None if it is not known."""
        known = self.sampler.last_rate("records", name)
        if known is None and (past := [value for _, value in self.series("records", name)]):
            return past[-1]
        return known

    def shown_settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """How topics keep their records, with one question for a page of them. One of which it is not known is left
        out."""
        if not topics:
            return {}

        def ask() -> dict[str, dict[str, ConfigEntry]]:
            return self._admin.describe_topic_configs(topics, _SHOWN)

        none: dict[str, dict[str, ConfigEntry]] = {}
        found = self._if_told(lambda: self._seldom.soon(("shown", *topics), ask), none)
        return {name: {key: one.value or "" for key, one in of.items()} for name, of in found.items()}

    def newest_ms(self, topics: Sequence[Topic]) -> dict[str, int]:
        """The latest time of a record of each topic, -1 of an empty one. One of which a partition does not say it is
        left out, and so are those beyond `MOST_PARTITIONS`."""
        if self.sampler.snapshot.error:
            return {}
        asked, partitions = [], 0
        for one in topics:
            partitions += len(one.partitions)
            if partitions <= MOST_PARTITIONS:
                asked.append(one)

        def ask() -> dict[str, int]:
            rows = {TopicPartition(one.name, row.index): row for one in asked for row in one.partitions}
            by_topic: dict[str, list[int]] = {}
            for tp, at in self.sampler.newest(rows).items():
                if at >= 0 or not rows[tp].records:  # else the newest is not on all replicas yet: no leader tells it
                    by_topic.setdefault(tp.topic, []).append(at)
            return {
                one.name: max(of) for one in asked if len(of := by_topic.get(one.name, [])) == len(one.partitions) > 0
            }

        newest: dict[str, int] = self._seldom.soon(("newest", *(one.name for one in asked)), ask)
        return newest

    @contextlib.contextmanager
    def records(self, asked: RecordsQuery) -> Iterator[FoundRecords]:
        """What was found, until the block ends: only few are in memory at once, with what is made of them.

        Raises UnknownTopic, ConfigError, and what the broker answers.
        """
        wanted = asked.filter(self._decoder)
        with self._readers.page(asked.query(), wanted) as page:
            yield FoundRecords(asked, page, self._decoder, wanted.given_up)

    def topic_settings(self, topic: str) -> list[ConfigEntry]:
        """By name. Empty if this client may not see them."""
        return self._settings(ResourceType.TOPIC, topic)

    def broker_settings(self, broker_id: int) -> list[ConfigEntry]:
        return self._settings(ResourceType.BROKER, str(broker_id))

    def group_settings(self, name: str) -> list[ConfigEntry]:
        return self._settings(ResourceType.GROUP, name)

    def _settings(self, kind: ResourceType, name: str) -> list[ConfigEntry]:
        none: dict[str, ConfigEntry] = {}
        found = self._asked(("settings", kind, name), lambda: self._admin.describe_configs(kind, name), none)
        return [found[key] for key in sorted(found)]

    def ask(self, act: Callable[[Admin], T]) -> T:
        """What `act` returns, which changes nothing."""
        return act(self._admin)

    def change(self, act: Callable[[Admin], T]) -> T:
        """What `act` returns. The pages show soon what it has changed."""
        try:
            return act(self._admin)
        finally:
            self._recent.forget()
            self._seldom.forget()
            self.sampler.look_again()

    def create_topic(self, new: NewTopic) -> None:
        """Make it, and wait until it is seen: a broker answers before all have heard of it."""
        self.change(lambda admin: admin.create_topics([new]))
        self.sampler.wait_until(lambda seen: new.name in seen.topics, self.patience_s)

    def send(self, topic: str, record: RecordToSend) -> RecordFuture:
        """Write a record to a topic that exists, with the producer that all share; decided after `DELIVERED_S`."""
        with self._producing:
            if self._producer is None:
                self._producer = Producer(self._to_produce)
            producer = self._producer
        return producer.send(topic, record.value, record.key, record.headers, record.partition, record.timestamp)

    def group(self, name: str) -> GroupDescription:
        """State and members."""
        return self._kept(("group", name), lambda: self._admin.describe_group(name))

    def known_group(self, name: str) -> GroupDescription | None:
        """None if this client may not see its members."""
        return self._asked(("group", name), lambda: self._admin.describe_group(name), None)

    def log_dirs(self, broker_id: int) -> list[LogDir]:
        """The data directories of a broker. Empty if this client may not see them."""
        return self._asked(("log_dirs", broker_id), lambda: self._admin.describe_log_dirs([broker_id]), [])

    def archives(self) -> list[ArchiveStatus]:
        """Of all partitions that have an archive and that this client may see."""
        found: list[ArchiveStatus] = self._seldom.get("archives", lambda: archive_statuses(self._admin))
        return found

    def archive_store(self) -> str:
        """Where the brokers' archive is, as one of them tells it; "" if none does."""
        brokers = self.sampler.snapshot.brokers
        if not brokers:
            return ""
        none: list[ConfigEntry] = []
        found = self._if_told(lambda: self._seldom.soon("store", lambda: self.broker_settings(brokers[0].id)), none)
        return next((without_secrets(one.value or "") for one in found if one.name == "archive.url"), "")

    def oldest_ms(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The times of the first records, also in the archive; -1 without records. Of many partitions not asked."""
        if len(tps) > MOST_PARTITIONS or self.sampler.snapshot.error:
            return {}

        def asked() -> dict[TopicPartition, int]:
            found = list_offsets(self._cluster, dict.fromkeys(tps, 0), timeout_s=1.0)
            return {tp: one.timestamp for tp, one in found.items()}

        def ask() -> dict[TopicPartition, int]:
            return self._if_told(asked, {})  # a broker, or the archive, may be away: it is not asked again at once

        found: dict[TopicPartition, int] = self._seldom.soon(("oldest", tuple(tps)), ask)
        return found

    def open_transactions(self) -> list[OpenTransaction]:
        """The oldest first."""
        return self._kept("transactions", self._open_transactions)

    def overdue_transactions(self) -> list[OpenTransaction] | None:
        """Of those that are open for longer than any may; None where brokers do not tell. Looked for once a minute."""
        return self._if_told(lambda: self._minutely.soon("overdue", self._overdue_transactions), None)

    def _overdue_transactions(self) -> list[OpenTransaction] | None:
        listed = self._admin.list_transactions(states=["Ongoing"], running_longer_than_ms=LONGEST_MS)
        if len(listed) > MOST_DESCRIBED:  # brokers before Kafka 3.8 list all that are open
            return None
        return [one for one in self._described(listed) if one.is_overdue]

    def hanging_transactions(self) -> list[OpenInPartition]:
        """Those that partitions wait for, although no coordinator knows them."""
        return self._kept("hanging", self._hanging_transactions)

    def _hanging_transactions(self) -> list[OpenInPartition]:
        led = [tp for tp, one in self.sampler.watch().partitions.items() if one.leader >= 0]
        try:
            return hanging_transactions(self._admin, led, LONGEST_MS)
        except BrokerError as error:
            logger.debug("topic by topic: %s", error)
        found: list[OpenInPartition] = []
        for _, tps in itertools.groupby(led, lambda tp: tp.topic):
            with contextlib.suppress(BrokerError):  # it was deleted since, or may not be seen
                found += hanging_transactions(self._admin, tps, LONGEST_MS)
        return found

    def _if_told(self, ask: Callable[[], T], otherwise: T) -> T:
        """What a page can do without: `otherwise` where the cluster, or one of its brokers, does not answer."""
        try:
            return otherwise if self.sampler.snapshot.error else ask()
        except PykafkaError as error:
            logger.debug("a page goes without: %s", error)
            return otherwise

    def _kept(self, key: Hashable, make: Callable[[], T]) -> T:
        found: T = self._recent.get(key, make)
        return found

    def _asked(self, key: Hashable, ask: Callable[[], T], forbidden: T) -> T:
        try:
            return self._kept(key, ask)
        except BrokerError as error:
            if error.code in DENIED:
                return forbidden
            raise

    def _open_transactions(self) -> list[OpenTransaction]:
        return self._described(self._admin.list_transactions(states=_OPEN))

    def _described(self, transactions: Iterable[TransactionListing]) -> list[OpenTransaction]:
        found, now = [], int(time.time() * 1000)
        for listed in transactions:
            with contextlib.suppress(BrokerError):  # it has ended meanwhile, and so may one that is described
                about = self._admin.describe_transaction(listed.transactional_id)
                if about.state in _OPEN:
                    found.append(OpenTransaction(about, now - about.start_ms if about.start_ms >= 0 else -1))
        return sorted(found, key=lambda one: -one.age_ms)

    @staticmethod
    def partitions_text(partitions: list[TopicPartition]) -> str:
        """`topic-0, topic-1, …` with at most ten of them."""
        shown = ", ".join(map(str, partitions[:10]))
        return shown + (f" and {len(partitions) - 10} more" if len(partitions) > 10 else "")
