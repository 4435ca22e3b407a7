"""ACLs in ZooKeeper and in a file: Kafka's nodes, what Kafka's tools write, changes at the same time, broken nodes."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.security import make_digest_acl

from broker.errors import ConnectionFailed
from broker.security.acl_decisions import AclSnapshot
from broker.security.acl_types import (
    AccessControlEntry,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)
from broker.zookeeper import acl_store
from broker.zookeeper.acl_store import AclStore, Entries, acl_path
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.operations import ZooKeeperError
from broker.zookeeper.znodes import MalformedNode
from tests.support.waiting import eventually
from tests.support.zookeeper import expire_session
from tests.zookeeper.conftest import Connect

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
T, TEAM = ResourcePattern(TOPIC, "t"), ResourcePattern(TOPIC, "team-", PatternType.PREFIXED)
READ = AccessControlEntry("User:alice", AclOperation.READ)
WRITE = AccessControlEntry("User:müller", AclOperation.WRITE, DENY, "10.0.0.1")
NOBODY = frozenset({AccessControlEntry("User:*", AclOperation.ALL, DENY)})
LITERAL_CHANGES, EXTENDED_CHANGES = "/kafka-acl-changes", "/kafka-acl-extended-changes"


@pytest.fixture(params=["ZooKeeper", "LocalStore"])
def zk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    if request.param == "ZooKeeper":
        connect: Connect = request.getfixturevalue("connect")
        yield connect()
    else:
        with LocalStore(tmp_path / "metadata") as local:
            yield local


@pytest.fixture
def store(zk: MetadataStore) -> AclStore:
    store = AclStore(zk)
    store.ensure_paths()
    return store


def put(store: AclStore, pattern: ResourcePattern, *entries: AccessControlEntry) -> Entries:
    return store.update(pattern, lambda before: before | frozenset(entries))


def take(store: AclStore, pattern: ResourcePattern, *entries: AccessControlEntry) -> Entries:
    return store.update(pattern, lambda before: before - frozenset(entries))


def written(zk: MetadataStore, root: str) -> list[bytes]:
    return [zk.get(f"{root}/{name}")[0] for name in zk.children(root)]


# --- the layout


def test_the_nodes_that_kafkas_tools_expect_are_made(zk: MetadataStore, store: AclStore) -> None:
    types = ["Cluster", "DelegationToken", "Group", "Topic", "TransactionalId", "User"]
    assert zk.children("/kafka-acl") == types
    assert zk.children("/kafka-acl-extended") == ["prefixed"]
    assert zk.children("/kafka-acl-extended/prefixed") == types
    assert zk.exists(LITERAL_CHANGES)
    assert zk.exists(EXTENDED_CHANGES)
    assert store.load() == {}
    store.ensure_paths()


@pytest.mark.parametrize(
    ("pattern", "path", "change"),
    [
        (T, "/kafka-acl/Topic/t", b"TOPIC:t"),
        (ResourcePattern(TOPIC, "*"), "/kafka-acl/Topic/*", b"TOPIC:*"),
        (ResourcePattern(GROUP, "a:b c"), "/kafka-acl/Group/a:b c", b"GROUP:a:b c"),
        (
            ResourcePattern(AclResourceType.CLUSTER, "kafka-cluster"),
            "/kafka-acl/Cluster/kafka-cluster",
            b"CLUSTER:kafka-cluster",
        ),
        (
            ResourcePattern(AclResourceType.TRANSACTIONAL_ID, "tx-ü"),
            "/kafka-acl/TransactionalId/tx-ü",
            "TRANSACTIONAL_ID:tx-ü".encode(),
        ),
    ],
)
def test_a_literal_pattern_is_kept_and_told_as_kafka_does(
    zk: MetadataStore, store: AclStore, pattern: ResourcePattern, path: str, change: bytes
) -> None:
    assert put(store, pattern, READ, WRITE) == {READ, WRITE}
    assert acl_path(pattern) == path
    found = json.loads(zk.get(path)[0])
    assert found.pop("version") == 1
    assert sorted(found.pop("acls"), key=str) == [
        {"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"},
        {"principal": "User:müller", "permissionType": "Deny", "operation": "Write", "host": "10.0.0.1"},
    ]
    assert not found
    assert zk.children(LITERAL_CHANGES) == ["acl_changes_0000000000"]
    assert written(zk, LITERAL_CHANGES) == [change]
    assert written(zk, EXTENDED_CHANGES) == []


def test_a_prefix_is_kept_and_told_as_kafka_does(zk: MetadataStore, store: AclStore) -> None:
    pattern = ResourcePattern(AclResourceType.TRANSACTIONAL_ID, "team-", PatternType.PREFIXED)
    put(store, pattern, AccessControlEntry("User:*", AclOperation.DESCRIBE_CONFIGS))
    path = "/kafka-acl-extended/prefixed/TransactionalId/team-"
    acls = [{"principal": "User:*", "permissionType": "Allow", "operation": "DescribeConfigs", "host": "*"}]
    assert json.loads(zk.get(path)[0]) == {"version": 1, "acls": acls}
    assert zk.children(EXTENDED_CHANGES) == ["acl_changes_0000000000"]
    (told,) = written(zk, EXTENDED_CHANGES)
    change = {"resourceType": "TRANSACTIONAL_ID", "name": "team-", "patternType": "PREFIXED"}
    assert json.loads(told) == {"version": 1, **change}
    assert written(zk, LITERAL_CHANGES) == []


def test_a_pattern_without_entries_has_no_node(zk: MetadataStore, store: AclStore) -> None:
    put(store, T, READ, WRITE)
    assert take(store, T, READ) == {WRITE}
    assert take(store, T, WRITE) == frozenset()
    assert not zk.exists("/kafka-acl/Topic/t")
    assert written(zk, LITERAL_CHANGES) == [b"TOPIC:t"] * 3
    assert store.read([T, TEAM]) == {T: frozenset(), TEAM: frozenset()}


def test_what_changes_nothing_is_not_told(zk: MetadataStore, store: AclStore) -> None:
    put(store, T, READ)
    put(store, T, READ)
    take(store, T, WRITE)
    take(store, TEAM, READ)
    assert written(zk, LITERAL_CHANGES) == [b"TOPIC:t"]
    assert written(zk, EXTENDED_CHANGES) == []


def test_an_acl_is_written_where_its_parents_are_missing(zk: MetadataStore) -> None:
    store = AclStore(zk)
    put(store, T, READ)
    put(store, TEAM, WRITE)
    assert store.load() == {T: {READ}, TEAM: {WRITE}}


# --- what Kafka's tools write


def kafka_node(*acls: Mapping[str, Any]) -> bytes:
    """As Kafka's Jackson writes it, without spaces and in its order of the fields."""
    return json.dumps({"version": 1, "acls": acls}, separators=(",", ":"), ensure_ascii=False).encode()


