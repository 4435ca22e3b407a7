"""The ACLs of a broker: they follow the cluster's, and stay as they were last known while the store is away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.cluster import acls as acls_module
from broker.cluster.acls import Acls, Deleted, check_acl
from broker.errors import BrokerError, ConnectionFailed, ErrorCode
from broker.security.acl_types import (
    AccessControlEntry,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)
from broker.security.authorizer import Authorizer
from broker.zookeeper.acl_store import AclStore, Entries, acl_path
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.operations import BadVersion, Operation, ZooKeeperError
from broker.zookeeper.registry import Registry

TOPIC, GROUP, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
T, U, TEAM = ResourcePattern(TOPIC, "t"), ResourcePattern(TOPIC, "u"), ResourcePattern(TOPIC, "team-", PREFIXED)
READ = AccessControlEntry("User:alice", AclOperation.READ)
WRITE = AccessControlEntry("User:alice", AclOperation.WRITE)
DENIED = AccessControlEntry("User:alice", AclOperation.READ, AclPermission.DENY)


class FlakyStore(AclStore):
    """Fails with `failure` while it is set; `before_answer` is called when something was read, before it is told."""

    failure: Exception | None = None
    load_failure: Exception | None = None
    """Of the next load."""
    calls = 0
    before_answer: Callable[[], None] = staticmethod(lambda: None)

    def _check(self) -> None:
        self.calls += 1
        if self.failure is not None:
            raise self.failure

    def load(self) -> dict[ResourcePattern, Entries]:
        if self.load_failure is not None:
            failure, self.load_failure = self.load_failure, None
            raise failure
        return super().load()

    def read(self, patterns: Collection[ResourcePattern]) -> dict[ResourcePattern, Entries]:
        self._check()
        found = super().read(patterns)
        self.before_answer()
        return found

    def update(self, pattern: ResourcePattern, change: Callable[[Entries], Entries]) -> Entries:
        self._check()
        return super().update(pattern, change)


class Alice(NamedTuple):
    principal: str = "User:alice"
    host: str = "10.0.0.1"
    listener: str = "CLIENTS"


class Action:
    def __init__(self, operation: AclOperation) -> None:
        self.operation = operation
        self.resource = TOPIC
        self.request = "Fetch"


READING, WRITING = Action(AclOperation.READ), Action(AclOperation.WRITE)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    with LocalStore(tmp_path / "metadata") as local:
        yield local


@pytest.fixture
def store(local: LocalStore) -> FlakyStore:
    store = FlakyStore(local)
    store.ensure_paths()
    return store


@pytest.fixture
def other(local: LocalStore) -> AclStore:
    """Another broker's, which nothing happens to."""
    return AclStore(local)


@pytest.fixture
def authorizer() -> Authorizer:
    return Authorizer({"User:root"})


@pytest.fixture
def acls(local: LocalStore, store: FlakyStore, authorizer: Authorizer) -> Iterator[Acls]:
    calls = ClusterStore(Registry(local), ChangeNotifications(local))
    yield Acls(store, calls, authorizer, allow_if_none=False)
    calls.close()


@pytest.fixture
async def running(acls: Acls, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Acls]:
    """In the order in which a broker starts them."""
    monkeypatch.setattr(acls_module, "RETRY_S", 0.01)
    watches = acls.watch()
    await acls.load()
    task = asyncio.ensure_future(acls.run())
    yield acls
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    for watch in watches:
        watch.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def known(acls: Acls) -> dict[ResourcePattern, set[AccessControlEntry]]:
    return {pattern: set(entries) for pattern, entries in acls.current.acls.items()}


def put(store: AclStore, pattern: ResourcePattern, *entries: AccessControlEntry) -> None:
    store.update(pattern, lambda before: before | frozenset(entries))


def take(store: AclStore, pattern: ResourcePattern, *entries: AccessControlEntry) -> None:
    store.update(pattern, lambda before: before - frozenset(entries))


# --- what the cluster has agreed


async def test_the_authorizer_decides_by_what_is_loaded(acls: Acls, other: AclStore, authorizer: Authorizer) -> None:
    put(other, T, READ)
    put(other, TEAM, WRITE)
    await acls.load()
    assert known(acls) == {T: {READ}, TEAM: {WRITE}}
    assert authorizer.allows(Alice(), READING, "t")
    assert authorizer.allows(Alice(), WRITING, "team-1")
    assert not authorizer.allows(Alice(), WRITING, "t")


