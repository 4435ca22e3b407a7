"""Transactions of version 2 (KIP-890), request by request: nothing is added by clients, and each has its own epoch."""

from __future__ import annotations

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.api.test_group_offsets import await_coordinator
from tests.support.raw_requests import Requests, batch
from tests.support.raw_transactions import V1, V2, RawProducer, committed_offset, committed_values, stable_end
from tests.support.waiting import eventually

OK = ErrorCode.none


@pytest.fixture
def producer(ask: Requests, topic: str) -> RawProducer:
    ask.create(topic, 2)
    return RawProducer(ask, topic, speaks=V2).begin()


def twin(producer: RawProducer) -> RawProducer:
    """Who does not hear of the answers that the producer gets."""
    return RawProducer(
        producer.ask, producer.transactional_id, producer.producer_id, producer.epoch, speaks=producer.speaks
    )


def test_a_standalone_broker_finalizes_what_it_supports(ask: Requests) -> None:
    names = {"client_software_name": "tests", "client_software_version": "1"}

    def finalized() -> dict[str, tuple[int, int]]:
        answer = ask.ask(ApiKey.API_VERSIONS, names)
        assert {one.name: (one.min_version, one.max_version) for one in answer.supported_features} == {
            "transaction.version": (0, 2)
        }
        assert (answer.finalized_features_epoch >= 0) is bool(answer.finalized_features)
        return {one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features}

    eventually(lambda: finalized() == {"transaction.version": (2, 2)})


def test_the_first_records_begin_a_transaction_and_its_end_gives_the_next_epoch(
    producer: RawProducer, topic: str, group: str
) -> None:
    both = [(topic, 0), (topic, 1)]
    await_coordinator(producer.ask, group)
    for number in range(3):
        before = producer.producer_id, producer.epoch
        assert producer.send_to_all(both, b"%d" % number) == [OK, OK]
        assert producer.send(topic, b"more") is OK
        assert {one.topic for one in producer.describe().topics} == {topic}
        assert producer.commit_offset(group, topic, number + 1) is OK
        assert producer.end(commit=number != 1) is OK
        assert (producer.producer_id, producer.epoch) == (before[0], before[1] + 1)
    assert committed_values(producer.ask, topic) == [b"0", b"more", b"2", b"more"]
    assert committed_values(producer.ask, topic, 1) == [b"0", b"2"]
    assert committed_offset(producer.ask, group, topic) == 3


def test_offsets_alone_are_a_transaction(producer: RawProducer, topic: str, group: str) -> None:
    await_coordinator(producer.ask, group)
    assert producer.commit_offset(group, topic, 7) is OK
    assert committed_offset(producer.ask, group, topic) == -1
    assert producer.end() is OK
    assert committed_offset(producer.ask, group, topic) == 7


@pytest.mark.parametrize("commit", [True, False])
def test_a_request_whose_answer_was_lost_is_repeated(producer: RawProducer, topic: str, commit: bool) -> None:
    again, opposite = twin(producer), twin(producer)
    assert producer.send(topic, b"x") is OK
    assert producer.end(commit=commit) is OK
    assert opposite.end(commit=not commit) is ErrorCode.invalid_txn_state
    assert again.end(commit=commit) is OK
    assert (again.producer_id, again.epoch) == (producer.producer_id, producer.epoch)
    assert producer.send(topic, b"y") is OK
    assert opposite.end(commit=commit) is ErrorCode.producer_fenced


def test_nothing_can_be_aborted_and_not_committed(producer: RawProducer, topic: str) -> None:
    late = twin(producer)
    assert producer.end() is ErrorCode.invalid_txn_state
    assert producer.end(commit=False) is OK
    assert late.send(topic, b"late") is ErrorCode.invalid_producer_epoch
    assert producer.send(topic, b"x") is OK
    assert producer.end() is OK
    assert committed_values(producer.ask, topic) == [b"x"]