def kafka_entry(operation: Any = "Read", **changed: Any) -> dict[str, Any]:
    return {
        "principal": "User:alice",
        "permissionType": "Allow",
        "operation": operation,
        "host": "*",
        **changed,
    }


def test_nodes_that_kafkas_tools_wrote_are_read(zk: MetadataStore, store: AclStore) -> None:
    zk.create("/kafka-acl/Topic/t", kafka_node(kafka_entry(), kafka_entry("Write", principal="User:CN=x,O=y")))
    zk.create("/kafka-acl/Topic/*", kafka_node(kafka_entry("All", permissionType="Deny", host="1.2.3.4")))
    zk.create("/kafka-acl/Cluster/kafka-cluster", kafka_node(kafka_entry("IdempotentWrite")))
    zk.create("/kafka-acl/TransactionalId/tx", kafka_node(kafka_entry("DescribeConfigs", principal="User:ü")))
    zk.create("/kafka-acl-extended/prefixed/Group/g", kafka_node(kafka_entry("ClusterAction")))
    assert store.load() == {
        T: {READ, AccessControlEntry("User:CN=x,O=y", AclOperation.WRITE)},
        ResourcePattern(TOPIC, "*"): {AccessControlEntry("User:alice", AclOperation.ALL, DENY, "1.2.3.4")},
        ResourcePattern(AclResourceType.CLUSTER, "kafka-cluster"): {
            AccessControlEntry("User:alice", AclOperation.IDEMPOTENT_WRITE)
        },
        ResourcePattern(AclResourceType.TRANSACTIONAL_ID, "tx"): {
            AccessControlEntry("User:ü", AclOperation.DESCRIBE_CONFIGS)
        },
        ResourcePattern(GROUP, "g", PatternType.PREFIXED): {
            AccessControlEntry("User:alice", AclOperation.CLUSTER_ACTION)
        },
    }


