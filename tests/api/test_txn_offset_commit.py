"""TxnOffsetCommit in every version, through a whole transaction, across a kill of the broker, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.api.test_group_offsets import await_coordinator, commit, committed
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, versions
from tests.support.raw_transactions import RawProducer
from tests.support.waiting import eventually


class RawTransaction:
    """A transactional producer that commits offsets of one group."""

    def __init__(self, ask: Requests, name: str, group: str) -> None:
        self.ask, self.name, self.group = ask, name, group
        await_coordinator(ask, group)
        producer = RawProducer(ask, name).begin()
        self.who = {
            "transactional_id": name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
        }

    def begin(self) -> None:
        answer = self.ask.ask(ApiKey.ADD_OFFSETS_TO_TXN, {**self.who, "group_id": self.group}, 3)
        assert answer.error_code is ErrorCode.none

    def commit_offset(self, topic: str, offset: int, version: int | None = None, **changed: Any) -> ErrorCode:
        asked = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
        topics = [{"name": topic, "partitions": [{**asked, "committed_metadata": ""}]}]
        body = {"group_id": self.group, "topics": topics, "generation_id": -1, "member_id": "", **self.who, **changed}
        answer = self.ask.ask(ApiKey.TXN_OFFSET_COMMIT, body, version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self, *, commit: bool) -> ErrorCode:
        return ErrorCode(self.ask.ask(ApiKey.END_TXN, {**self.who, "committed": commit}, 3).error_code)


def stable_offset(ask: Requests, group: str, topic: str, version: int = 9) -> tuple[ErrorCode, int]:
    topics = [{"name": topic, "partition_indexes": [0]}]
    one = {"group_id": group, "topics": topics, "member_epoch": -1}
    answer = ask.ask(ApiKey.OFFSET_FETCH, {**one, "groups": [one], "require_stable": True}, version)
    found = (answer.groups[0] if version >= 8 else answer).topics[0].partitions[0]
    return ErrorCode(found.error_code), found.committed_offset


@pytest.mark.parametrize("version", versions(ApiKey.TXN_OFFSET_COMMIT))
def test_every_version_commits_with_its_transaction(ask: Requests, topic: str, group: str, version: int) -> None:
    ask.create(topic)
    transaction = RawTransaction(ask, group, group)
    for offset, decided, expected in ((5, True, 5), (6, False, 5)):
        transaction.begin()
        assert transaction.commit_offset(topic, offset, version) is ErrorCode.none
        for fetch in (7, 8, 9):
            assert stable_offset(ask, group, topic, fetch) == (ErrorCode.unstable_offset_commit, -1)
        assert transaction.end(commit=decided) is ErrorCode.none
        eventually(lambda expected=expected: stable_offset(ask, group, topic) == (ErrorCode.none, expected))  # type: ignore[misc]


def test_what_is_not_part_of_the_transaction_is_refused(ask: Requests, topic: str, group: str) -> None:
    """KIP-890: nobody would ever end it."""
    ask.create(topic)
    transaction = RawTransaction(ask, group, group)
    assert transaction.commit_offset(topic, 5, 4) is ErrorCode.transaction_abortable
    assert transaction.commit_offset(topic, 5, 3) is ErrorCode.invalid_txn_state
    transaction.begin()
    assert transaction.commit_offset(topic, 5, producer_epoch=99) in (
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
    )
    assert transaction.commit_offset("no-such-topic", 5) is ErrorCode.unknown_topic_or_partition
    assert transaction.commit_offset(topic, 5, generation_id=3, member_id="m") is ErrorCode.illegal_generation
    assert transaction.end(commit=True) is ErrorCode.none
    assert stable_offset(ask, group, topic) == (ErrorCode.none, -1)


def test_a_new_producer_of_the_same_name_drops_what_its_forerunner_left(ask: Requests, topic: str, group: str) -> None:
    ask.create(topic)
    commit(ask, group, {(topic, 0): 1})
    zombie = RawTransaction(ask, group, group)
    zombie.begin()
    assert zombie.commit_offset(topic, 5) is ErrorCode.none

    def started() -> bool:
        asked = {"transactional_id": group, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        return ask.ask(ApiKey.INIT_PRODUCER_ID, asked, 4).error_code is ErrorCode.none

    eventually(started)
    assert stable_offset(ask, group, topic) == (ErrorCode.none, 1)
    assert zombie.commit_offset(topic, 6) is not ErrorCode.none
    assert committed(ask, group, None) == {(topic, 0): (1, "at 1")}


def test_kill_leaves_the_transaction_open_and_its_producer_ends_it(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str
) -> None:
    broker = broker_factory({"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"})
    with Requests(broker.bootstrap) as ask:
        ask.create(topic)
        transactions = {name: RawTransaction(ask, name, f"{group}-{name}") for name in ("commit", "abort")}
        for transaction in transactions.values():
            commit(ask, transaction.group, {(topic, 0): 1})
            transaction.begin()
            assert transaction.commit_offset(topic, 5) is ErrorCode.none
    broker.kill()
    broker.start()
    with Requests(broker.bootstrap) as ask:
        for name, transaction in transactions.items():
            transaction.ask = ask
            await_coordinator(ask, transaction.group)
            assert stable_offset(ask, transaction.group, topic) == (ErrorCode.unstable_offset_commit, -1)
            assert transaction.end(commit=name == "commit") is ErrorCode.none
            expected = 5 if name == "commit" else 1
            eventually(
                lambda group=transaction.group, expected=expected: (  # type: ignore[misc]
                    stable_offset(ask, group, topic) == (ErrorCode.none, expected)
                )
            )
    broker.kill()
    broker.start()
    with Requests(broker.bootstrap) as ask:
        for transaction in transactions.values():
            await_coordinator(ask, transaction.group)
        assert [stable_offset(ask, t.group, topic)[1] for t in transactions.values()] == [5, 1]
