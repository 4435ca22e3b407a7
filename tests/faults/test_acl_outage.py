"""ACLs through crashes and outages: what was revoked stays revoked, what was allowed goes on, and changes arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.security.acl_types import AccessControlEntry, AclOperation, AclResourceType, ResourcePattern
from broker.zookeeper.acl_store import AclStore
from broker.zookeeper.client import ZooKeeper
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import ZOOKEEPER, LinkedCluster
from tests.support.logged_in import LoggedIn, acl_settings
from tests.support.raw_requests import ask_for, batch, fetch_body
from tests.support.waiting import eventually
from tests.support.zookeeper import ZooKeeperServer

ALICE, BOB = "alice", "bob"
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
DENIED = ErrorCode.topic_authorization_failed
PROMPT_S = 1.0
"""How soon a change of rights counts on all brokers."""
SETTINGS = {
    **acl_settings(ALICE, BOB),
    "zookeeper.session.timeout.ms": "4000",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class Pair(NamedTuple):
    """Two brokers: A, on which rights are changed, and B, which leads the topics."""

    zookeeper: ZooKeeperServer
    a: BrokerProcess
    b: BrokerProcess
    chroot: str


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """For one test after the other, which may kill it."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def pair(tmp_path: Path, server: ZooKeeperServer) -> Iterator[Pair]:
    if server.pid is None:  # a test failed while it was away
        server.start()
    chroot = server.chroot()
    a, b = (
        BrokerProcess(tmp_path / name, {**SETTINGS, "broker.id": id}, zookeeper=chroot)
        for id, name in (("1", "a"), ("2", "b"))
    )
    try:
        with a, b:
            yield Pair(server, a, b, chroot)
    finally:
        a.kill()
        b.kill()
    for broker in (a, b):
        assert "Traceback" not in broker.output, broker.output[-4000:]


def topic_on_b(pair: Pair, root: LoggedIn, name: str) -> None:
    """B hears of it from ZooKeeper, after the answer: a test may end that at once."""
    assignment = [{"partition_index": 0, "broker_ids": [2]}]
    counts = {"num_partitions": -1, "replication_factor": -1}
    (made,) = root.create_topics({"name": name, **counts, "assignments": assignment})
    assert made.error_code is ErrorCode.none, made
    with LoggedIn(pair.b.bootstrap) as leader:
        eventually(lambda: fetched(leader, name) is ErrorCode.none)


def fetched(ask: LoggedIn, topic: str) -> ErrorCode:
    (found,) = ask.fetch([ask_for(topic)], version=12)
    assert found.error_code is ErrorCode.none or not found.records
    return ErrorCode(found.error_code)


def produced(ask: LoggedIn, topic: str) -> ErrorCode:
    return ErrorCode(ask.produce({(topic, 0): batch(b"x")})[topic, 0].error_code)


def described(ask: LoggedIn, topic: str) -> ErrorCode:
    return ErrorCode(ask.metadata(topic).topics[0].error_code)


def test_a_revoked_right_stops_connected_clients_of_another_broker_at_once(pair: Pair) -> None:
    """The best of three tries counts: other processes take their share of the machine."""
    taken = []
    with (
        LoggedIn(pair.a.bootstrap) as root,
        LoggedIn(pair.b.bootstrap, ALICE) as consumer,
        LoggedIn(pair.b.bootstrap, ALICE) as producer,
    ):
        topic_on_b(pair, root, "t")
        for _ in range(3):
            root.allow(ALICE, READ, WRITE, topic="t")
            eventually(lambda: produced(producer, "t") is ErrorCode.none)
            eventually(lambda: fetched(consumer, "t") is ErrorCode.none)
            root.revoke(ALICE, READ, WRITE, topic="t")
            started = time.monotonic()
            eventually(lambda: fetched(consumer, "t") is DENIED, interval=0.002)
            eventually(lambda: produced(producer, "t") is DENIED, interval=0.002)
            taken.append(time.monotonic() - started)
        print(f"revoked on the other broker after {', '.join(f'{one * 1000:.0f} ms' for one in taken)}")
        assert min(taken) < PROMPT_S, taken
        assert max(taken) < 5
        with LoggedIn(pair.b.bootstrap) as other:
            end = other.list_offset("t", -1).offset
            assert produced(producer, "t") is DENIED
            assert other.list_offset("t", -1).offset == end


