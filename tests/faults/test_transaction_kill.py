"""kill -9 of the broker at any moment of transactions over many partitions and a group's offsets.

After every restart each transaction is wholly visible or wholly not, what was acknowledged holds, the group's
offset is that of the last transaction that is visible, and no transaction is left open.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Mapping
from enum import Enum

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.api.test_group_offsets import await_coordinator
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import LATEST, Requests
from tests.support.raw_transactions import V1, V2, RawProducer, committed_offset, committed_values, stable_end
from tests.support.waiting import eventually

PARTITIONS = 12
SETTINGS = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
OK = ErrorCode.none


class Outcome(Enum):
    """What a client was told of its transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Work:
    """Transactions numbered 0, 1, 2 …: each writes its number to every partition, and its successor as an offset."""

    def __init__(self, topic: str, group: str, dice: random.Random) -> None:
        self.partitions = [(topic, number) for number in range(PARTITIONS)]
        self.topic, self.group = topic, group
        self.dice = dice
        self.outcomes: list[Outcome] = []
        self.ending: bool | None = None
        """The decision that was sent and not answered."""

    def start(self, ask: Requests) -> None:
        ask.create(self.topic, PARTITIONS)
        await_coordinator(ask, self.group)

    def run(self, producer: RawProducer) -> None:
        """Transaction after transaction until the broker is gone."""
        while True:
            number, commit = len(self.outcomes), self.dice.random() < 0.7
            self.outcomes.append(Outcome.UNKNOWN)
            if producer.speaks is V1:
                assert set(producer.add(*self.partitions)) == {OK}
            assert set(producer.send_to_all(self.partitions, b"%d" % number)) == {OK}
            if producer.speaks is V1:
                assert producer.add_offsets(self.group) is OK
            assert producer.commit_offset(self.group, self.topic, number + 1) is OK
            self.ending = commit
            assert producer.end(commit=commit, settled=False) is OK
            self.told(commit)

    def told(self, commit: bool) -> None:
        self.ending = None
        self.outcomes[-1] = Outcome.COMMITTED if commit else Outcome.ABORTED

    def recover(self, ask: Requests, producer: RawProducer) -> RawProducer:
        """What a client does once the broker is back: one that had decided insists, as somebody else may in its
        place; then a new producer takes over."""
        if self.ending is not None and self.dice.random() < 0.7:
            names = producer.transactional_id, producer.producer_id, producer.epoch
            another = RawProducer(ask, *names, speaks=producer.speaks)
            answers: list[ErrorCode] = []

            def is_loaded() -> bool:
                answers.append(another.end(commit=self.ending is True, settled=False))
                return answers[-1] is not ErrorCode.coordinator_load_in_progress

            eventually(is_loaded)
            assert answers[-1] is OK
            self.told(self.ending)
        self.ending = None
        return RawProducer(ask, producer.transactional_id, speaks=producer.speaks).begin()

    def check(self, ask: Requests) -> None:
        visible = [committed_values(ask, self.topic, number) for number in range(PARTITIONS)]
        assert all(values == visible[0] for values in visible), "a transaction is visible in part"
        numbers = [int(value or b"") for value in visible[0]]
        assert numbers == sorted(set(numbers)), "doubled, or out of order"
        told = {outcome: {n for n, found in enumerate(self.outcomes) if found is outcome} for outcome in Outcome}
        assert told[Outcome.COMMITTED] - set(numbers) == set(), "committed, and lost"
        assert told[Outcome.ABORTED] & set(numbers) == set(), "aborted, and visible"
        assert committed_offset(ask, self.group, self.topic) == (numbers[-1] + 1 if numbers else -1)
        for number in range(PARTITIONS):
            assert stable_end(ask, self.topic, number) == ask.list_offset(self.topic, LATEST, number).offset


def kill_soon(broker: BrokerProcess, work: Work, seconds: float) -> None:
    """At a random moment once a transaction of this round has ended."""
    before = len(work.outcomes)
    with contextlib.suppress(AssertionError):  # killed all the same: the rounds must come to their end
        eventually(lambda: len(work.outcomes) > before + 1, interval=0.002)
    threading.Event().wait(seconds)
    broker.kill()


def kill_rounds(
    broker_factory: Callable[..., BrokerProcess],
    topic: str,
    group: str,
    rounds: int,
    speaks: Mapping[ApiKey, int],
) -> None:
    dice = random.Random(rounds)
    work = Work(topic, group, dice)
    broker = broker_factory(SETTINGS)
    with contextlib.ExitStack() as connections:
        ask = connections.enter_context(Requests(broker.bootstrap))
        work.start(ask)
        producer = RawProducer(ask, topic, speaks=speaks).begin()
        for _ in range(rounds):
            killer = threading.Thread(target=kill_soon, args=(broker, work, dice.random() * 0.1))
            killer.start()
            with pytest.raises(ConnectionError):
                work.run(producer)
            killer.join()
            broker.start()
            ask = connections.enter_context(Requests(broker.bootstrap))
            await_coordinator(ask, group)
            producer = work.recover(ask, producer)
            work.check(ask)
    assert len(work.outcomes) > rounds


@pytest.mark.parametrize("speaks", [V1, V2], ids=["version 1", "version 2"])
def test_every_transaction_is_visible_wholly_or_not_at_all_over_3_kills(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str, speaks: Mapping[ApiKey, int]
) -> None:
    kill_rounds(broker_factory, topic, group, 3, speaks)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("speaks", [V1, V2], ids=["version 1", "version 2"])
def test_every_transaction_is_visible_wholly_or_not_at_all_over_60_kills(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str, speaks: Mapping[ApiKey, int]
) -> None:
    kill_rounds(broker_factory, topic, group, 60, speaks)
