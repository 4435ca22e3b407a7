"""Watches a topic from one host while links are cut: `python -m tests.support.partition_probe SECONDS TOPIC BROKER…`.

It writes with acks=all to each partition's leader, whom it asks of all brokers, and asks each broker for leaders and
ISRs; no answer within a second is none. So it sees when the brokers go on, whatever clients wait for. Each line that it
prints is a JSON list: seconds since 1970, "written" and the partition, or "state" with broker, partition, leader,
leader epoch and ISR when that has changed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from broker.errors import ErrorCode
from tests.support.hosts import Server
from tests.support.raw_requests import Requests, batch

EVERY_S = 0.05
ANSWER_S = 1.0


class State(NamedTuple):
    leader: int
    epoch: int
    isr: tuple[int, ...]


class Seen:
    """What a probe has printed so far."""

    def __init__(self, server: Server) -> None:
        rows = [json.loads(line) for line in server.output.splitlines() if line.startswith("[") and line.endswith("]")]
        self.written = [(at, rest[0]) for at, kind, *rest in rows if kind == "written"]
        self.states = [
            (at, broker, partition, State(leader, epoch, tuple(isr)))
            for at, kind, *rest in rows
            if kind == "state"
            for broker, partition, leader, epoch, isr in [rest]
        ]

    def outage_s(self, partition: int, since: float, until: float) -> float:
        """The longest time in [since, until] in which nothing was written to it."""
        times = [at for at, written in self.written if written == partition and since <= at <= until]
        return max(after - before for before, after in pairwise([since, *times, until]))

    def states_of(self, broker: str, partition: int, since: float = 0.0) -> list[State]:
        return [state for at, told, one, state in self.states if (told, one) == (broker, partition) and at >= since]

    def reached(self, broker: str, partition: int, members: int, since: float) -> float | None:
        """When that broker first said, after `since`, that the ISR has so many members; None: not yet."""
        found = (
            at
            for at, told, one, state in self.states
            if (told, one) == (broker, partition) and at >= since and len(state.isr) == members
        )
        return next(found, None)


def _states(broker: str, topic: str) -> dict[int, tuple[State, str]]:
    """Of each partition; with the leader's address, or an empty text. Raises OSError."""
    with Requests(broker, timeout_s=ANSWER_S) as client:
        answer = client.metadata(topic)
    addresses = {node.node_id: f"{node.host}:{node.port}" for node in answer.brokers}
    return {
        one.partition_index: (
            State(one.leader_id, one.leader_epoch, tuple(one.isr_nodes)),
            addresses.get(one.leader_id, ""),
        )
        for one in answer.topics[0].partitions
    }


def _all_states(topic: str, brokers: list[str]) -> Iterator[dict[int, tuple[State, str]]]:
    for broker in brokers:
        try:
            yield _states(broker, topic)
        except OSError:
            continue


def _write(topic: str, partition: int, brokers: list[str], end: float) -> None:
    client: Requests | None = None
    while time.monotonic() < end:
        try:
            if client is None:
                known = [states[partition] for states in _all_states(topic, brokers)]
                _, address = max(known, key=lambda one: one[0].epoch, default=(None, ""))
                client = Requests(address, timeout_s=ANSWER_S) if address else None
            if client is not None:
                answer = client.produce({(topic, partition): batch(b"%d" % partition)})[topic, partition]
                if answer.error_code is not ErrorCode.none:
                    raise OSError(answer.error_code.name)
                _say("written", partition)
        except OSError:
            if client is not None:
                client.close()
            client = None
        time.sleep(EVERY_S)


def _watch(topic: str, broker: str, end: float) -> None:
    told: dict[int, State] = {}
    while time.monotonic() < end:
        for partition, (state, _) in next(_all_states(topic, [broker]), {}).items():
            if told.get(partition) != state:
                told[partition] = state
                _say("state", broker, partition, *state)
        time.sleep(EVERY_S)


_LINES = threading.Lock()


def _say(*row: Any) -> None:
    with _LINES:
        print(json.dumps([time.time(), *row]), flush=True)


def main() -> None:
    seconds, topic, *brokers = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    partitions = next(_all_states(topic, brokers))
    for partition in partitions:
        threading.Thread(target=_write, args=(topic, partition, brokers, end)).start()
    for broker in brokers:
        threading.Thread(target=_watch, args=(topic, broker, end)).start()


if __name__ == "__main__":
    main()
