"""What clients of a log did and saw, and the rules such a history must obey.

`tests/faults/test_histories.py` and `test_cluster_histories.py` record a `History` while they kill and stop brokers;
`anomalies` then looks for what Jepsen's test of Kafka-like systems looks for, and for what the leaders' epochs forbid.
Values are unique, so a value names its write. Consumers read committed records only. The files of replicas are compared
by replica_audit.py.

The rules of transactions are Kafka's: writes of two transactions that overlap in time may interleave in any way
(KIP-98 isolates readers, not writers), so a cycle of writes counts only where one transaction had ended before the
other began.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.znodes import PartitionState


class Outcome(enum.Enum):
    """How a write or a transaction ended, as its client knows."""

    OK = "acknowledged"
    FAILED = "refused, or aborted"
    UNKNOWN = "no answer"


@dataclasses.dataclass
class Transaction:
    """`began` and `ended` are seconds of one clock; `ended` only when the outcome is known."""

    name: str
    began: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN


@dataclasses.dataclass
class Write:
    """One record sent; `number` counts the writes of its producer. `offset` where the client was told it."""

    producer: str
    number: int
    tp: TopicPartition
    value: str
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    transaction: Transaction | None = None

    @property
    def must_be_there(self) -> bool:
        ended = self.transaction is None or self.transaction.outcome is Outcome.OK
        return self.outcome is Outcome.OK and ended

    @property
    def must_not_be_there(self) -> bool:
        aborted = self.transaction is not None and self.transaction.outcome is Outcome.FAILED
        return aborted or self.outcome is Outcome.FAILED


@dataclasses.dataclass
class Poll:
    """What one consumer was given in one go, in its order. `fresh`: its position was set anew before this."""

    consumer: str
    records: list[tuple[TopicPartition, int, str]]
    fresh: frozenset[TopicPartition] = frozenset()


@dataclasses.dataclass
class History:
    """All writes in the order each producer made them, all polls in the order each consumer made them, and the log
    as one last reader of committed records saw it from its start: per partition (offset, value). `states`: what
    ZooKeeper said about leaders and ISRs, in its order."""

    writes: list[Write] = dataclasses.field(default_factory=list)
    polls: list[Poll] = dataclasses.field(default_factory=list)
    final: dict[TopicPartition, list[tuple[int, str]]] = dataclasses.field(default_factory=dict)
    states: list[tuple[TopicPartition, PartitionState]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Anomaly:
    """One broken rule, with what shows it."""

    kind: str
    detail: str


def anomalies(history: History) -> list[Anomaly]:
    """Everything that must not be."""
    return list(
        itertools.chain(
            _lost_writes(history),
            _vanished_reads(history),
            _aborted_reads(history),
            _duplicates(history),
            _divergence(history),
            _polls(history),
            _send_order(history),
            _torn_transactions(history),
            _write_cycles(history),
            _leaders(history),
        )
    )


def _final_values(history: History) -> Counter[str]:
    return Counter(value for records in history.final.values() for _, value in records)


def _reads(history: History) -> Iterator[tuple[str, TopicPartition, int, str]]:
    for poll in history.polls:
        for tp, offset, value in poll.records:
            yield poll.consumer, tp, offset, value
    for tp, records in history.final.items():
        for offset, value in records:
            yield "the last reader", tp, offset, value


def _lost_writes(history: History) -> Iterator[Anomaly]:
    there = _final_values(history)
    for write in history.writes:
        if write.must_be_there and write.value not in there:
            yield Anomaly("lost write", f"{write.value} of {write.producer} to {write.tp}, offset {write.offset}")


def _vanished_reads(history: History) -> Iterator[Anomaly]:
    """What a consumer has seen, every later leader has (promise P2)."""
    final = {tp: set(records) for tp, records in history.final.items()}
    for poll in history.polls:
        for tp, offset, value in poll.records:
            if (offset, value) not in final.get(tp, ()):
                yield Anomaly("vanished read", f"{poll.consumer} read {value} at {tp} offset {offset}; it is gone")


def _aborted_reads(history: History) -> Iterator[Anomaly]:
    writes = {write.value: write for write in history.writes}
    for reader, tp, offset, value in _reads(history):
        write = writes.get(value)
        if write is None:
            yield Anomaly("phantom", f"{reader} read {value}, which nobody wrote, at {tp} offset {offset}")
        elif write.must_not_be_there:
            yield Anomaly("aborted read", f"{reader} read {value} at {tp} offset {offset}")
        elif write.tp != tp:
            yield Anomaly("phantom", f"{reader} read {value} in {tp}; it was sent to {write.tp}")


def _duplicates(history: History) -> Iterator[Anomaly]:
    for value, count in _final_values(history).items():
        if count > 1:
            yield Anomaly("duplicate", f"{value} stands in the log {count} times")


def _divergence(history: History) -> Iterator[Anomaly]:
    """One offset, one value: whoever reads it, and whatever the writer was told."""
    seen: dict[tuple[TopicPartition, int], str] = {}
    told = [
        (write.producer, write.tp, write.offset, write.value)
        for write in history.writes
        if write.offset is not None and write.must_be_there
    ]
    for who, tp, offset, value in itertools.chain(_reads(history), told):
        first = seen.setdefault((tp, offset), value)
        if first != value:
            yield Anomaly("divergence", f"{tp} offset {offset} is {first}, and {value} to {who}")


def _polls(history: History) -> Iterator[Anomaly]:
    """A consumer moves forward, and leaves nothing out, until its position is set anew."""
    final = {tp: [offset for offset, _ in records] for tp, records in history.final.items()}
    at: dict[tuple[str, TopicPartition], int] = {}
    for poll in history.polls:
        for tp in poll.fresh:
            at.pop((poll.consumer, tp), None)
        for tp, offset, value in poll.records:
            last = at.get((poll.consumer, tp))
            if last is not None and offset <= last:
                yield Anomaly("non-monotonic poll", f"{poll.consumer} read {tp} offset {offset} ({value}) after {last}")
            elif last is not None:
                there = final.get(tp, [])
                skipped = there[bisect.bisect_right(there, last) : bisect.bisect_left(there, offset)]
                if skipped:
                    yield Anomaly("skipped", f"{poll.consumer} went in {tp} from {last} to {offset} over {skipped[:5]}")
            at[poll.consumer, tp] = offset


def _send_order(history: History) -> Iterator[Anomaly]:
    """What one producer sent to one partition stands there in the order it was sent."""
    numbers = {write.value: (write.producer, write.number) for write in history.writes}
    for tp, records in history.final.items():
        last: dict[str, int] = {}
        for offset, value in records:
            if value not in numbers:
                continue
            producer, number = numbers[value]
            if number < last.get(producer, -1):
                yield Anomaly(
                    "non-monotonic send", f"{value} of {producer} stands in {tp} at {offset}, behind a later one"
                )
            last[producer] = max(number, last.get(producer, -1))


def _torn_transactions(history: History) -> Iterator[Anomaly]:
    there = _final_values(history)
    for transaction, writes in _by_transaction(history.writes):
        sent = [write for write in writes if write.outcome is not Outcome.FAILED]
        found = sum(write.value in there for write in sent)
        # Of an unknown end either is right, but for a write the producer got no answer for before it gave up.
        certain = [write for write in sent if write.outcome is Outcome.OK]
        missing = [write.value for write in certain if write.value not in there]
        if found and missing:
            yield Anomaly(
                "torn transaction", f"{transaction.name}: {found} of its records are there, {missing[:5]} not"
            )


def _write_cycles(history: History) -> Iterator[Anomaly]:
    """Two transactions, one over before the other began, whose records stand the other way round."""
    places = {value: (tp, offset) for tp, records in history.final.items() for offset, value in records}
    spans: dict[TopicPartition, list[tuple[Transaction, int, int]]] = defaultdict(list)
    for transaction, writes in _by_transaction(history.writes):
        by_partition: dict[TopicPartition, list[int]] = defaultdict(list)
        for write in writes:
            if write.value in places:
                by_partition[write.tp].append(places[write.value][1])
        for tp, offsets in by_partition.items():
            spans[tp].append((transaction, min(offsets), max(offsets)))
    for tp, transactions in spans.items():
        transactions.sort(key=lambda entry: entry[1])
        latest_begin: Transaction | None = None
        for transaction, _, _ in transactions:
            if latest_begin is not None and transaction.ended < latest_begin.began:
                yield Anomaly(
                    "write cycle",
                    f"{transaction.name} had ended before {latest_begin.name} began, and stands behind it in {tp}",
                )
            if latest_begin is None or transaction.began > latest_begin.began:
                latest_begin = transaction


def _leaders(history: History) -> Iterator[Anomaly]:
    """An epoch has one leader (P4), and an in-sync replica becomes leader (P5). Epochs only go forward."""
    leaders: dict[tuple[TopicPartition, int], int] = {}
    before: dict[TopicPartition, PartitionState] = {}
    for tp, state in history.states:
        leader = leaders.setdefault((tp, state.leader_epoch), state.leader)
        if leader != state.leader:
            yield Anomaly(
                "two leaders in one epoch", f"{tp}: brokers {leader} and {state.leader} in epoch {state.leader_epoch}"
            )
        last = before.get(tp, state)
        if state.leader_epoch < last.leader_epoch:
            yield Anomaly("leader epoch went back", f"{tp}: from {last.leader_epoch} to {state.leader_epoch}")
        # A state that was overwritten before it was read is not in the history.
        adjacent = state.version == last.version + 1
        if adjacent and state.leader not in (-1, last.leader) and state.leader not in last.isr:
            yield Anomaly("unclean election", f"{tp}: broker {state.leader} leads, and the ISR was {list(last.isr)}")
        before[tp] = state


def _by_transaction(writes: Iterable[Write]) -> list[tuple[Transaction, list[Write]]]:
    groups: dict[int, tuple[Transaction, list[Write]]] = {}
    for write in writes:
        if write.transaction is not None:
            groups.setdefault(id(write.transaction), (write.transaction, []))[1].append(write)
    return list(groups.values())
