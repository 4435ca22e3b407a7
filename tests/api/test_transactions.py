"""The requests of transactional producers, one by one and in every version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.api.test_group_offsets import await_coordinator
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, batch, versions
from tests.support.raw_transactions import RawProducer, committed_offset, committed_values, stable_end
from tests.support.waiting import eventually

OK = ErrorCode.none


@pytest.fixture
def producer(ask: Requests, topic: str) -> RawProducer:
    """A producer ready for its first transaction, with its own topic of two partitions."""
    ask.create(topic, 2)
    return RawProducer(ask, topic).begin()


# --- FindCoordinator and InitProducerId


@pytest.mark.parametrize("version", range(1, versions(ApiKey.FIND_COORDINATOR)[-1] + 1))
def test_coordinator_is_found_in_every_version(ask: Requests, topic: str, version: int) -> None:
    found = RawProducer(ask, topic).find(version)
    assert (found.error_code, found.node_id) == (OK, 0)


def test_key_type_that_does_not_exist_is_refused(ask: Requests) -> None:
    answer = ask.ask(ApiKey.FIND_COORDINATOR, {"key_type": 9, "coordinator_keys": ["x"]})
    assert answer.coordinators[0].error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_every_init_gives_the_next_epoch_of_one_producer_id(producer: RawProducer, version: int) -> None:
    before = producer.producer_id, producer.epoch
    assert producer.init(version=version).error_code is OK
    assert (producer.producer_id, producer.epoch) == (before[0], before[1] + 1)


def test_producer_that_names_itself_may_ask_again(ask: Requests, producer: RawProducer) -> None:
    twin = RawProducer(ask, producer.transactional_id, producer.producer_id, producer.epoch)
    assert producer.init(claim=True).error_code is OK
    assert twin.init(claim=True).error_code is OK
    assert (twin.producer_id, twin.epoch) == (producer.producer_id, producer.epoch)


@pytest.mark.parametrize("version", [3, 4])
def test_producer_that_was_replaced_is_fenced(ask: Requests, producer: RawProducer, version: int) -> None:
    zombie = RawProducer(ask, producer.transactional_id, producer.producer_id, producer.epoch)
    producer.init()
    producer.init()
    answer = zombie.init(claim=True, version=version)
    fenced = ErrorCode.producer_fenced if version >= 4 else ErrorCode.invalid_producer_epoch
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (fenced, -1, -1)


def test_bad_init_requests_are_refused(ask: Requests, producer: RawProducer) -> None:
    assert producer.init(timeout_ms=900_001).error_code is ErrorCode.invalid_transaction_timeout
    assert producer.init(timeout_ms=0).error_code is ErrorCode.invalid_transaction_timeout
    assert RawProducer(ask, "").init().error_code is ErrorCode.invalid_request
    assert RawProducer(ask, "half", 5, -1).init(claim=True).error_code is ErrorCode.invalid_request


# --- a transaction


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("end_version", range(5))
def test_transaction_in_every_version(producer: RawProducer, topic: str, version: int, end_version: int) -> None:
    assert producer.add((topic, 0), (topic, 1), version=version) == [OK, OK]
    assert producer.send(topic, b"a") is OK
    assert producer.send(topic, b"b", partition=1) is OK
    assert committed_values(producer.ask, topic) == []
    assert producer.end(version=end_version) is OK
    assert committed_values(producer.ask, topic) == [b"a"]
    assert committed_values(producer.ask, topic, 1) == [b"b"]
    assert producer.end(version=end_version) is OK  # sent again


def test_what_is_aborted_is_never_seen_by_readers_of_committed_data(producer: RawProducer, topic: str) -> None:
    for commit, value in ((False, b"a"), (True, b"b"), (False, b"c")):
        assert producer.add((topic, 0)) == [OK]
        assert producer.send(topic, value) is OK
        assert producer.end(commit=commit) is OK
    assert committed_values(producer.ask, topic) == [b"b"]
    assert producer.ask.values(topic) == [b"a", b"b", b"c"]


def test_transaction_is_ended_by_somebody_who_did_not_begin_it(producer: RawProducer, topic: str, broker: Any) -> None:
    producer.add((topic, 0))
    producer.send(topic, b"a")
    producer.ask.close()
    with Requests(broker.bootstrap) as elsewhere:
        driver = RawProducer(elsewhere, producer.transactional_id, producer.producer_id, producer.epoch)
        assert driver.end() is OK
        assert driver.end() is OK
        assert driver.end(commit=False) is ErrorCode.invalid_txn_state
        assert committed_values(elsewhere, topic) == [b"a"]


def test_readers_of_committed_data_wait_for_the_first_open_transaction(producer: RawProducer, topic: str) -> None:
    producer.add((topic, 0))
    producer.send(topic, b"a")
    producer.ask.put(topic, b"not of a transaction")
    assert stable_end(producer.ask, topic) == 0
    producer.end()
    assert committed_values(producer.ask, topic) == [b"a", b"not of a transaction"]


@pytest.mark.parametrize("version", [1, 2])
def test_zombie_can_do_nothing(ask: Requests, producer: RawProducer, topic: str, version: int) -> None:
    producer.add((topic, 0))
    producer.send(topic, b"lost")
    successor = RawProducer(ask, producer.transactional_id).begin()
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert producer.add((topic, 0), version=version) == [fenced]
    assert producer.add_offsets("g", version) is fenced
    assert producer.end(version=version) is fenced
    assert producer.send(topic, b"zombie") is ErrorCode.invalid_producer_epoch
    assert successor.add((topic, 0)) == [OK]
    assert successor.send(topic, b"kept") is OK
    assert successor.end() is OK
    assert committed_values(ask, topic) == [b"kept"]


def test_nothing_is_added_when_one_partition_does_not_exist(producer: RawProducer, topic: str) -> None:
    codes = producer.add((topic, 0), (topic, 9), ("no-such-topic", 0))
    unknown = ErrorCode.unknown_topic_or_partition
    assert codes == [ErrorCode.operation_not_attempted, unknown, unknown]
    assert producer.describe().transaction_state == "Empty"


def test_producer_id_that_is_not_its_own_is_refused(ask: Requests, producer: RawProducer, topic: str) -> None:
    other = RawProducer(ask, producer.transactional_id, producer.producer_id + 1, producer.epoch)
    assert other.add((topic, 0)) == [ErrorCode.invalid_producer_id_mapping]
    assert other.end() is ErrorCode.invalid_producer_id_mapping
    assert RawProducer(ask, "nobody", 1, 0).end() is ErrorCode.invalid_producer_id_mapping


def test_topic_that_is_deleted_meanwhile_holds_nobody_up(producer: RawProducer, topic: str) -> None:
    gone = topic + "-gone"
    producer.ask.create(gone)
    assert producer.add((topic, 0), (gone, 0)) == [OK, OK]
    assert producer.send(topic, b"a") is OK
    assert producer.send(gone, b"b") is OK
    assert producer.ask.delete(gone) is OK
    assert producer.end() is OK
    eventually(lambda: producer.end() is OK)  # the coordinator asks ZooKeeper whether the topic is gone
    assert committed_values(producer.ask, topic) == [b"a"]


def test_transaction_over_many_partitions(ask: Requests, topic: str) -> None:
    ask.create(topic, 40)
    producer = RawProducer(ask, topic).begin()
    everywhere = [(topic, number) for number in range(40)]
    for _ in range(2):
        assert producer.add(*everywhere) == [OK] * 40
        assert producer.send_to_all(everywhere, b"a") == [OK] * 40
        assert producer.end() is OK
    assert all(committed_values(ask, topic, number) == [b"a", b"a"] for number in range(40))


# --- verification


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_records_are_refused_when_their_partition_is_not_in_the_transaction(
    producer: RawProducer, topic: str, version: int
) -> None:
    refused = ErrorCode.transaction_abortable if version >= 11 else ErrorCode.invalid_txn_state
    if version <= 11:
        assert producer.send(topic, b"never begun", version=version) is refused
    assert producer.add((topic, 0)) == [OK]
    assert producer.send(topic, b"a", version=version) is OK
    if version <= 11:
        assert producer.send(topic, b"elsewhere", partition=1, version=version) is refused
    assert producer.end() is OK
    if version <= 11:
        assert producer.send(topic, b"late", version=version) is refused
    assert committed_values(producer.ask, topic) == [b"a"]
    assert stable_end(producer.ask, topic) == 2


def test_records_of_a_transaction_need_a_transactional_id(ask: Requests, topic: str) -> None:
    ask.create(topic)
    records = batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    answer = ask.produce({(topic, 0): records})[topic, 0]
    assert answer.error_code is ErrorCode.transactional_id_authorization_failed


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_may_ask_whether_partitions_were_added(producer: RawProducer, topic: str, version: int) -> None:
    missing = ErrorCode.transaction_abortable if version >= 5 else ErrorCode.invalid_txn_state
    both = (topic, 0), (topic, 1)
    assert producer.add(*both, version=version, verify_only=True) == [missing, missing]
    assert producer.add((topic, 0), version=version) == [OK]
    assert producer.add(*both, version=version, verify_only=True) == [OK, missing]
    assert producer.end() is OK


# --- offsets


@pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
def test_offsets_hold_when_their_transaction_is_committed(
    producer: RawProducer, topic: str, group: str, version: int
) -> None:
    await_coordinator(producer.ask, group)
    for commit, offset, then in ((False, 5, -1), (True, 7, 7), (False, 9, 7)):
        assert producer.add_offsets(group, version) is OK
        assert producer.commit_offset(group, topic, offset) is OK
        assert committed_offset(producer.ask, group, topic) in (-1, 7)
        assert producer.end(commit=commit) is OK
        assert committed_offset(producer.ask, group, topic) == then


def test_offsets_need_their_group_in_the_transaction(producer: RawProducer, topic: str, group: str) -> None:
    await_coordinator(producer.ask, group)
    producer.add((topic, 0))
    assert producer.commit_offset(group, topic, 5, version=4) is ErrorCode.transaction_abortable


# --- WriteTxnMarkers


@pytest.mark.parametrize("version", versions(ApiKey.WRITE_TXN_MARKERS))
def test_markers_of_another_coordinator_end_a_transaction(producer: RawProducer, topic: str, version: int) -> None:
    producer.add((topic, 0))
    producer.send(topic, b"a")
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0, 9]}],
        "coordinator_epoch": 0,
        "transaction_version": 1,
    }
    (answer,) = producer.ask.ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]}, version).markers
    codes = [partition.error_code for partition in answer.topics[0].partitions]
    assert codes == [OK, ErrorCode.unknown_topic_or_partition]
    assert stable_end(producer.ask, topic) == 2
    assert committed_values(producer.ask, topic) == []


# --- administration


def test_transaction_is_described(producer: RawProducer, topic: str) -> None:
    assert producer.describe().transaction_state == "Empty"
    producer.add((topic, 1), (topic, 0))
    found = producer.describe()
    assert (found.error_code, found.transaction_state) == (OK, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
    assert found.transaction_timeout.total_seconds() == 60
    assert [(t.topic, t.partitions) for t in found.topics] == [(topic, (0, 1))]
    producer.end()
    found = producer.describe()
    assert (found.transaction_state, found.topics) == ("CompleteCommit", ())


def test_id_that_is_not_known_is_not_found(ask: Requests, producer: RawProducer) -> None:
    assert RawProducer(ask, "nobody").describe().error_code is ErrorCode.transactional_id_not_found


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
def test_transactions_are_listed(producer: RawProducer, topic: str, version: int) -> None:
    def listed(
        states: tuple[str, ...] = (), ids: tuple[int, ...] = ()
    ) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
        body = {"state_filters": states, "producer_id_filters": ids, "duration_filter": -1}
        answer = producer.ask.ask(ApiKey.LIST_TRANSACTIONS, body, version)
        assert answer.error_code is OK
        found = [(one.transactional_id, one.transaction_state) for one in answer.transaction_states]
        return found, answer.unknown_state_filters

    producer.add((topic, 0))
    assert listed(ids=(producer.producer_id,)) == ([(topic, "Ongoing")], ())
    assert listed(("Ongoing",), (producer.producer_id,)) == ([(topic, "Ongoing")], ())
    assert listed(("Empty",), (producer.producer_id,)) == ([], ())
    assert listed(("NoSuchState",)) == ([], ("NoSuchState",))


def test_transactions_are_listed_by_pattern(producer: RawProducer, topic: str) -> None:
    def matching(pattern: str) -> Any:
        body = {"state_filters": (), "producer_id_filters": (producer.producer_id,), "duration_filter": -1}
        return producer.ask.ask(ApiKey.LIST_TRANSACTIONS, {**body, "transactional_id_pattern": pattern})

    for pattern, found in ((topic[:5] + ".*", 1), (topic, 1), (topic[:5], 0), ("x|.*", 1), ("(a+)+b", 0), ("", 1)):
        answer = matching(pattern)
        assert (answer.error_code, len(answer.transaction_states)) == (OK, found), pattern
    for pattern in ("(", "a)|(b", "*"):
        assert matching(pattern).error_code is ErrorCode.invalid_regular_expression


# --- time


def test_transaction_that_takes_too_long_is_aborted(ask: Requests, topic: str) -> None:
    ask.create(topic)
    producer = RawProducer(ask, topic).begin(timeout_ms=2000)  # much more than it takes to send one record
    producer.add((topic, 0))
    producer.send(topic, b"a")
    eventually(lambda: stable_end(ask, topic) == 2)
    assert committed_values(ask, topic) == []
    assert producer.end() is ErrorCode.producer_fenced
    assert producer.describe().transaction_state == "CompleteAbort"


def take(ask: Requests, version: int | None = None) -> Any:
    body = {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return ask.ask(ApiKey.INIT_PRODUCER_ID, body, version)


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_every_version_gives_an_id(ask: Requests, version: int) -> None:
    answer = take(ask, version)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
    assert answer.producer_id >= 0


def test_ids_are_never_given_twice(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker = broker_factory()
    given: list[int] = []
    with Requests(broker.bootstrap) as ask:
        given += [take(ask).producer_id for _ in range(400)]
    broker.kill()
    broker.start()
    with Requests(broker.bootstrap) as ask:
        given += [take(ask).producer_id for _ in range(1200)]  # more than a block
    assert len(set(given)) == len(given)