def test_a_fetch_that_waits_gets_nothing_that_came_after_the_right_was_revoked(pair: Pair) -> None:
    with (
        LoggedIn(pair.a.bootstrap) as root,
        LoggedIn(pair.b.bootstrap) as leader,
        LoggedIn(pair.b.bootstrap, ALICE) as waiting,
        LoggedIn(pair.b.bootstrap, ALICE) as asking,
    ):
        topic_on_b(pair, root, "t")
        root.allow(ALICE, READ, topic="t")
        eventually(lambda: fetched(asking, "t") is ErrorCode.none)
        waiting.send(ApiKey.FETCH, fetch_body([ask_for("t")], max_wait=60_000), 12)
        root.revoke(ALICE, READ, topic="t")
        eventually(lambda: fetched(asking, "t") is DENIED)
        assert produced(leader, "t") is ErrorCode.none
        (found,) = waiting.receive(ApiKey.FETCH, 12).responses[0].partitions
        assert found.error_code is DENIED
        assert not found.records
        assert found.high_watermark == -1


def test_acls_survive_the_crash_of_everything(pair: Pair) -> None:
    with LoggedIn(pair.a.bootstrap) as root:
        topic_on_b(pair, root, "t")
        topic_on_b(pair, root, "team-1")
        root.allow(ALICE, READ, topic="t")
        root.allow(ALICE, WRITE, topic="team-*")
        root.allow(BOB, READ, topic="t")
        root.revoke(BOB, READ, topic="t")
        before = root.acls()
    assert len(before) == 2
    for broker in (pair.a, pair.b):
        broker.kill()
    pair.zookeeper.kill()
    pair.zookeeper.start()
    for broker in (pair.b, pair.a):
        broker.start()
        with LoggedIn(broker.bootstrap) as root:
            assert root.acls() == before
    with LoggedIn(pair.b.bootstrap, ALICE) as alice, LoggedIn(pair.b.bootstrap, BOB) as bob:
        eventually(lambda: fetched(alice, "t") is ErrorCode.none)
        eventually(lambda: produced(alice, "team-1") is ErrorCode.none)
        assert produced(alice, "t") is DENIED
        assert fetched(bob, "t") is DENIED


def test_a_broker_that_was_down_knows_at_its_start_what_was_revoked_meanwhile(pair: Pair) -> None:
    with LoggedIn(pair.a.bootstrap) as root:
        topic_on_b(pair, root, "t")
        root.allow(ALICE, READ, WRITE, topic="t")
        with LoggedIn(pair.b.bootstrap, ALICE) as alice:
            eventually(lambda: fetched(alice, "t") is ErrorCode.none)
        pair.b.kill()
        root.revoke(ALICE, READ, topic="t")
    pair.b.start()
    with LoggedIn(pair.b.bootstrap, ALICE) as alice:
        assert fetched(alice, "t") is DENIED, "from its first answer on"
        eventually(lambda: produced(alice, "t") is ErrorCode.none)


