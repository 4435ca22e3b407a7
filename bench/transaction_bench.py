"""Transactions per second of ten producers, and how long a group of fifty members takes to agree.

The clients are bare sockets with frames made beforehand, all in one thread: what is measured is the broker.
"""

from __future__ import annotations

import contextlib
import select
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.measure import Row
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response, encode_request
from broker.records.batch import parse_header, patch_producer
from broker.records.builder import BatchBuilder
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests

PRODUCERS = 10
MEMBERS = 50
TOPIC = "transactions"
ADD, PRODUCE, END = (ApiKey.ADD_PARTITIONS_TO_TXN, 3), (ApiKey.PRODUCE, 9), (ApiKey.END_TXN, 4)


def run(scale: float = 1.0) -> list[Row]:
    """All rows; `scale` shortens the run."""
    settings = {"num.partitions": str(PRODUCERS), "group.initial.rebalance.delay.ms": "0"}
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "data", settings) as broker:
        return [*_transactions(broker, max(int(2000 * scale), 20)), *_rebalance(broker)]


class _TransactionalProducer:
    """One producer going round: add its partition, produce a batch of one record, commit."""

    def __init__(self, broker: BrokerProcess, number: int) -> None:
        self._name = f"producer-{number}"
        self._partition = number
        self.requests = Requests(broker.bootstrap)
        self._sequence = 0
        self.done = 0
        self._step = 0
        self._begin()

    def _begin(self) -> None:
        find = {"key_type": 1, "coordinator_keys": [self._name]}
        while self.requests.ask(ApiKey.FIND_COORDINATOR, find).coordinators[0].error_code is not ErrorCode.none:
            pass
        body = {
            "transactional_id": self._name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1,
        }  # fmt: skip
        answer = self.requests.ask(ApiKey.INIT_PRODUCER_ID, body, 4)
        assert answer.error_code is ErrorCode.none, answer
        self._id, self._epoch = int(answer.producer_id), int(answer.producer_epoch)
        who = {"transactional_id": self._name, "producer_id": self._id, "producer_epoch": self._epoch}
        partitions = {"topics": [{"name": TOPIC, "partitions": [self._partition]}]}
        self._add = _frame(*ADD, {f"v3_and_below_{name}": value for name, value in {**who, **partitions}.items()})
        self._end = _frame(*END, {**who, "committed": True})

    def step(self) -> None:
        """Check the answer that is there, and send what is next."""
        if self._step:
            self._check()
        if self._step == 3:
            self.done, self._step = self.done + 1, 0
        if self._step == 0:
            self.requests.socket.sendall(self._add)
        elif self._step == 1:
            self.requests.socket.sendall(self._produce())
        else:
            self.requests.socket.sendall(self._end)
        self._step += 1

    def _check(self) -> None:
        api, version = (ADD, PRODUCE, END)[self._step - 1]
        (length,) = struct.unpack(">i", self.requests.read(4))
        payload = self.requests.read(length)
        if self.done % 100 and api is not ApiKey.ADD_PARTITIONS_TO_TXN:
            return  # looked into now and then only: this client must not be what is measured
        body = decode_response(api, version, payload)[1]
        if api is ApiKey.ADD_PARTITIONS_TO_TXN:
            code = body.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code is ErrorCode.concurrent_transactions:
                self._step = 0
                return
        elif api is ApiKey.PRODUCE:
            code = body.responses[0].partition_responses[0].error_code
        else:
            code = body.error_code
        assert code is ErrorCode.none, (api, code)

    def _produce(self) -> bytes:
        builder = BatchBuilder(transactional=True, producer_id=self._id, producer_epoch=self._epoch)
        builder.append(1_700_000_000_000, None, b"x" * 100)
        data = bytearray(builder.build())
        patch_producer(data, 0, parse_header(data), self._id, self._epoch, self._sequence)
        self._sequence += 1
        partition = {"index": self._partition, "records": bytes(data)}
        topic = {"name": TOPIC, "partition_data": [partition]}
        body = {"transactional_id": self._name, "acks": -1, "timeout": 30_000, "topic_data": [topic]}
        return _frame(*PRODUCE, body)


def _frame(api: ApiKey, version: int, body: dict[str, Any]) -> bytes:
    return encode_request(api, version, 1, "bench", body)


