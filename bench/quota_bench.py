"""Client quotas: how exact they are, what a throttled client costs its neighbour, and what many cost the broker.

Producers are bare sockets with frames made beforehand, in threads of this process; the broker's CPU time is its own.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.measure import Row
from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.protocol.api_keys import ApiKey
from broker.quotas.quota_entity import QuotaEntity
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, ask_for, batch, fetch_body

RATE = 5_000_000
MANY = 1000
TOPIC = "quotas"


def run(scale: float = 1.0) -> Iterator[Row]:
    """All rows; `scale` shortens the run."""
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory), standalone=True) as broker:
        with Requests(broker.bootstrap) as ask:
            ask.create(TOPIC)
        yield from _accuracy(broker, scale)
        yield from _neighbour(broker, 10 * scale)
        yield from _many(broker, 20 * scale)


def _limit(broker: BrokerProcess, client_id: str, rate: float, key: str = "producer_byte_rate") -> None:
    with Cluster(ClientSettings.from_properties({"bootstrap.servers": broker.bootstrap})) as cluster:
        Admin(cluster).alter_client_quotas(QuotaEntity(client_id=client_id), {key: rate})


def _body(size: int) -> dict[str, object]:
    rows = [{"index": 0, "records": batch(os.urandom(size))}]
    topics = [{"name": TOPIC, "partition_data": rows}]
    return {"transactional_id": None, "acks": 1, "timeout": 30_000, "topic_data": topics}


def _produce(broker: BrokerProcess, client_id: str, size: int, seconds: float) -> list[tuple[float, float]]:
    """(when, how long) of each request."""
    body, answered = _body(size), []
    with Requests(broker.bootstrap, client_id=client_id) as client:
        begin = time.perf_counter()
        while (sent := time.perf_counter()) < begin + seconds:
            client.ask(ApiKey.PRODUCE, body)
            answered.append((sent - begin, time.perf_counter() - sent))
    return answered


def _fetch(broker: BrokerProcess, client_id: str, seconds: float) -> list[tuple[float, int]]:
    """(when, bytes) of each answer."""
    body, found = fetch_body([ask_for(TOPIC)]), []
    with Requests(broker.bootstrap, client_id=client_id) as client:
        begin = time.perf_counter()
        now = 0.0
        while now < seconds:
            answer = client.ask(ApiKey.FETCH, body, 12)
            now = time.perf_counter() - begin
            rows = [partition.records for topic in answer.responses for partition in topic.partitions]
            found.append((now, sum(len(one or b"") for one in rows)))
    return found


def _accuracy(broker: BrokerProcess, scale: float) -> Iterator[Row]:
    """From the first request on. The most and the least are those of all spans that begin with a request."""
    seconds, span = 60 * scale, 10 * scale
    _limit(broker, "exact", RATE)
    _limit(broker, "exact", RATE, "consumer_byte_rate")
    produced = [(when, 16_000) for when, _ in _produce(broker, "exact", 16_000, seconds)]
    for kind, moved in (("producer", produced), ("consumer", _fetch(broker, "exact", seconds))):
        yield Row(f"throttled {kind}, {seconds:g} s", sum(size for _, size in moved) / seconds, "B/s", RATE)
        begins = [when for when, _ in moved if when + span <= seconds]
        rates = [sum(size for when, size in moved if begin <= when < begin + span) / span for begin in begins[::20]]
        yield Row(f"throttled {kind}, the first {span:g} s", rates[0], "B/s", RATE)
        yield Row(f"throttled {kind}, the most in any {span:g} s", max(rates), "B/s", RATE)
        yield Row(f"throttled {kind}, the least in any {span:g} s", min(rates), "B/s", RATE)


def _neighbour(broker: BrokerProcess, seconds: float) -> Iterator[Row]:
    """In turn, because a machine with other work changes its speed from second to second."""
    _limit(broker, "greedy", 100_000)
    alone, beside = [], []
    for _ in range(5):
        alone.append(_median(_produce(broker, "neighbour", 1000, seconds / 5)))
        threads = [threading.Thread(target=_produce, args=(broker, "greedy", 50_000, seconds / 5)) for _ in range(4)]
        for thread in threads:
            thread.start()
        beside.append(_median(_produce(broker, "neighbour", 1000, seconds / 5)))
        for thread in threads:
            thread.join()
    yield Row("neighbour's request, alone", statistics.median(alone) * 1e6, "µs")
    ceiling = statistics.median(alone) * 1e6
    yield Row("beside four throttled producers", statistics.median(beside) * 1e6, "µs", ceiling)


def _median(answered: list[tuple[float, float]]) -> float:
    return sorted(took for _, took in answered)[len(answered) // 2]


def _many(broker: BrokerProcess, seconds: float) -> Iterator[Row]:
    """Clients that send their next request at once and wait for its answer: throttled for a minute and more."""
    _limit(broker, "many", 10.0)
    body = _body(1000)
    clients = [Requests(broker.bootstrap, client_id="many") for _ in range(MANY)]
    for client in clients:
        client.ask(ApiKey.PRODUCE, body)
        client.send(ApiKey.PRODUCE, body)
    process = psutil.Process(broker.pid)
    before, begin = process.cpu_times(), time.perf_counter()
    threading.Event().wait(seconds)
    after, elapsed = process.cpu_times(), time.perf_counter() - begin
    used = after.user + after.system - before.user - before.system
    yield Row(f"{MANY} throttled clients, of one core", used / elapsed * 100, "%")
    for client in clients:
        client.close()
