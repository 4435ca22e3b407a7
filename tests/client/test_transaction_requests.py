"""A transaction driven by its handle alone: begun here, written there, ended by a process that knows three values."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import pytest

from broker.client import broker_connection, transaction_requests
from broker.client.batch_producer import BatchProducer, produce_batches
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupMetadata, GroupOffsets
from broker.client.fetcher import Fetcher, FetchStream
from broker.client.partition_offsets import LATEST, list_offsets
from broker.client.transaction_errors import FatalTransactionError, ProducerFenced
from broker.client.transaction_requests import (
    TransactionHandle,
    add_offsets,
    add_partitions,
    check_open,
    commit_offsets,
    end_transaction,
    end_transactions,
    init_transactional_id,
    transaction_version,
)
from broker.errors import ConfigError, ErrorCode, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response
from broker.protocol.topic_partition import TopicPartition
from broker.records.builder import BatchBuilder
from broker.records.record import decode_records
from tests.client.conftest import TopicMaker
from tests.support.kafka import Kafka
from tests.support.waiting import eventually


def batch(*values: int, transactional: bool = True) -> bytes:
    builder = BatchBuilder(max_bytes=1 << 20, transactional=transactional)
    for value in values:
        builder.append(1000, None, b"%d" % value)
    return builder.build()


def committed(bootstrap: str, tp: TopicPartition) -> list[int]:
    """What a reader of committed data sees."""
    with Cluster(bootstrap, {"isolation.level": "read_committed"}) as cluster, Fetcher(cluster, tp) as fetcher:
        end = list_offsets(cluster, {tp: LATEST})[tp].offset
        return [
            int(record.value or b"")
            for fetched in FetchStream(fetcher, 0, end)
            for record in decode_records(fetched.records, aborted=fetched.aborted)
        ]


@pytest.fixture
def tp(make_topic: TopicMaker) -> TopicPartition:
    return TopicPartition(make_topic(), 0)


def end_elsewhere(bootstrap: str, handle: TransactionHandle) -> None:
    """What the other process does."""
    with Cluster(bootstrap) as cluster:
        end_transaction(cluster, handle, commit=True)


def test_another_process_ends_what_this_one_began(broker: Kafka, cluster: Cluster, tp: TopicPartition) -> None:
    handle = init_transactional_id(cluster, tp.topic, timeout_ms=120_000)
    assert pickle.loads(pickle.dumps(handle)) == handle
    add_partitions(cluster, handle, [tp])
    batches = [batch(*range(n * 10, n * 10 + 10)) for n in range(8)]
    assert produce_batches(cluster, tp, batches, transaction=handle) == list(range(0, 80, 10))
    assert committed(broker.bootstrap, tp) == []
    other = multiprocessing.get_context("spawn").Process(target=end_elsewhere, args=(broker.bootstrap, handle))
    other.start()
    other.join(30)
    assert other.exitcode == 0
    eventually(lambda: committed(broker.bootstrap, tp) == list(range(80)))


def test_the_same_end_may_be_repeated_and_the_other_one_is_refused(cluster: Cluster, tp: TopicPartition) -> None:
    handle = init_transactional_id(cluster, tp.topic)
    add_partitions(cluster, handle, [tp])
    produce_batches(cluster, tp, [batch(1)], transaction=handle)
    end_transaction(cluster, handle, commit=True)
    end_transaction(cluster, handle, commit=True)
    with pytest.raises(FatalTransactionError):
        end_transaction(cluster, handle, commit=False)


def test_a_later_attempt_aborts_and_fences_the_earlier_one(broker: Kafka, cluster: Cluster, tp: TopicPartition) -> None:
    first = init_transactional_id(cluster, tp.topic)
    add_partitions(cluster, first, [tp])
    produce_batches(cluster, tp, [batch(1)], transaction=first)
    second = init_transactional_id(cluster, tp.topic)
    assert second.producer_id == first.producer_id
    assert second.epoch > first.epoch
    with pytest.raises(ProducerFenced):
        end_transaction(cluster, first, commit=True)
    with pytest.raises(PykafkaError):
        produce_batches(cluster, tp, [batch(2)], transaction=first)
    add_partitions(cluster, second, [tp])
    produce_batches(cluster, tp, [batch(3)], transaction=second)
    end_transaction(cluster, second, commit=True)
    eventually(lambda: committed(broker.bootstrap, tp) == [3])


def test_a_partition_is_written_in_several_goes(broker: Kafka, cluster: Cluster, tp: TopicPartition) -> None:
    handle = init_transactional_id(cluster, tp.topic)
    add_partitions(cluster, handle, [tp])
    with BatchProducer(cluster, transaction=handle) as producer:
        for batches in ([batch(0, 1), batch(2)], [batch(3)]):
            for one in batches:
                producer.send(tp, one)
            producer.flush()
    end_transaction(cluster, handle, commit=True)
    eventually(lambda: committed(broker.bootstrap, tp) == [0, 1, 2, 3])


def test_offsets_go_with_the_transaction(cluster: Cluster, tp: TopicPartition, group: str) -> None:
    handle = init_transactional_id(cluster, tp.topic)
    for offset, commit in ((5, False), (6, True)):
        add_offsets(cluster, handle, group)
        commit_offsets(cluster, handle, {tp: offset}, GroupMetadata(group))
        end_transaction(cluster, handle, commit=commit)
    assert GroupOffsets(cluster, group).fetch([tp]) == {tp: 6}


def test_an_epoch_is_bumped_only_by_who_holds_it(cluster: Cluster, topic: str) -> None:
    first = init_transactional_id(cluster, topic)
    second = init_transactional_id(cluster, topic, previous=first.identity)
    assert second.epoch == first.epoch + 1
    third = init_transactional_id(cluster, topic)
    with pytest.raises(ProducerFenced):
        init_transactional_id(cluster, topic, previous=second.identity)
    assert third.epoch == second.epoch + 1


@pytest.mark.parametrize("claim", [False, True])
def test_the_last_epoch_of_a_producer_id_is_left_out(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, claim: bool
) -> None:
    first = init_transactional_id(cluster, topic)
    monkeypatch.setattr(transaction_requests, "_LAST_EPOCH", first.epoch + 1)
    second = init_transactional_id(cluster, topic, previous=first.identity if claim else None)
    assert second.identity == (first.producer_id, first.epoch + 2)


def test_only_transactional_batches_go_into_a_transaction(cluster: Cluster, tp: TopicPartition) -> None:
    handle = init_transactional_id(cluster, tp.topic)
    add_partitions(cluster, handle, [tp])
    for plain, given in ((True, handle), (False, None)):
        with pytest.raises(ConfigError, match="must be built with transactional=True"):
            produce_batches(cluster, tp, [batch(1, transactional=not plain)], transaction=given)
    with pytest.raises(ConfigError, match="needs acks=all"):
        produce_batches(cluster, tp, [batch(1)], transaction=handle, acks=1)


def with_code(answer: Any, code: ErrorCode) -> Any:
    """The answer with `code` wherever it has one."""
    if not isinstance(answer, tuple):
        return answer
    if not hasattr(answer, "_fields"):
        return tuple(with_code(one, code) for one in answer)
    named: Any = answer
    fields = named._asdict().items()
    return type(named)(*(code if name.endswith("error_code") else with_code(value, code) for name, value in fields))


@pytest.mark.parametrize(
    "api",
    [
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    ],
    ids=lambda api: str(api.name),
)
@pytest.mark.parametrize("code", [ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress])
def test_a_coordinator_that_is_busy_is_asked_again(
    broker: Kafka, tp: TopicPartition, group: str, api: ApiKey, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a transaction is being ended its coordinator answers CONCURRENT_TRANSACTIONS to everything."""
    decode, told = decode_response, 0

    def decode_busy(asked: ApiKey, version: int, payload: memoryview) -> tuple[int, Any]:
        nonlocal told
        correlation_id, body = decode(asked, version, payload)
        if asked is api and told < 6:
            told += 1
            return correlation_id, with_code(body, code)
        return correlation_id, body

    monkeypatch.setattr(broker_connection, "decode_response", decode_busy)
    with Cluster(broker.bootstrap, {"retry.backoff.ms": 1, "retry.backoff.max.ms": 20}) as cluster:
        handles = [init_transactional_id(cluster, f"{tp.topic}-{number}") for number in range(2)]
        for handle in handles:
            add_partitions(cluster, handle, [tp])
        assert check_open(cluster, [(handle, tp) for handle in handles]) == [None, None]
        add_offsets(cluster, handles[0], group)
        commit_offsets(cluster, handles[0], {tp: 7}, GroupMetadata(group))
        end_transaction(cluster, handles[0], commit=True)
        assert end_transactions(cluster, handles, commit=True) == [None, None]
        assert told == 6
        assert GroupOffsets(cluster, group).fetch([tp]) == {tp: 7}