def _transactions(broker: BrokerProcess, each: int) -> list[Row]:
    process = psutil.Process(broker.pid)
    with contextlib.ExitStack() as stack:
        Requests(broker.bootstrap).metadata(TOPIC, create=True)
        producers = [_TransactionalProducer(broker, n) for n in range(PRODUCERS)]
        poller = select.epoll()
        by_descriptor = {}
        for producer in producers:
            stack.enter_context(producer.requests)
            by_descriptor[producer.requests.socket.fileno()] = producer
            poller.register(producer.requests.socket, select.EPOLLIN)
        before, start = process.cpu_times(), time.perf_counter()
        for producer in producers:
            producer.step()
        while (done := sum(p.done for p in producers)) < each * PRODUCERS:
            for descriptor, _ in poller.poll(5):
                by_descriptor[descriptor].step()
        took = time.perf_counter() - start
        after = process.cpu_times()
        cpu = after.user + after.system - before.user - before.system
    return [
        Row("transactions of one batch, 10 producers", done / took, "/s"),
        Row("CPU of a transaction (3 requests)", cpu / done * 1e6, "µs"),
    ]


class _Member:
    """One member of the group: joins, syncs, and joins again whenever the generation was left behind."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.requests = Requests(broker.bootstrap)
        self.member_id = ""
        self.generation = -1
        """That it has an assignment of; -1 while it waits for one."""
        self._joined = -1
        self._waits_for = ApiKey.JOIN_GROUP

    def join(self) -> None:
        self.generation, self._waits_for = -1, ApiKey.JOIN_GROUP
        self.requests.send(ApiKey.JOIN_GROUP, _join_body(self.member_id), 5)

    def step(self) -> None:
        """Take the answer that is there, and send what is next."""
        if self._waits_for is ApiKey.SYNC_GROUP:
            if self.requests.receive(ApiKey.SYNC_GROUP, 3).error_code is ErrorCode.none:
                self.generation = self._joined
            else:
                self.join()
            return
        answer = self.requests.receive(ApiKey.JOIN_GROUP, 5)
        self.member_id = answer.member_id
        if answer.error_code is ErrorCode.member_id_required:
            self.join()
            return
        assert answer.error_code is ErrorCode.none, answer
        self._joined, self._waits_for = int(answer.generation_id), ApiKey.SYNC_GROUP
        shares = [{"member_id": member.member_id, "assignment": b"a"} for member in answer.members]
        body = {
            "group_id": "fifty", "generation_id": self._joined, "member_id": self.member_id,
            "group_instance_id": None, "assignments": shares,
        }  # fmt: skip
        self.requests.send(ApiKey.SYNC_GROUP, body, 3)


def _rebalance(broker: BrokerProcess) -> list[Row]:
    """Fifty members of one generation, and one more joins; until everyone has an assignment of the next."""
    with contextlib.ExitStack() as stack:
        members = [_Member(broker) for _ in range(MEMBERS + 1)]
        for member in members:
            stack.enter_context(member.requests)
        find = {"key_type": 0, "coordinator_keys": ["fifty"]}
        while members[0].requests.ask(ApiKey.FIND_COORDINATOR, find).coordinators[0].error_code is not ErrorCode.none:
            pass
        _agree(members[:-1], members[:-1])
        start = time.perf_counter()
        _agree(members, members[-1:])
        return [Row(f"rebalance of {MEMBERS} members when one joins", (time.perf_counter() - start) * 1e3, "ms")]


def _agree(members: list[_Member], joining: list[_Member]) -> None:
    """Until all are of one generation. Those of an older one learn at once what a heartbeat would tell them."""
    poller = select.epoll()
    by_descriptor = {member.requests.socket.fileno(): member for member in members}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.EPOLLIN)
    for member in joining:
        member.join()
    while len({member.generation for member in members}) > 1 or members[0].generation < 0:
        ready = poller.poll(0.005)
        for descriptor, _ in ready:
            by_descriptor[descriptor].step()
        if not ready:
            for member in members:
                if member.generation >= 0:
                    member.join()


def _join_body(member_id: str) -> dict[str, Any]:
    return {
        "group_id": "fifty", "session_timeout": 30_000, "rebalance_timeout": 60_000, "member_id": member_id,
        "group_instance_id": None, "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"m"}],
    }  # fmt: skip