def test_during_an_outage_of_zookeeper_decisions_stay_and_changes_are_refused(pair: Pair) -> None:
    with (
        LoggedIn(pair.a.bootstrap, timeout_s=60) as root,
        LoggedIn(pair.b.bootstrap, ALICE) as alice,
        LoggedIn(pair.b.bootstrap, BOB) as bob,
    ):
        for name in ("t", "team-1", "team-2", "closed"):
            topic_on_b(pair, root, name)
        root.allow(ALICE, READ, WRITE, topic="t")
        root.allow(ALICE, READ, topic="team-*")
        eventually(lambda: fetched(alice, "team-1") is ErrorCode.none)
        before = root.acls()
        pair.zookeeper.kill()

        started = time.monotonic()
        creation = {"resource_type": 2, "resource_name": "closed", "resource_pattern_type": 3}
        entry = {"principal": f"User:{ALICE}", "host": "*", "operation": 3, "permission_type": 3}
        (refused,) = root.ask(ApiKey.CREATE_ACLS, {"creations": [{**creation, **entry}]}).results
        assert refused.error_code is ErrorCode.request_timed_out
        assert "ZooKeeper" in refused.error_message
        with pytest.raises(AssertionError, match="request_timed_out"):
            root.revoke(ALICE, READ, topic="t")
        assert time.monotonic() - started < 30
        assert root.acls() == before

        for _ in range(20):
            assert fetched(alice, "t") is ErrorCode.none
            assert produced(alice, "t") is ErrorCode.none
            assert fetched(alice, "team-2") is ErrorCode.none, "it was not asked for before"
            for denied in (fetched(alice, "closed"), produced(alice, "team-1"), fetched(bob, "t"), produced(bob, "t")):
                assert denied is DENIED

        pair.zookeeper.start()

        def is_allowed() -> bool:
            try:
                root.allow(BOB, READ, topic="t")
            except AssertionError:
                return False
            return True

        eventually(is_allowed)
        eventually(lambda: fetched(bob, "t") is ErrorCode.none)
        assert fetched(alice, "closed") is DENIED


def test_a_change_that_was_made_elsewhere_arrives_when_zookeeper_is_back(pair: Pair) -> None:
    with LoggedIn(pair.a.bootstrap) as root, LoggedIn(pair.b.bootstrap, ALICE) as alice:
        topic_on_b(pair, root, "t")
        root.allow(ALICE, READ, topic="t")
        eventually(lambda: fetched(alice, "t") is ErrorCode.none)
        pair.zookeeper.kill()
        assert fetched(alice, "t") is ErrorCode.none
        pair.zookeeper.start()
        with ZooKeeper(pair.chroot) as zk:  # as Kafka's tools do
            entry = AccessControlEntry(f"User:{ALICE}", READ)
            AclStore(zk).update(ResourcePattern(AclResourceType.TOPIC, "t"), lambda before: before - {entry})
        eventually(lambda: fetched(alice, "t") is DENIED)
        with LoggedIn(pair.a.bootstrap, ALICE) as other:
            eventually(lambda: described(other, "t") is DENIED)


def test_a_broker_that_hung_notes_what_was_revoked_meanwhile(pair: Pair) -> None:
    """Longer than its session, so that its watches are gone."""
    with LoggedIn(pair.a.bootstrap) as root, LoggedIn(pair.b.bootstrap, ALICE) as alice:
        topic_on_b(pair, root, "t")
        root.allow(ALICE, DESCRIBE, topic="t")
        eventually(lambda: described(alice, "t") is ErrorCode.none)
        pair.b.pause()
        root.revoke(ALICE, DESCRIBE, topic="t")
        eventually(lambda: len(root.metadata().brokers) == 1)
        pair.b.resume()
        eventually(lambda: described(alice, "t") is DENIED)


def test_a_broker_that_is_cut_off_keeps_its_acls_and_notes_the_changes_afterwards(tmp_path: Path) -> None:
    settings = {
        key.replace("clients", "plaintext"): value.replace("CLIENTS", "PLAINTEXT") for key, value in SETTINGS.items()
    }
    with LinkedCluster(2, tmp_path, settings) as cluster:
        first, second = (cluster.brokers[id].bootstrap for id in (1, 2))
        with LoggedIn(first) as root, LoggedIn(second, ALICE) as alice, LoggedIn(second, BOB) as bob:
            root.create("t")
            root.allow(ALICE, DESCRIBE, topic="t")
            eventually(lambda: described(alice, "t") is ErrorCode.none)
            cluster.links.cut(2, ZOOKEEPER)
            root.revoke(ALICE, DESCRIBE, topic="t")
            root.allow(BOB, DESCRIBE, topic="t")
            eventually(lambda: len(root.metadata().brokers) == 1)  # its session is over
            assert described(alice, "t") is ErrorCode.none, "the last known ACLs decide"
            assert described(bob, "t") is DENIED
            cluster.links.heal()
            eventually(lambda: described(alice, "t") is DENIED)
            eventually(lambda: described(bob, "t") is ErrorCode.none)