@pytest.mark.parametrize("everyone", [True, False])
async def test_whether_everyone_may_use_what_has_no_acl_stays_over_changes(
    local: LocalStore, store: FlakyStore, authorizer: Authorizer, everyone: bool
) -> None:
    calls = ClusterStore(Registry(local), ChangeNotifications(local))
    acls = Acls(store, calls, authorizer, allow_if_none=everyone)
    await acls.load()
    assert authorizer.allows(Alice(), READING, "u") is everyone
    await acls.create([Acl(T, READ)])
    assert authorizer.allows(Alice(), READING, "u") is everyone
    assert authorizer.allows(Alice(), READING, "t")
    assert not authorizer.allows(Alice(), WRITING, "t")
    calls.close()


async def test_an_acl_is_in_force_here_when_its_creation_is_answered(acls: Acls, authorizer: Authorizer) -> None:
    await acls.load()
    assert not authorizer.allows(Alice(), READING, "t")
    assert await acls.create([Acl(T, READ), Acl(T, WRITE), Acl(TEAM, READ)]) == [None, None, None]
    assert authorizer.allows(Alice(), READING, "t")
    assert authorizer.allows(Alice(), READING, "team-x")
    ((found,),) = await acls.delete([AclFilter(TOPIC, "t", LITERAL, operation=AclOperation.READ)])  # type: ignore[misc]
    assert found == Deleted(Acl(T, READ), None)
    assert not authorizer.allows(Alice(), READING, "t")
    assert authorizer.allows(Alice(), WRITING, "t")


async def test_changes_of_others_arrive(running: Acls, other: AclStore, authorizer: Authorizer) -> None:
    await asyncio.to_thread(put, other, T, READ)
    await until(lambda: authorizer.allows(Alice(), READING, "t"))
    await asyncio.to_thread(put, other, TEAM, DENIED)
    await until(lambda: TEAM in running.current.acls)
    await asyncio.to_thread(take, other, T, READ)
    await until(lambda: not authorizer.allows(Alice(), READING, "t"))
    assert known(running) == {TEAM: {DENIED}}


async def test_creating_again_and_together_is_no_error(acls: Acls, other: AclStore) -> None:
    await acls.load()
    wanted = [Acl(T, READ), Acl(T, READ), Acl(U, WRITE)]
    assert await acls.create(wanted) == [None, None, None]
    assert await acls.create(wanted) == [None, None, None]
    assert other.load() == {T: {READ}, U: {WRITE}}
    assert await acls.create([]) == []


# --- deleting


async def test_each_acl_is_told_for_the_first_filter_that_chose_it(acls: Acls) -> None:
    await acls.load()
    await acls.create([Acl(T, READ), Acl(T, WRITE), Acl(U, READ)])
    filters = [
        AclFilter(TOPIC, "t", operation=AclOperation.READ),
        AclFilter(TOPIC),
        AclFilter(TOPIC, "t"),
        AclFilter(GROUP),
    ]
    found = await acls.delete(filters)
    assert [[one.acl for one in results] for results in found if not isinstance(results, BrokerError)] == [
        [Acl(T, READ)],
        [Acl(T, WRITE), Acl(U, READ)],
        [],
        [],
    ]
    assert known(acls) == {}


async def test_an_acl_that_was_not_told_yet_is_deleted_by_a_filter_with_its_name(acls: Acls, other: AclStore) -> None:
    await acls.load()
    put(other, T, READ)
    ((found,),) = await acls.delete([AclFilter(TOPIC, "t")])  # type: ignore[misc]
    assert found.acl == Acl(T, READ)
    assert other.load() == {}


async def test_entries_that_another_added_meanwhile_stay(acls: Acls, other: AclStore) -> None:
    await acls.load()
    await acls.create([Acl(T, READ)])
    put(other, T, WRITE)
    await acls.delete([AclFilter(TOPIC, "t", operation=AclOperation.READ)])
    assert other.load() == {T: {WRITE}}
    assert known(acls) == {T: {WRITE}}


# --- while the store is away


AWAY = ConnectionFailed("ZooKeeper at zk:2181 does not answer")
REFUSED = ZooKeeperError("/kafka-acl/Topic/t", "NoAuth")


