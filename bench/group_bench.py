"""What a group of a thousand members costs the broker: a classic, a consumer (KIP-848) and a share group.

The clients are bare sockets in one thread, one for each member, and only the broker's CPU is counted. Members send the
next heartbeat when all have an answer: a round stands for an interval of heartbeats, however long that is.
"""

from __future__ import annotations

import contextlib
import select
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.measure import Row
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.consumer_protocol import Subscription, encode_assignment, encode_subscription
from broker.protocol.topic_partition import TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests

MEMBERS = 1_000
ROUNDS = 10
TOPIC = "shared"
_VERSIONS = {ApiKey.JOIN_GROUP: 5, ApiKey.SYNC_GROUP: 3, ApiKey.HEARTBEAT: 4}


def run(scale: float = 1.0) -> list[Row]:
    """All rows; `scale` makes the groups smaller."""
    size = max(int(MEMBERS * scale), 10)
    settings = {
        "group.initial.rebalance.delay.ms": "1000",
        "log.retention.check.interval.ms": "86400000",
        "group.share.max.size": "1000",
    }
    rows = []
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerProcess(Path(directory) / "data", settings, standalone=True) as broker,
    ):
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).create_topic(TOPIC, size)
            for kind in (_Classic, _New, _Share):
                cluster.coordinator(kind.group)
        for kind in (_Classic, _New):
            rows += _measure(broker, kind, size)
        rows += _measure(broker, _Share, size - 1)  # one more is as many as may be
    return rows


class _Member:
    """A member that knows whether it has its share of the newest generation or epoch."""

    group = ""
    settled = False
    """Whether the last answer said that there is nothing to do."""
    waits = False
    """Whether it is for others that it waits for an answer."""

    def __init__(self, broker: BrokerProcess, number: int) -> None:
        self.requests = Requests(broker.bootstrap, timeout_s=120)
        self.number = number

    def send(self) -> None:
        """What it has to say now: join, synchronise, or a heartbeat."""
        raise NotImplementedError

    def take(self) -> None:
        """The answer to that."""
        raise NotImplementedError


class _Classic(_Member):
    group = "classic"

    def __init__(self, broker: BrokerProcess, number: int) -> None:
        super().__init__(broker, number)
        self._api = ApiKey.JOIN_GROUP
        self._member_id, self._generation = "", -1
        self._shares: list[dict[str, Any]] = []

    def send(self) -> None:
        body: dict[str, Any] = {"group_id": self.group, "member_id": self._member_id, "group_instance_id": None}
        if self._api is ApiKey.JOIN_GROUP:
            metadata = encode_subscription(Subscription((TOPIC,), (), -1, b""))
            body |= {"session_timeout": 300_000, "rebalance_timeout": 300_000, "protocol_type": "consumer"}
            body |= {"protocols": [{"name": "range", "metadata": metadata}]}
        else:
            body |= {"generation_id": self._generation, "assignments": self._shares}
        self.requests.send(self._api, body, _VERSIONS[self._api])
        self.waits = self._api is not ApiKey.HEARTBEAT

    def take(self) -> None:
        answer = self.requests.receive(self._api, _VERSIONS[self._api])
        self.waits = False
        if self._api is ApiKey.JOIN_GROUP:
            self._member_id = answer.member_id
            if answer.error_code is ErrorCode.member_id_required:
                return
            self._generation, self._api = int(answer.generation_id), ApiKey.SYNC_GROUP
            self._shares = [
                {"member_id": one.member_id, "assignment": encode_assignment([TopicPartition(TOPIC, n)])}
                for n, one in enumerate(answer.members)
            ]
            return
        self.settled = answer.error_code is ErrorCode.none
        assert self.settled or answer.error_code is ErrorCode.rebalance_in_progress, answer
        self._api, self._shares = (ApiKey.HEARTBEAT if self.settled else ApiKey.JOIN_GROUP), []


class _New(_Member):
    group = "consumer"

    def __init__(self, broker: BrokerProcess, number: int) -> None:
        super().__init__(broker, number)
        self._epoch = 0
        self._owned: list[dict[str, Any]] = []
        self._told = self._owned

    def send(self) -> None:
        member_id = f"member-{self.number}"
        body: dict[str, Any] = {"group_id": self.group, "member_id": member_id, "member_epoch": self._epoch}
        body |= {"topic_partitions": None if self._owned == self._told else self._owned}
        if self._epoch == 0:
            body |= {"rebalance_timeout": 300_000, "subscribed_topic_names": [TOPIC], "topic_partitions": []}
        self._told = self._owned
        self.requests.send(ApiKey.CONSUMER_GROUP_HEARTBEAT, body, 1)

    def take(self) -> None:
        answer = self.requests.receive(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1)
        assert answer.error_code is ErrorCode.none, answer
        self.settled = answer.assignment is None and self._owned == self._told and self._epoch == answer.member_epoch
        self._epoch = int(answer.member_epoch)
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            self._owned = [{"topic_id": row.topic_id, "partitions": list(row.partitions)} for row in rows]


class _Share(_Member):
    group = "share"

    def __init__(self, broker: BrokerProcess, number: int) -> None:
        super().__init__(broker, number)
        self._epoch = 0

    def send(self) -> None:
        body = {"group_id": self.group, "member_id": f"member-{self.number}", "member_epoch": self._epoch}
        body |= {"subscribed_topic_names": [TOPIC] if self._epoch == 0 else None}
        self.requests.send(ApiKey.SHARE_GROUP_HEARTBEAT, body, 1)

    def take(self) -> None:
        answer = self.requests.receive(ApiKey.SHARE_GROUP_HEARTBEAT, 1)
        assert answer.error_code is ErrorCode.none, answer
        self.settled = answer.assignment is None and self._epoch == answer.member_epoch
        self._epoch = int(answer.member_epoch)


def _measure(broker: BrokerProcess, kind: type[_Member], size: int) -> list[Row]:
    process, poller = psutil.Process(broker.pid), select.epoll()
    members: list[_Member] = []
    by_descriptor: dict[int, _Member] = {}
    count = 0

    def cpu_of(action: Callable[[], None]) -> float:
        before = process.cpu_times()
        action()
        after = process.cpu_times()
        return after.user + after.system - before.user - before.system

    def beat() -> None:
        nonlocal count
        asked = [member for member in members if not member.waits]
        for member in asked:
            member.send()
        count += len(asked)
        answers = {member for member in asked if not member.waits}
        idle = not answers
        while answers or idle:
            for descriptor, _ in poller.poll(60):
                by_descriptor[descriptor].take()
                answers.discard(by_descriptor[descriptor])
                idle = False

    def settle() -> None:
        beat()
        while not all(member.settled for member in members):
            beat()

    def quiet_rounds() -> None:
        for _ in range(ROUNDS):
            beat()

    with contextlib.ExitStack() as stack:

        def add(number: int) -> None:
            members.append(kind(broker, number))
            socket = stack.enter_context(members[-1].requests).socket
            by_descriptor[socket.fileno()] = members[-1]
            poller.register(socket, select.EPOLLIN)

        for number in range(size):
            add(number)
        joined = cpu_of(settle)
        add(size)
        one_more = cpu_of(settle)
        count = 0
        quiet = cpu_of(quiet_rounds)
        name = f"{size:,} members, {kind.group}:"
        return [
            Row(f"{name} CPU until all that join at once have their share", joined, "s"),
            Row(f"{name} CPU until one more has", one_more, "s"),
            Row(f"{name} CPU of a heartbeat while nothing happens", quiet / count * 1e6, "µs"),
        ]
