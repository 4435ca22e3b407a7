"""Pages of records: every record is on one page, whichever way one turns them, and memory is bounded."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping

import pytest

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.producer import Producer
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.records import browse
from pykafka_ui.records.browse import From, Page, Predicate, Query, Readers
from tests.support.kafka import Kafka

PARTITIONS = 3
COUNT = 100
BEGAN_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def readers(broker: Kafka) -> Iterator[Readers]:
    made = Readers(ClientSettings.of(broker.bootstrap))
    yield made
    made.close()


@pytest.fixture(scope="module")
def written(broker: Kafka) -> str:
    """Records 0 to 99 with rising times, unevenly over three partitions; a committed, an aborted transaction."""
    name = "browsed"
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(name, PARTITIONS)
    with Producer(broker.bootstrap, {"batch.size": 200}) as producer:
        for number in range(COUNT):
            where = 0 if number % 5 else 1 + number % 2
            producer.send(name, b"%d" % number, partition=where, timestamp=BEGAN_MS + number)
        producer.flush(30)
    return name


def look(readers: Readers, query: Query, wanted: Predicate = lambda record: True) -> Page:
    with readers.page(query, wanted) as page:
        return page


def numbers(page: Page) -> list[int]:
    return [int(found.record.value or b"") for found in page.records]


def turned(readers: Readers, topic: str, start: From, limit: int) -> Iterator[Page]:
    """All pages from the first one, older or newer."""
    query = Query(topic, start, limit=limit)
    while True:
        page = look(readers, query)
        yield page
        at: Mapping[int, int] | None = page.older if start.is_backward else page.newer
        if at is None or (not page.records and not start.is_backward):
            return
        query = Query(topic, From.BEFORE if start.is_backward else From.AT, at, limit=limit)


@pytest.mark.parametrize("limit", [1, 7, 50, 99, 100, 101, 1000])
def test_turning_pages_shows_every_record_once_in_order(readers: Readers, written: str, limit: int) -> None:
    oldest_first = list(itertools.chain.from_iterable(map(numbers, turned(readers, written, From.START, limit))))
    assert oldest_first == list(range(COUNT))
    newest_first = list(itertools.chain.from_iterable(map(numbers, turned(readers, written, From.END, limit))))
    assert newest_first == list(reversed(range(COUNT)))


def test_a_page_knows_its_neighbours(readers: Readers, written: str) -> None:
    first = look(readers, Query(written, From.START, limit=10))
    assert first.older is None
    assert first.newer is not None
    second = look(readers, Query(written, From.AT, first.newer, limit=10))
    assert second.older is not None
    assert numbers(look(readers, Query(written, From.BEFORE, second.older, limit=10))) == list(reversed(range(10)))
    last = look(readers, Query(written, From.END, limit=10))
    assert last.newer is None, "as long as nobody writes"


def test_from_an_offset_and_from_a_time(readers: Readers, written: str) -> None:
    page = look(readers, Query(written, From.TIME, BEGAN_MS + 90))
    assert numbers(page) == list(range(90, 100))
    assert numbers(look(readers, Query(written, From.TIME, BEGAN_MS + 10**9))) == []
    page = look(readers, Query(written, From.OFFSET, 3, partitions=(0,), limit=2))
    assert [found.record.offset for found in page.records] == [3, 4]
    assert numbers(look(readers, Query(written, From.OFFSET, 10**12, partitions=(0,)))) == []


def test_a_filter_looks_on_until_it_has_found_enough(readers: Readers, written: str) -> None:
    page = look(readers, Query(written, From.END, limit=3), lambda record: (record.value or b"").endswith(b"7"))
    assert numbers(page) == [97, 87, 77]
    assert page.is_complete
    page = look(readers, Query(written, From.START), lambda record: record.value == b"99")
    assert numbers(page) == [99]
    assert page.looked_at == COUNT
    assert numbers(look(readers, Query(written, From.END), lambda record: False)) == []


def test_a_look_ends_at_its_bounds_and_goes_on_from_there(
    readers: Readers, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "MOST_SECONDS", -1)
    page = look(readers, Query(written, From.START), lambda record: record.value == b"99")
    assert not page.is_complete
    assert page.newer is not None
    monkeypatch.undo()
    page = look(readers, Query(written, From.AT, page.newer), lambda record: record.value == b"99")
    assert numbers(page) == [99]


def test_records_of_transactions_are_shown_as_what_they_are(readers: Readers, broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    with Producer(broker.bootstrap, {"transactional.id": f"{topic}-1"}) as producer:
        producer.init_transactions()
        for value, commits in ((b"0", True), (b"1", False), (b"2", True)):
            producer.begin_transaction()
            producer.send(topic, value, partition=tp.partition).result(30)
            producer.commit_transaction() if commits else producer.abort_transaction()
    with Producer(broker.bootstrap, {"transactional.id": f"{topic}-2"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"3", partition=0).result(30)
        with Producer(broker.bootstrap) as plain:
            plain.send(topic, b"4", partition=0).result(30)
        assert numbers(look(readers, Query(topic, From.START))) == [0, 2]
        page = look(readers, Query(topic, From.START, committed=False))
        assert [(int(one.record.value or b""), one.state) for one in page.records] == [
            (0, ""),
            (1, "aborted"),
            (2, ""),
            (3, "not stable"),
            (4, "not stable"),
        ]
        assert numbers(look(readers, Query(topic, From.END, committed=False))) == [4, 3, 2, 1, 0]
        producer.abort_transaction()
    assert numbers(look(readers, Query(topic, From.END))) == [4, 2, 0]


def test_a_topic_without_records(readers: Readers, broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 2)
    for start in (From.START, From.END):
        page = look(readers, Query(topic, start))
        assert (page.records, page.older, page.newer, page.is_complete) == ([], None, None, True)


def test_what_cannot_be_read_is_said(readers: Readers, written: str, topic: str) -> None:
    with pytest.raises(UnknownTopic, match=topic):
        look(readers, Query(topic))
    with pytest.raises(UnknownTopic, match="has 3 partitions, but no 7"):
        look(readers, Query(written, partitions=(0, 7)))
    with pytest.raises(ConfigError, match="limit=0"):
        look(readers, Query(written, limit=0))
    assert len(look(readers, Query(written)).records) == 50, "and the readers still read"


def test_records_that_are_larger_than_a_look_are_shown_all_the_same(
    readers: Readers, broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece of the log is too much for one look, so a smaller one is read."""
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 2)
    with Producer(broker.bootstrap) as producer:
        for number in range(20):
            producer.send(topic, b"%d " % number + b"x" * 50_000, partition=number % 2)
        producer.flush(30)
    monkeypatch.setattr(browse, "MOST_BYTES", 120_000)
    seen: list[int] = []
    query = Query(topic, From.END, limit=20)
    while True:
        page = look(readers, query)
        assert len(page.records) < 20
        seen += [int((one.record.value or b"").split()[0]) for one in page.records]
        if page.older is None:
            break
        assert page.records, "it goes on"
        query = Query(topic, From.BEFORE, page.older, limit=20)
    assert sorted(seen) == list(range(20))


