"""A mirror between two brokers: what is copied, how often, and what becomes of topics and groups."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import TopicMetadata
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.client.transaction_errors import ProducerFenced
from broker.errors import BrokerError, ConfigError, PykafkaError
from broker.mirror.group_sync import checkpoints_topic
from broker.mirror.mirror import Mirror
from broker.mirror.topic_sync import TopicSync
from broker.protocol.topic_partition import TopicPartition
from tests.mirror.conftest import Route
from tests.support.broker_process import BrokerProcess
from tests.support.committed_records import CommittedRecord, committed_records, committed_values
from tests.support.topic_data import transact
from tests.support.topics import Topic
from tests.support.waiting import eventually


def content(bootstrap: str, topic: str) -> list[CommittedRecord]:
    """The records of each partition in order; their offsets may differ between clusters."""
    return [record._replace(offset=0) for record in committed_records(bootstrap, topic)]


class Running(threading.Thread):
    """A mirror that goes on until `end`."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__()
        self._mirror = mirror
        self._ended = threading.Event()
        self.failure: PykafkaError | None = None

    def run(self) -> None:
        try:
            self._mirror.run(self._ended.is_set)
        except PykafkaError as error:
            self.failure = error

    def end(self) -> None:
        self._ended.set()
        self.join(60)


@contextmanager
def running(
    route: Route, topic: str, *, properties: Mapping[str, object] | None = None, **others: Any
) -> Iterator[Running]:
    """A mirror that goes on until the block ends; `properties` are of the client of the target."""
    with Cluster(route.source) as source, Cluster(route.target, properties) as target:
        thread = Running(Mirror(source, target, route.settings(topic, **{"commit_interval_s": 0.05, **others})))
        thread.start()
        try:
            yield thread
        finally:
            thread.end()


def test_records_keep_all_they_have(route: Route, topic: str) -> None:
    source = Topic(route.source, topic, partitions=3)
    for partition, codec in enumerate(("none", "lz4", "zstd")):
        source.produce(
            [b"%d" % number for number in range(50)], partition, key=b"k", codec=codec, timestamp=1_600_000_000_123
        )
    source.produce([b"v", None, b""], 1, headers=[("trace", b"\x00\xff"), ("none", None), ("trace", b"")])
    stats = route.once(topic)
    assert content(route.target, topic) == content(route.source, topic)
    assert (stats.records, stats.partitions, stats.lag) == (153, 3, 0)
    assert route.once(topic).records == 0, "a second run has nothing to do"
    source.number(5, first=1000)
    assert route.once(topic).records == 5
    assert content(route.target, topic) == content(route.source, topic)


def test_aborted_and_open_transactions_stay_behind(route: Route, topic: str) -> None:
    source = Topic(route.source, topic)
    transact(route.source, topic, "commit", "abort", "commit")
    source.number(3, first=100)
    waiting = transact(route.source, topic, "open", count=4)
    route.once(topic)
    assert content(route.target, topic) == content(route.source, topic)
    assert len(content(route.target, topic)) == 23
    waiting.commit_transaction(30)
    assert route.once(topic).records == 4


def test_a_mirror_that_runs_follows_topics_partitions_and_settings(route: Route, topic: str) -> None:
    first = Topic(route.source, f"{topic}-a", retention_ms="123456789", min_insync_replicas="1")
    first.number(5)
    pattern = re.escape(topic) + "-[ab]"
    often: dict[str, Any] = {"refresh_topics_interval_s": 0.2, "sync_topic_configs_interval_s": 0.2}
    with Cluster(route.source) as there, Cluster(route.target) as here, running(route, pattern, **often) as mirror:
        eventually(lambda: len(content(route.target, first.name)) == 5)
        second = Topic(route.source, f"{topic}-b", partitions=2)
        Topic(route.source, f"{topic}-c").number(1)
        second.number(3, partition=1)
        first.grow(3)
        first.number(4, partition=2)
        Admin(there).alter_configs(
            ResourceType.TOPIC, first.name, {"segment.bytes": "2000000"}, delete=["retention.ms"]
        )
        eventually(lambda: len(content(route.target, second.name)) == 3)
        eventually(lambda: len(content(route.target, first.name)) == 9)

        def settings() -> dict[str, str | None]:
            found = Admin(here).describe_configs(ResourceType.TOPIC, first.name)
            return {name: entry.value for name, entry in found.items() if entry.source.name == "DYNAMIC_TOPIC_CONFIG"}

        eventually(lambda: settings() == {"segment.bytes": "2000000"})
        assert f"{topic}-c" not in Admin(here).list_topics()
    assert mirror.failure is None


