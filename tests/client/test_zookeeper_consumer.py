"""Consumers whose group is in ZooKeeper: what members register, who gets which partition, and committed offsets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.consumer import ConsumerRecord
from broker.client.topic_filter import TopicFilter
from broker.client.zookeeper_consumer import ZooKeeperConsumer, decode_threads, encode_subscription, owned_by, thread_of
from broker.errors import BrokerError, ConfigError, ProtocolError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.protocol.topic_partition import TopicPartition as Tp
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.consumer_registry import ConsumerRegistry
from tests.client.conftest import TopicMaker
from tests.client.test_consumer_group import produce
from tests.support.kafka import Kafka
from tests.support.waiting import eventually

COUNTS = {"a": 3, "b": 2}


def subscription(topics: list[str] | None = None, pattern: str | None = None, exclude: str | None = None) -> bytes:
    return encode_subscription(TopicFilter.parse(topics, pattern, exclude), 7)


def test_the_format_is_kafkas() -> None:
    assert json.loads(subscription(["a", "b"])) == {
        "version": 1,
        "subscription": {"a": 1, "b": 1},
        "pattern": "static",
        "timestamp": "7",
    }
    assert json.loads(subscription(pattern="a.*"))["pattern"] == "white_list"
    assert json.loads(subscription(exclude="a.*"))["pattern"] == "black_list"
    with pytest.raises(ConfigError, match="not both"):
        subscription(pattern="a", exclude="b")


@pytest.mark.parametrize(
    ("data", "threads"),
    [
        (subscription(["a", "new"]), {"c-0": ["a", "new"]}),
        (subscription(pattern="a|b"), {"c-0": ["a", "b"]}),
        (subscription(exclude="a"), {"c-0": ["b"]}),
        (b'{"version":1,"subscription":{"a":2,"b":1}}', {"c-0": ["a", "b"], "c-1": ["a"]}),
    ],
)
def test_topics_and_threads_are_read(data: bytes, threads: dict[str, list[str]]) -> None:
    assert decode_threads("c", data, COUNTS) == threads


@pytest.mark.parametrize("junk", [b"", b"[]", b"{}", b'{"subscription":{"a":"x"}}', b'{"subscription":3}', b"\xff"])
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(ProtocolError, match="the subscription of consumer 'c' cannot be read"):
        decode_threads("c", junk, COUNTS)


def test_shares_are_ranges_over_the_sorted_threads() -> None:
    members = {"c2": subscription(["a", "b"]), "c1": b'{"subscription":{"a":2}}'}
    assert owned_by("c1", members, COUNTS) == [Tp("a", 0)]
    assert owned_by("c2", members, COUNTS) == [Tp("a", 2), Tp("b", 0), Tp("b", 1)]
    assert owned_by("c3", members, COUNTS) == []


@given(
    st.dictionaries(st.text("abc-", min_size=1, max_size=3), st.sets(st.sampled_from("ab"), min_size=1), max_size=5),
    st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.integers(0, 9)}),
)
def test_all_members_agree_and_every_partition_has_one_owner(
    wanted: dict[str, set[str]], counts: dict[str, int]
) -> None:
    members = {name: subscription(sorted(topics)) for name, topics in wanted.items()}
    shares = Counter(tp for name in members for tp in owned_by(name, members, counts))
    every = {Tp(topic, n) for topic in set().union(*wanted.values()) for n in range(counts[topic])} if wanted else set()
    assert shares == Counter(every)


def test_a_thread_is_named_after_its_member() -> None:
    assert thread_of("g_host-1") == "g_host-1-0"


PROPERTIES = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 20, "retry.backoff.ms": 20}

Open = Callable[..., ZooKeeperConsumer]


@pytest.fixture
def connect(zookeeper: str, tmp_path: Path) -> Iterator[Callable[[], ZooKeeper]]:
    """Sessions on a corner of this test's own."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(ZooKeeper(f"{zookeeper}/{tmp_path.name}", session_timeout_ms=6000))


@pytest.fixture
def registry(connect: Callable[[], ZooKeeper]) -> ConsumerRegistry:
    return ConsumerRegistry(connect())


@pytest.fixture
def open_consumer(broker: Kafka, group: str, registry: ConsumerRegistry) -> Iterator[Open]:
    with ExitStack() as stack:

        def opened(registry: ConsumerRegistry = registry, **properties: object) -> ZooKeeperConsumer:
            named = {name.replace("_", "."): value for name, value in properties.items()}
            settings = {**PROPERTIES, "group.id": group, **named}
            return stack.enter_context(ZooKeeperConsumer(broker.bootstrap, registry, settings))

        yield opened