async def test_without_a_store_nothing_is_loaded_and_nothing_opens_up(
    acls: Acls, store: FlakyStore, authorizer: Authorizer, other: AclStore
) -> None:
    put(other, T, READ)
    await acls.load()
    put(other, U, READ)
    store.failure = AWAY
    with pytest.raises(BrokerError, match="does not answer") as caught:
        await acls.load()
    assert caught.value.code is ErrorCode.request_timed_out
    assert known(acls) == {T: {READ}}
    assert authorizer.allows(Alice(), READING, "t")
    assert not authorizer.allows(Alice(), READING, "u")


@pytest.mark.parametrize(
    ("failure", "code"),
    [(AWAY, ErrorCode.request_timed_out), (REFUSED, ErrorCode.unknown_server_error)],
    ids=["away", "refused"],
)
async def test_a_change_that_fails_is_named_and_changes_nothing(
    acls: Acls, store: FlakyStore, authorizer: Authorizer, failure: Exception, code: ErrorCode
) -> None:
    await acls.load()
    await acls.create([Acl(T, READ), Acl(TEAM, WRITE)])
    before = known(acls)
    store.failure = failure
    wrong = Acl(ResourcePattern(TOPIC, ""), READ)
    errors = await acls.create([Acl(T, WRITE), wrong, Acl(U, READ)])
    assert [error.code for error in errors if error] == [code, ErrorCode.invalid_request, code]
    assert str(failure) in str(errors[0])
    assert known(acls) == before
    assert not authorizer.allows(Alice(), WRITING, "t")
    assert not authorizer.allows(Alice(), READING, "u")

    by_name, unknown, all_of_them, none = await acls.delete(
        [AclFilter(TOPIC, "t", LITERAL), AclFilter(TOPIC, "unknown", LITERAL), AclFilter(), AclFilter(GROUP)]
    )
    for found, acl in ((by_name, Acl(T, READ)), (all_of_them, Acl(TEAM, WRITE))):
        assert not isinstance(found, BrokerError)
        assert [one.acl for one in found] == [acl]
        assert found[0].error is not None
        assert found[0].error.code is code
    assert isinstance(unknown, BrokerError), "it may have ACLs that are not known here"
    assert unknown.code is code
    assert none == []
    assert known(acls) == before


async def test_a_store_that_is_away_is_waited_for_once_a_request(acls: Acls, store: FlakyStore) -> None:
    await acls.load()
    many = [Acl(ResourcePattern(TOPIC, f"t{number}"), READ) for number in range(50)]
    await acls.create(many)
    store.failure, store.calls = AWAY, 0
    assert all(await acls.create([Acl(one.pattern, WRITE) for one in many]))
    assert store.calls == 1
    (found,) = await acls.delete([AclFilter()])
    assert not isinstance(found, BrokerError)
    assert [one.error is not None for one in found] == [True] * 50
    assert store.calls == 2


async def test_one_pattern_that_is_refused_keeps_no_other_from_being_changed(
    acls: Acls, store: FlakyStore, local: LocalStore
) -> None:
    await acls.load()
    update = AclStore.update

    def picky(pattern: ResourcePattern, change: Callable[[Entries], Entries]) -> Entries:
        if pattern == T:
            raise REFUSED
        return update(store, pattern, change)

    store.update = picky  # type: ignore[method-assign]
    errors = await acls.create([Acl(T, READ), Acl(U, READ), Acl(T, WRITE)])
    assert [error.code if error else None for error in errors] == [
        *(ErrorCode.unknown_server_error, None, ErrorCode.unknown_server_error)
    ]
    assert local.exists(acl_path(U))
    assert known(acls) == {U: {READ}}


async def test_a_revoked_right_is_noted_as_soon_as_the_store_is_back(
    running: Acls, store: FlakyStore, other: AclStore, authorizer: Authorizer, caplog: pytest.LogCaptureFixture
) -> None:
    await running.create([Acl(T, READ)])
    store.failure = AWAY
    with caplog.at_level(logging.WARNING):
        await asyncio.to_thread(take, other, T, READ)
        await asyncio.to_thread(put, other, U, READ)
        await until(lambda: caplog.text.count("cannot read ACLs that were changed, trying again") >= 3)
    assert authorizer.allows(Alice(), READING, "t"), "the last known ACLs decide"
    assert not authorizer.allows(Alice(), READING, "u")
    store.failure = None
    await until(lambda: not authorizer.allows(Alice(), READING, "t"))
    await until(lambda: authorizer.allows(Alice(), READING, "u"))