def test_groups_continue_where_they_were(route: Route, topic: str, group: str) -> None:
    """The source skips aborted records and markers, so the offsets differ."""
    source = Topic(route.source, topic, partitions=2)
    transact(route.source, topic, "abort", "commit", "abort")
    source.number(20, partition=0, first=500)
    tp, quiet = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Cluster(route.source) as there, Cluster(route.target) as here:
        theirs, ours = Admin(there), Admin(here)
        position = 2 * 11 + 11 + 5  # two aborted and a committed transaction with their markers, then five records
        theirs.alter_group_offsets(group, {tp: position, quiet: 0})
        assert route.once(topic, groups=(group,)).groups == 1
        values = [record.value for record in committed_records(route.target, topic)]
        assert ours.group_offsets(group) == {tp: 10 + 5, quiet: 0}
        assert values[15] == b"505"

        theirs.alter_group_offsets(group, {tp: position + 10_000})
        source.number(3, first=900)
        route.once(topic, groups=(group,))
        end = committed_records(route.target, topic)[-1].offset + 1
        assert ours.group_offsets(group)[tp] == end, "never ahead of what is mirrored"
        checkpoints = committed_values(route.target, checkpoints_topic(route.alias))
        assert len(checkpoints) >= 3

        ours.alter_group_offsets(group, {tp: 1})
        theirs.alter_group_offsets(group, {tp: 0})
        route.once(topic, groups=(group,))
        assert ours.group_offsets(group)[tp] == 1, "never back"


def test_a_group_with_members_on_the_target_is_left_alone(route: Route, topic: str, group: str) -> None:
    source = Topic(route.source, topic)
    source.number(5)
    route.once(topic, groups=(group,))
    with Cluster(route.source) as there, Cluster(route.target) as here:
        with Consumer(route.target, {"group.id": group, "enable.auto.commit": False}) as consumer:
            consumer.subscribe([topic])
            eventually(lambda: consumer.poll(0.1) is not None and bool(consumer.assignment()))
            Admin(there).alter_group_offsets(group, {TopicPartition(topic, 0): 3})
            assert route.once(topic, groups=(group,)).groups == 0
            assert Admin(here).group_offsets(group) == {}
        assert route.once(topic, groups=(group,)).groups == 1
        assert Admin(here).group_offsets(group) == {TopicPartition(topic, 0): 3}


def test_the_newer_of_two_mirrors_goes_on(route: Route, topic: str) -> None:
    source = Topic(route.source, topic)
    source.number(10)
    with Cluster(route.source) as there, Cluster(route.target) as here, running(route, topic) as first:
        eventually(lambda: len(content(route.target, topic)) == 10)
        newer = Mirror(there, here, route.settings(topic))
        newer.run(lambda: False, once=True)
        source.number(10, first=100)
        eventually(lambda: first.failure is not None)
    assert isinstance(first.failure, ProducerFenced)
    assert f"'pykafka-mirror.{route.alias}.target'" in str(first.failure)
    assert route.once(topic).lag == 0
    values = Counter(record.value for record in content(route.target, topic))
    assert set(values.values()) == {1}