def all_poll(*consumers: ZooKeeperConsumer, into: list[ConsumerRecord] | None = None) -> None:
    for consumer in consumers:
        records = consumer.poll(0.01)
        if into is not None:
            into += records


def test_members_share_partitions_and_take_over_from_one_that_leaves(
    broker: Kafka,
    make_topic: TopicMaker,
    group: str,
    registry: ConsumerRegistry,
    open_consumer: Open,
    connect: Callable[[], ZooKeeper],
) -> None:
    topic, read = make_topic(4), list[ConsumerRecord]()
    produce(broker.bootstrap, topic, 100)
    first, second = open_consumer(), open_consumer(ConsumerRegistry(connect()))
    first.subscribe([topic])
    all_poll(first, into=read)
    assert [tp.partition for tp in first.assignment()] == [0, 1, 2, 3]
    second.subscribe(pattern=f"{topic}|none")

    def shared() -> bool:
        all_poll(first, second, into=read)
        return len(first.assignment()) == len(second.assignment()) == 2

    eventually(shared)
    assert sorted(first.assignment() + second.assignment()) == [TopicPartition(topic, n) for n in range(4)]
    owners = registry.owners(group)
    assert {owners[tp] for tp in second.assignment()} == {f"{second.consumer_id}-0"}
    produce(broker.bootstrap, topic, 100)

    def all_read() -> bool:
        all_poll(first, second, into=read)
        return len({(r.partition, r.offset) for r in read}) == 200

    eventually(all_read)
    assert len(read) == 200, "committed before it was let go: nothing was read twice"
    second.close()

    def taken_over() -> bool:
        all_poll(first)
        return len(first.assignment()) == 4

    eventually(taken_over)
    assert sum(registry.offsets(group).values()) == 200


def test_offsets_are_those_that_other_tools_set(
    broker: Kafka, make_topic: TopicMaker, group: str, registry: ConsumerRegistry, open_consumer: Open
) -> None:
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    produce(broker.bootstrap, topic, 10)
    registry.set_offsets(group, {tp: 7})
    consumer, read = open_consumer(enable_auto_commit=False), list[ConsumerRecord]()
    consumer.subscribe([topic])

    def all_read() -> bool:
        all_poll(consumer, into=read)
        return len(read) == 3

    eventually(all_read)
    assert [record.offset for record in read] == [7, 8, 9]
    assert registry.offsets(group) == {tp: 7}
    consumer.commit()
    assert registry.offsets(group) == {tp: 10}


def test_a_member_whose_session_was_lost_cannot_commit_and_joins_again(
    broker: Kafka,
    make_topic: TopicMaker,
    group: str,
    registry: ConsumerRegistry,
    open_consumer: Open,
    connect: Callable[[], ZooKeeper],
) -> None:
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    consumer = open_consumer(enable_auto_commit=False)
    consumer.subscribe([topic])
    eventually(lambda: not consumer.poll(0.01) and consumer.assignment() == [tp])
    # As if the session had expired, and another member had been faster.
    registry.deregister(group, consumer.consumer_id)
    registry.release(group, tp, f"{consumer.consumer_id}-0")
    other = ConsumerRegistry(connect())
    assert other.claim(group, tp, "other-0")
    with pytest.raises(BrokerError, match="is not the owner any more"):
        consumer.commit()
    eventually(lambda: not consumer.poll(0.01) and consumer.assignment() == [])
    assert consumer.consumer_id in registry.members(group)
    other.release(group, tp, "other-0")
    eventually(lambda: not consumer.poll(0.01) and consumer.assignment() == [tp])


def test_calls_that_cannot_be_meant_are_refused(broker: Kafka, registry: ConsumerRegistry) -> None:
    with pytest.raises(ConfigError, match=r"group\.id is missing"):
        ZooKeeperConsumer(broker.bootstrap, registry)
    with ZooKeeperConsumer(broker.bootstrap, registry, {"group.id": "g"}) as consumer:
        with pytest.raises(PykafkaError, match=r"subscribe\(\) comes before poll\(\)"):
            consumer.poll()
        with pytest.raises(ConfigError, match="to a pattern, or to all but"):
            consumer.subscribe()