async def test_a_surprise_ends_no_reading(
    running: Acls, store: FlakyStore, other: AclStore, authorizer: Authorizer, caplog: pytest.LogCaptureFixture
) -> None:
    store.failure = RuntimeError("a surprise")
    await asyncio.to_thread(put, other, T, READ)
    await until(lambda: "reading ACLs that were changed failed" in caplog.text)
    store.failure = None
    await until(lambda: authorizer.allows(Alice(), READING, "t"))


async def test_after_changes_were_missed_all_acls_are_read_again(
    running: Acls, store: FlakyStore, other: AclStore, local: LocalStore, authorizer: Authorizer
) -> None:
    """As after an outage that was longer than notifications are kept."""
    await running.create([Acl(T, READ), Acl(TEAM, WRITE)])
    await until(lambda: not running._due.is_set())
    local.delete(acl_path(T))
    local.set(acl_path(TEAM), local.get(acl_path(TEAM))[0].replace(b"Write", b"Read"))
    store.load_failure = AWAY
    running._note_all()
    await until(lambda: store.load_failure is None)
    await until(lambda: known(running) == {TEAM: {READ}})
    assert not authorizer.allows(Alice(), READING, "t")


# --- an older read and a newer one


async def test_a_slow_read_does_not_undo_what_was_changed_meanwhile(
    running: Acls, store: FlakyStore, other: AclStore, authorizer: Authorizer
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reading.set()
        assert go_on.wait(60)

    store.before_answer = wait
    await asyncio.to_thread(put, other, T, READ)
    assert await asyncio.to_thread(reading.wait, 60)
    deleting = asyncio.ensure_future(running.delete([AclFilter(TOPIC, "t")]))
    creating = asyncio.ensure_future(running.create([Acl(U, WRITE)]))
    await asyncio.sleep(0)
    store.before_answer = lambda: None
    go_on.set()
    await asyncio.gather(deleting, creating)
    assert not authorizer.allows(Alice(), READING, "t")
    assert authorizer.allows(Alice(), WRITING, "u")
    await until(lambda: known(running) == {U: {WRITE}})
    assert other.load() == {U: {WRITE}}


async def test_many_changes_are_read_in_few_reads(running: Acls, store: FlakyStore, other: AclStore) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reading.set()
        assert go_on.wait(60)

    store.before_answer = wait
    await asyncio.to_thread(put, other, T, READ)
    assert await asyncio.to_thread(reading.wait, 60)
    names = [ResourcePattern(TOPIC, f"t{number}") for number in range(200)]
    for name in names:
        await asyncio.to_thread(put, other, name, READ)
    await until(lambda: set(names) <= running._stale)
    before = store.calls
    go_on.set()
    await until(lambda: set(names) <= running.current.acls.keys())
    assert store.calls == before + 1


async def test_decisions_stay_in_mind_where_a_notification_brings_nothing_new(
    running: Acls, store: FlakyStore, authorizer: Authorizer
) -> None:
    """Each creation is notified to its own broker, too."""
    await running.create([Acl(T, READ)])
    acls = authorizer.acls
    before = store.calls
    running._note([T])
    await until(lambda: store.calls > before and not running._lock.locked())
    assert authorizer.acls is acls


async def test_thousands_of_patterns_keep_no_revocation_waiting(
    running: Acls, store: FlakyStore, other: AclStore, authorizer: Authorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.create([Acl(T, READ)])
    writing, told, revoked = threading.Event(), threading.Event(), threading.Event()
    set_due = running._due.set

    def due() -> None:
        set_due()
        if T in running._stale and writing.is_set():
            told.set()

    def update(pattern: ResourcePattern, change: Callable[[Entries], Entries]) -> Entries:
        if pattern.name == "t250":
            writing.set()
            assert told.wait(60)
        if pattern.name == "t750":
            assert revoked.wait(60)
        return AclStore.update(store, pattern, change)

    monkeypatch.setattr(running._due, "set", due)
    monkeypatch.setattr(store, "update", update)
    many = [Acl(ResourcePattern(TOPIC, f"t{number}"), READ) for number in range(800)]
    creating = asyncio.ensure_future(running.create(many))
    assert await asyncio.to_thread(writing.wait, 60)
    assert authorizer.allows(Alice(), READING, "t199"), "what was written is in force"
    await asyncio.to_thread(take, other, T, READ)
    await until(lambda: not authorizer.allows(Alice(), READING, "t"))
    assert not creating.done()
    revoked.set()
    assert await creating == [None] * 800


class LosesAnAnswer(LocalStore):
    """As after a lost connection: the first transaction is applied, and finds itself applied when it is sent again."""

    answers_lost = 0

    def transaction(self, operations: Iterable[Operation]) -> list[Any]:
        todo = list(operations)
        done = super().transaction(todo)
        if self.answers_lost:
            self.answers_lost -= 1
            raise BadVersion(todo[0].path)
        return done


async def test_what_was_deleted_is_told_also_when_the_first_answer_was_lost(tmp_path: Path) -> None:
    with LosesAnAnswer(tmp_path / "metadata") as local:
        calls = ClusterStore(Registry(local), ChangeNotifications(local))
        acls = Acls(AclStore(local), calls, Authorizer(), allow_if_none=False)
        await acls.create([Acl(T, READ), Acl(T, WRITE)])
        local.answers_lost = 1
        assert await acls.delete([AclFilter(operation=AclOperation.READ)]) == [[Deleted(Acl(T, READ), None)]]
        assert known(acls) == {T: {WRITE}}
        calls.close()


# --- what is refused


def changed(acl: Acl, **values: object) -> Acl:
    pattern = {key: value for key, value in values.items() if key in ResourcePattern._fields}
    entry = {key: value for key, value in values.items() if key in AccessControlEntry._fields}
    return Acl(acl.pattern._replace(**pattern), acl.entry._replace(**entry))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"pattern": PatternType.MATCH},
        {"pattern": PatternType.ANY},
        {"pattern": PatternType.UNKNOWN},
        {"type": AclResourceType.ANY},
        {"type": AclResourceType.UNKNOWN},
        {"operation": AclOperation.ANY},
        {"operation": AclOperation.UNKNOWN},
        {"permission": AclPermission.ANY},
        {"permission": AclPermission.UNKNOWN},
        {"type": CLUSTER, "name": "t"},
        {"type": CLUSTER, "name": "*"},
        {"name": ""},
        {"name": "a/b"},
        {"name": "/"},
        {"name": "."},
        {"name": ".."},
        {"name": "a\nb"},
        {"name": "a\0b"},
        {"name": "a\ud800"},
        {"principal": ""},
        {"principal": "alice"},
        {"principal": "User:"},
        {"principal": ":alice"},
        {"principal": "*"},
        {"host": ""},
    ],
    ids=lambda values: ascii(values)[1:-1],
)
async def test_what_kafka_refuses_is_refused_and_not_written(
    acls: Acls, store: FlakyStore, values: dict[str, object]
) -> None:
    wrong = changed(Acl(T, READ), **values)
    with pytest.raises(BrokerError) as caught:
        check_acl(wrong)
    assert caught.value.code is ErrorCode.invalid_request
    assert caught.value.message
    await acls.load()
    (error,) = await acls.create([wrong])
    assert error is not None
    assert error.code is ErrorCode.invalid_request
    assert store.load() == {}


@pytest.mark.parametrize(
    "values",
    [
        {"name": "*"},
        {"name": "a b"},
        {"name": "a\u00a0b"},
        {"name": "ü:ö"},
        {"name": "x" * 1000},
        {"type": CLUSTER, "name": "kafka-cluster"},
        {"type": GROUP, "pattern": PREFIXED},
        {"operation": AclOperation.ALL},
        {"principal": "User:*"},
        {"principal": "User:CN=a:b,O=c"},
        {"principal": "Group:staff"},
        {"host": "::1"},
        {"permission": AclPermission.DENY},
    ],
    ids=lambda values: ascii(values)[1:40],
)
async def test_what_kafka_takes_is_taken(acls: Acls, store: FlakyStore, values: dict[str, object]) -> None:
    right = changed(Acl(T, READ), **values)
    await acls.load()
    assert await acls.create([right]) == [None]
    assert store.load() == {right.pattern: {right.entry}}