def test_late_records_open_nothing(producer: RawProducer, topic: str) -> None:
    late = twin(producer)
    assert producer.send(topic, b"a") is OK
    assert producer.end() is OK
    assert [late.send(topic, b"b"), late.send(topic, b"b", partition=1)] == [ErrorCode.invalid_producer_epoch] * 2
    assert stable_end(producer.ask, topic) == 2
    assert stable_end(producer.ask, topic, 1) == 0


def test_a_batch_that_overtook_the_first_is_refused(producer: RawProducer, topic: str) -> None:
    names = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch, "transactional": True}
    for sequence, code in ((1, ErrorCode.out_of_order_sequence_number), (0, OK), (1, OK)):
        records = {(topic, 0): batch(b"x", base_sequence=sequence, **names)}
        answer = producer.ask.produce(records, transactional_id=topic, version=V2[ApiKey.PRODUCE])[topic, 0]
        assert answer.error_code is code
    assert producer.end() is OK


def test_a_successor_aborts_what_was_left_open(producer: RawProducer, topic: str) -> None:
    zombie, epoch = twin(producer), producer.epoch
    assert producer.send(topic, b"left") is OK
    assert producer.init().error_code is OK
    assert producer.epoch == epoch + 2  # one to fence with, one for itself
    assert zombie.send(topic, b"zombie") is ErrorCode.invalid_producer_epoch
    assert zombie.end() is ErrorCode.producer_fenced
    assert producer.send(topic, b"new") is OK
    assert producer.end() is OK
    assert committed_values(producer.ask, topic) == [b"new"]


def test_both_versions_take_turns(ask: Requests, topic: str, group: str) -> None:
    ask.create(topic)
    await_coordinator(ask, group)
    for number, speaks in enumerate([V1, V2, V2, V1, V2]):
        producer = RawProducer(ask, topic, speaks=speaks).begin()
        for _ in range(2):
            if speaks is V1:
                assert producer.add((topic, 0)) == [OK]
                assert producer.add_offsets(group) is OK
            assert producer.send(topic, b"%d" % number) is OK
            assert producer.commit_offset(group, topic, number) is OK
            assert producer.end() is OK
    assert committed_values(ask, topic) == [b"%d" % number for number in range(5) for _ in range(2)]
    assert committed_offset(ask, group, topic) == 4


def test_a_client_may_end_in_version_1_what_it_began_in_version_2(producer: RawProducer, topic: str) -> None:
    assert producer.send(topic, b"a") is OK
    assert producer.end(version=V1[ApiKey.END_TXN]) is OK
    assert producer.send(topic, b"b") is OK  # in the same epoch
    assert producer.end() is OK
    assert committed_values(producer.ask, topic) == [b"a", b"b"]
    assert stable_end(producer.ask, topic) == 4


def test_a_late_marker_is_refused(producer: RawProducer, topic: str) -> None:
    """As a coordinator that stood still sends it, or a network that held it back."""
    first = producer.epoch
    assert producer.send(topic, b"a") is OK
    assert producer.end() is OK
    assert producer.send(topic, b"b") is OK
    assert mark(producer, topic, first + 1, version=2) is ErrorCode.invalid_producer_epoch
    assert mark(producer, topic, first, version=2) is ErrorCode.invalid_producer_epoch
    assert stable_end(producer.ask, topic) == 2
    assert producer.end(commit=False) is OK
    assert mark(producer, topic, first + 2, version=2) is OK  # it repeats the last one, which changes nothing
    assert committed_values(producer.ask, topic) == [b"a"]


def test_an_admin_ends_a_hanging_transaction_by_its_epoch(producer: RawProducer, topic: str) -> None:
    assert producer.send(topic, b"a") is OK
    assert mark(producer, topic, producer.epoch, version=0, commit=False) is OK
    assert stable_end(producer.ask, topic) == 2


def mark(producer: RawProducer, topic: str, epoch: int, *, version: int, commit: bool = True) -> ErrorCode:
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": epoch,
        "transaction_result": commit,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
        "transaction_version": version,
    }
    answer = producer.ask.ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]}, 2)
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)