@pytest.mark.parametrize("operation", [one for one in AclOperation if one > AclOperation.ANY], ids=lambda o: o.title)
def test_every_operation_goes_there_and_back(zk: MetadataStore, store: AclStore, operation: AclOperation) -> None:
    entry = AccessControlEntry("User:alice", operation)
    put(store, T, entry)
    assert store.load() == {T: {entry}}


def test_an_empty_node_has_no_acls_as_in_kafka(zk: MetadataStore, store: AclStore) -> None:
    zk.create("/kafka-acl/Topic/t", b"")
    assert store.load() == {T: frozenset()}
    assert put(store, T, READ) == {READ}
    assert store.load() == {T: {READ}}


HOSTILE = [
    b"not json",
    b"\xff\xfe",
    b"{}",
    b"[]",
    b"null",
    b"1",
    b'{"version": 1}',
    b'{"version":1,"acls":null}',
    b'{"version":1,"acls":{}}',
    b'{"version":1,"acls":"x"}',
    b'{"version":1,"acls":[null]}',
    b'{"version":1,"acls":[[]]}',
    b'{"version":1,"acls":[{}]}',
    b'{"acls":[]}',
    b'{"version":2,"acls":[]}',
    b'{"version":"1","acls":[]}',
    b"[" * 200_000,
    b'{"version":1,"acls":' + b"[" * 200_000,
    kafka_node(kafka_entry(), kafka_entry("Fly")),
    kafka_node(kafka_entry(), kafka_entry("Unknown")),
    kafka_node(kafka_entry(), kafka_entry("Any")),
    kafka_node(kafka_entry(operation=3)),
    kafka_node(kafka_entry(permissionType="Maybe")),
    kafka_node(kafka_entry(permissionType=None)),
    kafka_node(kafka_entry(principal=None)),
    kafka_node(kafka_entry(host=["*"])),
    b'{"version":1,"acls":[{"principal":"User:\\ud800","permissionType":"Allow","operation":"Read","host":"*"}]}',
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: ascii(data[:60]))
def test_a_node_that_cannot_be_read_denies_its_pattern_to_all(
    zk: MetadataStore, store: AclStore, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It might deny something. What is denied is this pattern only, and the log names it in a line of bounded size."""
    zk.create("/kafka-acl/Topic/t", data)
    put(store, TEAM, READ)
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        found = store.load()
    assert found == {T: NOBODY, TEAM: {READ}}
    (line,) = caplog.messages
    assert line.startswith("Topic:LITERAL:t is denied to all but super users: /kafka-acl/Topic/t in ZooKeeper holds")
    assert len(line) < 2_000
    acls = AclSnapshot(found, allow_if_none=True)
    assert not acls.allows("User:alice", "1.2.3.4", AclOperation.READ, TOPIC, "t")
    assert acls.allows("User:alice", "1.2.3.4", AclOperation.READ, TOPIC, "team-1")


def test_a_broken_node_denies_all_and_no_change_writes_over_it(zk: MetadataStore, store: AclStore) -> None:
    zk.create("/kafka-acl/Topic/t", b"not json")
    for change in (lambda: put(store, T, READ), lambda: take(store, T, *NOBODY)):
        with pytest.raises(MalformedNode, match="/kafka-acl/Topic/t"):
            change()
    assert zk.get("/kafka-acl/Topic/t")[0] == b"not json"
    assert store.read([T]) == {T: NOBODY}


def test_one_node_that_zookeeper_does_not_give_denies_its_pattern_only(connect: Connect) -> None:
    zk = connect()
    store = AclStore(zk)
    many = [ResourcePattern(TOPIC, f"t{number}") for number in range(20)]
    for pattern in (T, *many):
        put(store, pattern, READ)
    zk._client.set_acls(zk._full(acl_path(T)), [make_digest_acl("somebody", "else", all=True)])
    assert store.load() == {T: NOBODY, **dict.fromkeys(many, frozenset({READ}))}
    with pytest.raises(ZooKeeperError, match="/kafka-acl/Topic/t"):
        take(store, T, READ)


def test_more_acls_than_a_node_holds_are_refused_with_a_reason(zk: MetadataStore, store: AclStore) -> None:
    """ZooKeeper would end the connection, each time that it is sent again."""
    put(store, T, READ)
    many = [AccessControlEntry(f"User:{number}", AclOperation.READ) for number in range(11_000)]
    with pytest.raises(ZooKeeperError, match=r"11001 ACLs in \d+ bytes .* use a prefixed pattern"):
        put(store, T, *many)
    assert store.load() == {T: {READ}}
    assert put(store, T, *many[:8000]) == {READ, *many[:8000]}


def test_what_is_in_the_tree_but_is_no_acl_is_ignored(zk: MetadataStore, store: AclStore) -> None:
    for path in ("/kafka-acl/Planet", "/kafka-acl/Planet/earth", "/kafka-acl-extended/postfixed", "/kafka-acl/x"):
        zk.create(path, b"not json")
    assert store.load() == {}


# --- the codec


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
ENTRIES = st.builds(
    AccessControlEntry,
    TEXTS,
    st.sampled_from([one for one in AclOperation if one > AclOperation.ANY]),
    st.sampled_from([ALLOW, DENY]),
    TEXTS,
)


@given(st.frozensets(ENTRIES, max_size=5))
def test_entries_go_there_and_back(entries: Entries) -> None:
    data = acl_store._encode(entries)
    assert acl_store._decode(T, data) == entries
    assert acl_store._encode(entries) == data, "the same bytes for the same entries"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["User:a", "Read", "Allow", "*", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["version", "acls", "principal", "permissionType", "operation", "host"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@given(st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode())))
def test_any_bytes_are_entries_or_deny_all(data: bytes) -> None:
    found = acl_store._decode(T, data)
    assert isinstance(found, frozenset)
    if found != NOBODY and data:
        document = json.loads(data)
        assert len({json.dumps(one, sort_keys=True) for one in document["acls"]}) >= len(found)
        assert acl_store._decode(T, acl_store._encode(found)) == found


# --- several writers


def test_writers_at_the_same_time_keep_each_others_changes(connect: Connect) -> None:
    stores = [AclStore(connect()) for _ in range(4)]
    stores[0].ensure_paths()
    entries = [[AccessControlEntry(f"User:{w}-{n}", AclOperation.READ) for n in range(10)] for w in range(len(stores))]

    def write(number: int) -> None:
        for entry in entries[number]:
            put(stores[number], T, entry)
            put(stores[number], T, READ)
            take(stores[number], T, READ)
        for entry in entries[number][::2]:
            take(stores[number], T, entry)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].load()[T] - {READ} == {entry for of_one in entries for entry in of_one[1::2]}


@pytest.mark.parametrize("meanwhile", ["created", "changed", "deleted"])
def test_a_change_that_another_made_meanwhile_is_kept(zk: MetadataStore, store: AclStore, meanwhile: str) -> None:
    other = AccessControlEntry("User:bob", AclOperation.READ)
    if meanwhile != "created":
        put(store, T, other)
    calls: list[Entries] = []

    def change(before: Entries) -> Entries:
        calls.append(before)
        if len(calls) == 1:
            if meanwhile == "deleted":
                take(AclStore(zk), T, other)
            else:
                put(AclStore(zk), T, WRITE)
        return before | {READ}

    after = store.update(T, change)
    assert len(calls) == 2
    assert after == calls[1] | {READ} == store.load()[T]
    assert after - {READ} == {"created": {WRITE}, "changed": {WRITE, other}, "deleted": set()}[meanwhile]


def test_a_pattern_that_others_change_again_and_again_is_given_up(zk: MetadataStore, store: AclStore) -> None:
    other = AclStore(zk)
    numbers = itertools.count()

    def change(before: Entries) -> Entries:
        put(other, T, AccessControlEntry(f"User:{next(numbers)}", AclOperation.READ))
        return before | {WRITE}

    with pytest.raises(ZooKeeperError, match="was changed by others 100 times"):
        store.update(T, change)
    assert WRITE not in store.load()[T]


class BreaksInTheEnd(LocalStore):
    """Takes writes only as long as it is told to."""

    writes_left = 1 << 30

    def _commit(self, operations: Any) -> Any:
        if self._session and operations:
            if not self.writes_left:
                raise ConnectionFailed("the store is away")
            self.writes_left -= 1
        return super()._commit(operations)


@pytest.mark.parametrize("writes", [0, 1, 2])
@pytest.mark.parametrize("pattern", [T, TEAM], ids=str)
def test_an_acl_is_never_changed_without_its_notification(
    tmp_path: Path, pattern: ResourcePattern, writes: int
) -> None:
    """Else other brokers would keep a right that was revoked: who tries again finds nothing to change."""
    with BreaksInTheEnd(tmp_path / "metadata") as zk:
        store = AclStore(zk)
        store.ensure_paths()
        put(store, pattern, READ)
        root = EXTENDED_CHANGES if pattern is TEAM else LITERAL_CHANGES
        zk.writes_left = writes
        failed = False
        try:
            take(store, pattern, READ)
        except ConnectionFailed:
            failed = True
        assert (len(zk.children(root)) == 2) is (not zk.exists(acl_path(pattern)))
        zk.writes_left = 1 << 30
        assert take(store, pattern, READ) == frozenset()
        assert len(zk.children(root)) == 2
        assert failed is (writes == 0)


# --- notifications


class Told:
    """What a store's watches told, in order."""

    def __init__(self, store: AclStore) -> None:
        self.patterns: list[ResourcePattern] = []
        self.watches = store.watch(self.patterns.extend)

    def wait_for(self, *patterns: ResourcePattern) -> None:
        eventually(lambda: self.patterns == list(patterns))
        self.patterns.clear()


def test_a_second_store_is_told_of_each_change(connect: Connect) -> None:
    first, second = AclStore(connect()), AclStore(connect())
    first.ensure_paths()
    put(first, T, WRITE)
    told = Told(second)
    told.wait_for(T)  # what was changed before is told, too
    colons = ResourcePattern(GROUP, "PREFIXED:a:b")
    put(first, colons, READ)
    told.wait_for(colons)
    put(first, TEAM, READ)
    told.wait_for(TEAM)
    assert second.read([T, TEAM, colons]) == {T: {WRITE}, TEAM: {READ}, colons: {READ}}
    take(first, T, WRITE)
    told.wait_for(T)
    assert second.read([T]) == {T: frozenset()}


def test_a_file_store_tells_its_own_changes(tmp_path: Path) -> None:
    with LocalStore(tmp_path / "metadata") as local:
        store = AclStore(local)
        store.ensure_paths()
        told = Told(store)
        put(store, TEAM, READ)
        told.wait_for(TEAM)


@pytest.mark.parametrize("name", ["Topic:t", "TOPIC:t", "topic:t"])
def test_changes_by_old_and_new_kafka_are_understood(zk: MetadataStore, store: AclStore, name: str) -> None:
    told = Told(store)
    zk.create(f"{LITERAL_CHANGES}/acl_changes_", name.encode(), sequence=True)
    told.wait_for(T)


@pytest.mark.parametrize("name", ["TransactionalId:a:b", "TRANSACTIONAL_ID:a:b"])
def test_a_change_of_a_transactional_id_is_understood(zk: MetadataStore, store: AclStore, name: str) -> None:
    told = Told(store)
    zk.create(f"{LITERAL_CHANGES}/acl_changes_", name.encode(), sequence=True)
    told.wait_for(ResourcePattern(AclResourceType.TRANSACTIONAL_ID, "a:b"))


HOSTILE_CHANGES = [
    b"",
    b"Topic",
    b"Topic:",
    b"Topic:.",
    b"Topic:..",
    b"Topic:a/b",
    b"Topic:a\0b",
    b"Topic:\xff",
    "Topic:\ufffe".encode(),
    b"Any:t",
    b"Unknown:t",
    b"Planet:earth",
]
HOSTILE_EXTENDED_CHANGES = [
    b"",
    b"Topic:t",
    b"[]",
    b"[" * 200_000,
    b'{"version":1,"resourceType":"TOPIC","name":"t"}',
    b'{"version":1,"resourceType":"TOPIC","name":"","patternType":"PREFIXED"}',
    b'{"version":1,"resourceType":"TOPIC","name":"a/b","patternType":"PREFIXED"}',
    b'{"version":1,"resourceType":"TOPIC","name":"\\ud800","patternType":"PREFIXED"}',
    b'{"version":1,"resourceType":"TOPIC","name":null,"patternType":"PREFIXED"}',
    b'{"version":1,"resourceType":"ANY","name":"t","patternType":"PREFIXED"}',
    b'{"version":1,"resourceType":"TOPIC","name":"t","patternType":"MATCH"}',
    b'{"version":1,"resourceType":["TOPIC"],"name":"t","patternType":"PREFIXED"}',
    b'{"version":2,"resourceType":"TOPIC","name":"t","patternType":"PREFIXED"}',
    b'{"version":"1","resourceType":"TOPIC","name":"t","patternType":"PREFIXED"}',
    b'{"resourceType":"TOPIC","name":"t","patternType":"PREFIXED"}',
]


def test_changes_that_cannot_be_read_keep_none_of_the_others_waiting(zk: MetadataStore, store: AclStore) -> None:
    told = Told(store)
    for root, nodes in ((LITERAL_CHANGES, HOSTILE_CHANGES), (EXTENDED_CHANGES, HOSTILE_EXTENDED_CHANGES)):
        for data in nodes:
            zk.create(f"{root}/acl_changes_", data, sequence=True)
    put(store, T, READ)
    put(store, TEAM, READ)
    eventually(lambda: {T, TEAM} <= set(told.patterns))
    store.read(told.patterns)  # none of them fails
    assert set(told.patterns) == {T, TEAM}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=30))
def test_any_change_names_patterns_that_can_be_read_or_is_refused(zk: MetadataStore, data: bytes) -> None:
    for decode in (acl_store._decode_literal_change, acl_store._decode_extended_change):
        for name in (data, b"Topic:" + data):
            try:
                patterns = decode("/x", name)
            except MalformedNode:
                continue
            AclStore(zk).read(patterns)


def test_notifications_that_came_during_an_outage_are_told_afterwards(connect: Connect) -> None:
    zk = connect()
    store = AclStore(zk)
    store.ensure_paths()
    told = Told(store)
    put(store, T, READ)
    told.wait_for(T)
    other = AclStore(connect())
    expire_session(zk)
    put(other, TEAM, READ)
    told.wait_for(TEAM)