def test_many_are_ended_at_once_and_each_is_told_what_became_of_it(
    broker: Kafka, cluster: Cluster, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [init_transactional_id(cluster, f"{tp.topic}-{number}") for number in range(70)]
    for number, handle in enumerate(handles):
        add_partitions(cluster, handle, [tp])
        produce_batches(cluster, tp, [batch(number)], transaction=handle)
    assert check_open(cluster, [(handle, tp) for handle in handles]) == [None] * 70
    fenced = {3, 69}
    for number in fenced:
        init_transactional_id(cluster, handles[number].transactional_id)
    outcomes = check_open(cluster, [(handle, tp) for handle in handles])
    assert {number for number, outcome in enumerate(outcomes) if outcome is not None} == fenced
    receive, answers = BrokerConnection.receive, iter(range(1000))

    def cut(connection: BrokerConnection, **options: float) -> Any:
        if next(answers) == 10:
            connection.close()  # the reply is lost, what was asked may have been done
        return receive(connection, **options)

    monkeypatch.setattr(BrokerConnection, "receive", cut)
    outcomes = end_transactions(cluster, handles, commit=True)
    assert {number for number, outcome in enumerate(outcomes) if outcome is not None} == fenced
    assert all(isinstance(outcomes[number], ProducerFenced) for number in fenced)
    eventually(lambda: committed(broker.bootstrap, tp) == [number for number in range(70) if number not in fenced])
    assert end_transactions(cluster, [], commit=True) == []


def test_the_version_of_transactions_is_told(cluster: Cluster, foreign_kafka: Kafka | None) -> None:
    if foreign_kafka:
        assert transaction_version(cluster) in (0, 1, 2)
    else:
        eventually(lambda: transaction_version(cluster) == 2)