def test_what_the_source_deleted_is_skipped_with_a_warning(
    route: Route, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = Topic(route.source, topic)
    source.number(10)
    route.once(topic)
    source.number(10, first=10)
    with Cluster(route.source) as there:
        Admin(there).delete_records({TopicPartition(topic, 0): 15})
    assert route.once(topic).records == 5
    assert "offsets 10 to 14 were deleted" in caplog.text


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_topic_that_is_made_again_is_mirrored_again(route: Route, topic: str, side: str) -> None:
    source = Topic(route.source, topic)
    source.number(10)
    route.once(topic)
    if side == "source":
        source.delete()
        source.create(1)
        source.number(4, first=70)
        assert route.once(topic).records == 4
    else:
        with Cluster(route.target) as here:
            Admin(here).delete_topics([topic])
        assert route.once(topic).records == 10


def test_a_copy_that_is_deleted_meanwhile_is_made_again(route: Route, topic: str) -> None:
    Topic(route.source, topic).number(10)
    with Cluster(route.target) as here, running(route, topic, refresh_topics_interval_s=0.2):
        eventually(lambda: len(content(route.target, topic)) == 10)
        first = here.topic(topic).topic_id
        Admin(here).delete_topics([topic])
        eventually(lambda: topic in here.topics() and here.topics()[topic].topic_id != first)
        eventually(lambda: len(content(route.target, topic)) == 10)


def test_a_topic_that_the_source_does_not_show_for_a_moment_is_not_copied_twice(
    route: Route, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user may not describe it, or the broker that was asked has old metadata."""
    source = Topic(route.source, topic)
    source.number(10)
    select, hidden, seen = TopicSync.select, threading.Event(), threading.Event()

    def selected(self: TopicSync) -> dict[str, TopicMetadata]:
        if hidden.is_set():
            seen.set()
            return {}
        return select(self)

    monkeypatch.setattr(TopicSync, "select", selected)
    with running(route, topic, refresh_topics_interval_s=0.05):
        eventually(lambda: len(content(route.target, topic)) == 10)
        hidden.set()
        assert seen.wait(20)
        source.number(3, first=10)
        hidden.clear()
        eventually(lambda: len(content(route.target, topic)) >= 13)
    assert content(route.target, topic) == content(route.source, topic)


def test_the_default_policy_puts_the_alias_before_the_name(route: Route, topic: str) -> None:
    """On the same cluster, and the copies are not copied."""
    source = Topic(route.source, topic)
    source.number(3)
    there = Route(route.source, route.source, route.alias)
    for _ in range(2):
        there.once(f".*{re.escape(topic)}", replication_policy="default")
    assert content(route.source, f"{route.alias}.{topic}") == content(route.source, topic)
    with Cluster(route.source) as cluster:
        assert [name for name in Admin(cluster).list_topics() if name.endswith(topic)] == sorted(
            [topic, f"{route.alias}.{topic}"]
        )


def test_log_append_time_becomes_create_time(route: Route, topic: str) -> None:
    source = Topic(route.source, topic, message_timestamp_type="LogAppendTime")
    source.produce([b"a", b"b"], timestamp=5)
    route.once(topic)
    assert content(route.target, topic) == content(route.source, topic)


def test_latest_leaves_old_records_behind(route: Route, topic: str) -> None:
    source = Topic(route.source, topic)
    source.number(10)
    assert route.once(topic, auto_offset_reset="latest").records == 0
    source.number(2, first=50)
    assert route.once(topic, auto_offset_reset="latest").records == 2


def test_a_circle_is_refused(route: Route, topic: str) -> None:
    Topic(route.source, topic).number(1)
    route.once(topic)
    back = Route(route.target, route.source, route.alias + "-back")
    with pytest.raises(ConfigError, match="in a circle"):
        back.once(topic)
    with pytest.raises(ConfigError, match="the same cluster"):
        Route(route.source, route.source, route.alias).once(topic)


def test_a_topic_that_does_not_exist_is_named(route: Route, topic: str) -> None:
    Topic(route.source, topic)
    with pytest.raises(ConfigError, match=f"the source has no such topic; it has .*{topic}"):
        route.once(topic + "x")


def test_small_and_large_batches_of_our_own_producer(route: Route, topic: str) -> None:
    """Records that go in requests of one, and records of almost a megabyte."""
    Topic(route.source, topic)
    with Producer(route.source, {"linger.ms": 0}) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number).result()
        producer.send(topic, b"x" * 1_000_000)
        producer.send(topic, b"end")
    route.once(topic)
    assert content(route.target, topic) == content(route.source, topic)


def test_batches_are_cut_to_what_the_target_takes(route: Route, topic: str) -> None:
    Topic(route.source, topic).produce([b"%d" % number + b"x" * 1000 for number in range(300)])
    Topic(route.target, topic, max_message_bytes="20000")
    route.once(topic, sync_topic_configs=False)
    assert content(route.target, topic) == content(route.source, topic)


def test_a_record_that_the_target_refuses_ends_the_mirror(route: Route, topic: str) -> None:
    Topic(route.source, topic).produce([b"x" * 5000])
    Topic(route.target, topic, max_message_bytes="2000")
    with pytest.raises(BrokerError, match=r"producing to .*max\.message\.bytes|too large|larger"):
        route.once(topic, sync_topic_configs=False)


def test_a_transaction_that_was_open_too_long_is_copied_again(
    own_broker: BrokerProcess, target: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator aborts it and raises the epoch, as if another mirror had come."""
    route = Route(own_broker.bootstrap, target.bootstrap, topic)
    source = Topic(route.source, topic)
    source.number(10)
    with running(route, topic, properties={"transaction.timeout.ms": 100}, commit_interval_s=1.0) as mirror:
        eventually(lambda: len(content(route.target, topic)) == 10)
        source.number(10, first=10)
        eventually(lambda: "beginning again" in caplog.text)
        assert mirror.failure is None
    assert route.once(topic).lag == 0
    assert content(route.target, topic) == content(route.source, topic)