def test_memory_counts_what_records_are_and_not_their_compressed_size(
    readers: Readers, broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1)
    with Producer(broker.bootstrap, {"compression.type": "zstd"}) as producer:
        for _ in range(50):
            producer.send(topic, bytes(100_000))
        producer.flush(30)
    monkeypatch.setattr(browse, "MOST_BYTES", 1_000_000)
    page = look(readers, Query(topic, From.START, limit=50))
    assert 5 <= len(page.records) <= 11
    assert not page.is_complete


def test_so_many_pages_at_once_and_no_more(readers: Readers, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they are rendered: their records are in memory."""
    monkeypatch.setattr(browse, "_PATIENCE_S", 0.1)
    with contextlib.ExitStack() as stack:
        for _ in range(browse._MOST_READERS):
            stack.enter_context(readers.page(Query(written)))
        with pytest.raises(PykafkaError, match="too many pages of records"):
            look(readers, Query(written))
    assert len(look(readers, Query(written)).records) == 50


def test_a_new_partition_is_found_at_once(readers: Readers, broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1)
        assert look(readers, Query(topic)).records == []
        Admin(cluster).create_partitions(topic, 2)
    assert look(readers, Query(topic, partitions=(1,))).records == []


def test_a_reader_is_made_anew_now_and_then(broker: Kafka, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "_USES", 2)
    made = Readers(ClientSettings.of(broker.bootstrap))
    assert [len(look(made, Query(written)).records) for _ in range(5)] == [50] * 5
    made.close()
