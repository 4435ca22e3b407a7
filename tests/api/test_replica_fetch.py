"""A leader and its followers over the wire: a real broker leads, and the test fetches as brokers 1 and 2 do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import BrokerInfo
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.registry import Registry
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import LATEST, Requests, ask_for, batch, fetch_body, records_of
from tests.support.waiting import eventually

LEADER, FIRST, SECOND = 0, 1, 2
SETTINGS = {"broker.id": "0", "min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def leader(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("leader"), SETTINGS, zookeeper=f"{zookeeper}/leader") as process:
        yield process
    assert "Traceback" not in process.output, process.output[-4000:]


@pytest.fixture(scope="module")
def registry(leader: BrokerProcess) -> Iterator[Registry]:
    with followers_of(leader) as registry:
        yield registry


@contextmanager
def followers_of(leader: BrokerProcess) -> Iterator[Registry]:
    """The followers are registered here, so that no controller takes them for dead."""
    zk = ZooKeeper(leader.zookeeper, session_timeout_ms=30_000, operation_timeout_s=10.0).start()
    registry = Registry(zk)
    for broker in (FIRST, SECOND):
        registry.register_broker(BrokerInfo.plaintext(broker, "127.0.0.1", 1))
    yield registry
    zk.close()


class Replicated:
    """A topic of one partition on all three brokers, a producer, and the two followers."""

    def __init__(self, leader: BrokerProcess, registry: Registry, name: str) -> None:
        self.tp = TopicPartition(name, 0)
        self.registry = registry
        self.ask = Requests(leader.bootstrap)
        self.followers = {broker: Requests(leader.bootstrap) for broker in (FIRST, SECOND)}
        registry.create_topic(name, {0: (LEADER, FIRST, SECOND)})
        eventually(lambda: self.ask.metadata(name).topics[0].error_code is ErrorCode.none)

    def close(self) -> None:
        for one in (self.ask, *self.followers.values()):
            one.close()

    @property
    def isr(self) -> set[int]:
        return set(self.registry.partition_states([self.tp])[self.tp].isr)

    @property
    def shown(self) -> set[int]:
        """The ISR that the leader tells."""
        return set(self.ask.metadata(self.tp.topic).topics[0].partitions[0].isr_nodes)

    @property
    def epoch(self) -> int:
        return self.registry.partition_states([self.tp])[self.tp].leader_epoch

    def rewrite(self, **changed: Any) -> None:
        """Change the state as a controller does; again when the leader has changed it at the same time."""

        def is_written() -> bool:
            state = self.registry.partition_states([self.tp])[self.tp]
            return self.registry.write_states({self.tp: dataclasses.replace(state, **changed)}) == {self.tp}

        eventually(is_written)

    def begin_put(self, *values: bytes, timeout_ms: int = 20_000, records: bytes = b"") -> None:
        data = [{"index": 0, "records": records or batch(*values)}]
        body = {"transactional_id": None, "acks": -1, "timeout": timeout_ms}
        self.ask.send(ApiKey.PRODUCE, {**body, "topic_data": [{"name": self.tp.topic, "partition_data": data}]})

    def end_put(self) -> Any:
        return self.ask.receive(ApiKey.PRODUCE).responses[0].partition_responses[0]

    def fetch(self, replica: int, offset: int, *, last_epoch: int = -1, max_wait: int = 0, **changed: Any) -> Any:
        """One fetch of a follower that has all records before `offset`."""
        wanted = ask_for(self.tp.topic, offset, epoch=changed.pop("epoch", self.epoch))
        wanted["partitions"][0]["last_fetched_epoch"] = last_epoch
        body = {**fetch_body([wanted], max_wait=max_wait), "replica_id": replica}
        version = changed.pop("version", 12)
        return self.followers[min(replica, SECOND)].ask(ApiKey.FETCH, body, version).responses[0].partitions[0]

    def read(self, offset: int = 0) -> Any:
        (found,) = self.ask.fetch([ask_for(self.tp.topic, offset)], version=12)
        return found


@pytest.fixture
def replicated(leader: BrokerProcess, registry: Registry, topic: str) -> Iterator[Replicated]:
    made = Replicated(leader, registry, topic)
    yield made
    made.close()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[Callable[[str], Replicated]]:
    """A leader that soon misses a silent follower, though not before a test on a busy machine has begun."""
    settings = {**SETTINGS, "replica.lag.time.max.ms": "4000"}
    with (
        BrokerProcess(tmp_path_factory.mktemp("impatient"), settings, zookeeper=f"{zookeeper}/impatient") as process,
        followers_of(process) as registry,
    ):
        yield partial(Replicated, process, registry)


@pytest.fixture
def missed(impatient: Callable[[str], Replicated], topic: str) -> Iterator[Replicated]:
    with closing(impatient(topic)) as made:
        yield made


def test_an_append_is_acknowledged_and_shown_when_all_in_sync_replicas_have_it(replicated: Replicated) -> None:
    replicated.begin_put(b"a", b"b")
    eventually(lambda: len(records_of(replicated.fetch(FIRST, 0))) == 2)
    assert replicated.fetch(FIRST, 2, last_epoch=0).high_watermark == 0
    with Requests("127.0.0.1:" + str(replicated.ask.socket.getpeername()[1])) as reader:
        (found,) = reader.fetch([ask_for(replicated.tp.topic)], version=12)
        assert (found.error_code, found.high_watermark, found.records or b"") == (ErrorCode.none, 0, b"")
        assert replicated.fetch(SECOND, 2, last_epoch=0).high_watermark == 2
        (found,) = reader.fetch([ask_for(replicated.tp.topic)], version=12)
        assert [record.value for record in records_of(found)] == [b"a", b"b"]
    answer = replicated.end_put()
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)


def test_what_is_not_replicated_in_time_is_in_the_log_and_not_acknowledged(replicated: Replicated) -> None:
    replicated.begin_put(b"a", timeout_ms=50)
    answer = replicated.end_put()
    assert (answer.error_code, answer.base_offset) == (ErrorCode.request_timed_out, 0)
    assert len(records_of(replicated.fetch(FIRST, 0))) == 1
    assert replicated.read().high_watermark == 0


def test_silent_followers_leave_the_isr_and_one_that_catches_up_comes_back(missed: Replicated) -> None:
    missed.begin_put(b"a", timeout_ms=1)
    assert missed.end_put().error_code is ErrorCode.request_timed_out
    eventually(lambda: missed.isr == missed.shown == {LEADER})
    missed.begin_put(b"b")
    refused = missed.end_put()
    assert (refused.error_code, refused.log_start_offset) == (ErrorCode.not_enough_replicas, 0)
    assert "min.insync.replicas=2" in refused.error_message
    missed.fetch(FIRST, 0)
    assert missed.isr == {LEADER}

    def watermark() -> int:
        """It leaves the ISR again when it has not fetched for a while."""
        return int(missed.fetch(FIRST, 1, last_epoch=0).high_watermark)

    eventually(lambda: watermark() == 1 and missed.isr == missed.shown == {LEADER, FIRST})


def test_a_duplicate_waits_for_replicas_and_is_not_refused(missed: Replicated) -> None:
    """A refused duplicate would make librdkafka send the records once more, in a new producer epoch."""
    producer = {"producer_id": 7, "producer_epoch": 0}
    sent = batch(b"a", **producer, base_sequence=0)
    missed.begin_put(records=sent, timeout_ms=1)
    assert missed.end_put().error_code is ErrorCode.request_timed_out
    eventually(lambda: missed.isr == missed.shown == {LEADER})
    missed.begin_put(records=batch(b"b", **producer, base_sequence=1))
    assert missed.end_put().error_code is ErrorCode.not_enough_replicas
    missed.begin_put(records=sent)
    eventually(lambda: missed.fetch(FIRST, 1, last_epoch=0).high_watermark == 1)
    answer = missed.end_put()
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)


def test_a_follower_waits_for_an_append_and_a_consumer_for_the_watermark(replicated: Replicated) -> None:
    wanted = ask_for(replicated.tp.topic, epoch=replicated.epoch)
    body = {**fetch_body([wanted], max_wait=20_000), "replica_id": FIRST}
    replicated.followers[FIRST].send(ApiKey.FETCH, body, 12)
    replicated.fetch(SECOND, 0)
    replicated.begin_put(b"a")
    answer = replicated.followers[FIRST].receive(ApiKey.FETCH, 12)
    assert len(records_of(answer.responses[0].partitions[0])) == 1
    assert replicated.fetch(SECOND, 1, last_epoch=0).high_watermark == 0
    assert replicated.fetch(FIRST, 1, last_epoch=0).high_watermark == 1
    assert replicated.end_put().error_code is ErrorCode.none


def test_a_log_that_has_diverged_is_told_where_and_does_not_count(replicated: Replicated) -> None:
    replicated.begin_put(b"a", b"b", timeout_ms=50)
    replicated.end_put()
    found = replicated.fetch(FIRST, 5, last_epoch=0, max_wait=20_000)
    assert (found.error_code, found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (ErrorCode.none, 0, 2)
    replicated.fetch(SECOND, 2, last_epoch=0)
    assert replicated.read().high_watermark == 0
    assert replicated.fetch(FIRST, 5, last_epoch=3).error_code is ErrorCode.offset_out_of_range
    assert replicated.fetch(FIRST, 9).error_code is ErrorCode.offset_out_of_range
    assert replicated.read().high_watermark == 0


def test_a_follower_that_waits_in_a_session_is_counted_again_after_a_new_state(
    replicated: Replicated, leader: BrokerProcess
) -> None:
    """The leader forgets its position, and reads nothing of a partition without news."""
    ask, session = replicated.followers[FIRST], {"session_id": 0, "session_epoch": 0}
    wanted = ask_for(replicated.tp.topic, epoch=replicated.epoch)

    def fetch(*wanted: Any, max_wait: int = 0) -> None:
        answer = ask.ask(ApiKey.FETCH, {**fetch_body(wanted, max_wait=max_wait, **session), "replica_id": FIRST}, 12)
        assert answer.error_code is ErrorCode.none
        session.update(session_id=answer.session_id, session_epoch=session["session_epoch"] + 1)

    fetch(wanted)
    body = {**fetch_body((), max_wait=500, **session), "replica_id": FIRST}
    ask.send(ApiKey.FETCH, body, 12)
    replicated.rewrite(isr=(LEADER, SECOND))
    zk = ZooKeeper(leader.zookeeper, session_timeout_ms=6000, operation_timeout_s=10.0).start()
    ChangeNotifications(zk).notify_isr_change([replicated.tp])
    zk.close()
    assert ask.receive(ApiKey.FETCH, 12).error_code is ErrorCode.none
    session["session_epoch"] += 1
    assert FIRST not in replicated.isr

    def is_back() -> bool:
        fetch()  # again, for the leader may hear of the state after the fetch
        return FIRST in replicated.isr

    eventually(is_back)


def test_a_new_leader_gives_no_latest_offset_before_its_watermark_has_reached_its_epoch(
    leader: BrokerProcess, replicated: Replicated
) -> None:
    replicated.begin_put(b"a", timeout_ms=50)
    replicated.end_put()
    replicated.rewrite(leader_epoch=replicated.epoch + 1)
    zk = ZooKeeper(leader.zookeeper, session_timeout_ms=6000, operation_timeout_s=10.0).start()
    ChangeNotifications(zk).notify_isr_change([replicated.tp])
    zk.close()

    def latest() -> Any:
        return replicated.ask.list_offset(replicated.tp.topic, LATEST)

    eventually(lambda: latest().error_code is ErrorCode.offset_not_available)
    old = replicated.ask.list_offset(replicated.tp.topic, LATEST, version=4)
    assert old.error_code is ErrorCode.leader_not_available
    for follower in replicated.followers:
        replicated.fetch(follower, 1, last_epoch=0)
    assert (latest().error_code, latest().offset, latest().leader_epoch) == (ErrorCode.none, 1, 1)
    record = replicated.ask.list_offset(replicated.tp.topic, 0)
    assert (record.offset, record.leader_epoch) == (0, 0), "the epoch of the record, not of its leader"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"epoch": 1}, ErrorCode.unknown_leader_epoch),
        ({"epoch": -1}, ErrorCode.not_leader_or_follower),
        ({"version": 11}, ErrorCode.not_leader_or_follower),
        ({"replica": 7}, ErrorCode.unknown_leader_epoch),
    ],
    ids=["another epoch", "no epoch", "no last epoch", "a stranger"],
)
def test_a_fetch_that_proves_nothing_is_refused(
    replicated: Replicated, changed: dict[str, Any], code: ErrorCode
) -> None:
    assert replicated.fetch(changed.pop("replica", FIRST), 0, **changed).error_code is code


def test_a_deposed_leader_acknowledges_nothing_and_says_so(missed: Replicated) -> None:
    missed.begin_put(b"a")
    eventually(lambda: len(records_of(missed.fetch(FIRST, 0))) == 1)
    missed.rewrite(leader=FIRST, leader_epoch=missed.epoch + 1, isr=(FIRST, SECOND))
    missed.fetch(FIRST, 1, last_epoch=0, epoch=0)
    # The leader wants the silent follower out of the ISR, loses the race, and reads the state.
    assert missed.end_put().error_code is ErrorCode.not_leader_or_follower
    codes = {epoch: missed.fetch(FIRST, 1, epoch=epoch).error_code for epoch in range(3)}
    assert codes == {
        0: ErrorCode.fenced_leader_epoch,
        1: ErrorCode.not_leader_or_follower,
        2: ErrorCode.unknown_leader_epoch,
    }, "as a follower it still compares epochs"
    # From Produce 10 and Fetch 16 on, a client is told who leads (KIP-951).
    missed.begin_put(b"b")
    refused = missed.ask.receive(ApiKey.PRODUCE)
    leader_of = refused.responses[0].partition_responses[0].current_leader
    assert (leader_of.leader_id, leader_of.leader_epoch) == (FIRST, 1)
    assert [(at.node_id, at.host, at.port) for at in refused.node_endpoints] == [(FIRST, "127.0.0.1", 1)]
    topic_id = missed.ask.metadata(missed.tp.topic).topics[0].topic_id
    for epoch, told in ((0, (FIRST, 1)), (2, (-1, -1))):
        answer = missed.ask.ask(ApiKey.FETCH, fetch_body([ask_for(topic_id, 0, epoch=epoch)]), 16)
        leader_of = answer.responses[0].partitions[0].current_leader
        assert (leader_of.leader_id, leader_of.leader_epoch) == told
        assert [at.node_id for at in answer.node_endpoints] == ([FIRST] if told[0] == FIRST else [])
