"""A disk that takes its time: others are served meanwhile, nothing changes places, nothing acknowledged is lost.

The broker is the real one, but its `os.pwrite` into the log of some topics waits as long as a file is there.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tests.api.test_group_offsets import await_coordinator, commit, committed
from tests.api.test_groups import RawMember
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, batch
from tests.support.raw_transactions import RawProducer, committed_values
from tests.support.scrape import Scrape
from tests.support.waiting import eventually

CLOSED = "kafka_server_socketservermetrics_connection_close_total"

SLOW = """
import errno, os, time
pwrite = os.pwrite
def slow(fd, data, position):
    name = os.readlink(f"/proc/self/fd/{{fd}}")
    if name.endswith(".log") and any(log in name for log in open("{here}/logs").read().split()):
        if os.path.exists("{here}/late"):
            time.sleep(0.05)
        while os.path.exists("{here}/held"):
            open("{here}/waits", "w").close()
            time.sleep(0.002)
        if os.path.exists("{here}/full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return pwrite(fd, data, position)
os.pwrite = slow
"""


class SlowDisk:
    """What the broker does is told it by files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "sitecustomize.py").write_text(SLOW.format(here=directory))
        self.of("slow")

    def of(self, *topics: str) -> None:
        """Whose logs it is slow for."""
        (self._directory / "logs").write_text(" ".join(f"/{topic}-" for topic in topics))

    def be(self, *states: str) -> None:
        """The new states begin before the others end: a write that was held must find the disk full."""
        for state in states:
            (self._directory / state).touch()
        for state in {"late", "held", "full"} - set(states):
            (self._directory / state).unlink(missing_ok=True)

    def hold(self, ask: Requests, topic: str) -> None:
        """From now on writes wait; the one before was late."""
        self.be("late")
        ask.put(topic, b"late")
        self.be("held")

    def wait(self) -> None:
        """Until a write waits."""
        eventually((self._directory / "waits").exists)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    directory = tmp_path / "disk"
    directory.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(directory))
    return SlowDisk(directory)


@pytest.fixture
def slow(broker_factory: BrokerFactory, disk: SlowDisk) -> BrokerProcess:
    return broker_factory({"group.initial.rebalance.delay.ms": "0", "metrics.listener": "HTTP://127.0.0.1:0"})


def held_bytes(broker: BrokerProcess) -> float:
    """What requests take of `queued.max.request.bytes`."""
    return Scrape(broker.metrics_url).total("kafka_server_socketservermetrics_memorypoolused_bytes")


def send(ask: Requests, topic: str, records: bytes) -> None:
    data = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
    ask.send(ApiKey.PRODUCE, {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": [data]})


def answer(ask: Requests) -> Any:
    return ask.receive(ApiKey.PRODUCE).responses[0].partition_responses[0]


def test_a_slow_write_holds_up_nobody_else_and_nothing_changes_places(slow: BrokerProcess, disk: SlowDisk) -> None:
    with (
        Requests(slow.bootstrap) as ask,
        Requests(slow.bootstrap) as first,
        Requests(slow.bootstrap) as second,
        Requests(slow.bootstrap) as third,
    ):
        ask.create("slow", 1)
        ask.create("fast", 1)
        ask.put("fast", b"there")
        await_coordinator(ask, "others")
        assert commit(ask, "others", {("fast", 0): 0}) == {("fast", 0): ErrorCode.none}
        await_coordinator(ask, "group")
        member = RawMember(ask, "group")
        assert member.join().error_code is ErrorCode.none
        member.sync(5)
        transaction = RawProducer(third, "id").begin()
        assert transaction.add(("slow", 0), ("fast", 0)) == [ErrorCode.none] * 2
        assert transaction.send("slow", b"of a transaction") is ErrorCode.none

        disk.hold(ask, "slow")
        sent = [(producer, n) for n in range(5) for producer in (7, 8)]
        for producer, n in sent:
            records = batch(b"%d:%d" % (producer, n), producer_id=producer, producer_epoch=0, base_sequence=n)
            send(first if producer == 7 else second, "slow", records)
        disk.wait()
        assert transaction.end(settled=False) is ErrorCode.none  # decided; its marker waits behind the records

        assert member.heartbeat(4) is ErrorCode.none
        assert commit(ask, "others", {("fast", 0): 1}) == {("fast", 0): ErrorCode.none}
        assert len(ask.metadata("slow", "fast").topics) == 2
        assert ask.values("fast") == [b"there"]
        assert ask.put("fast", b"more") == 2  # behind the marker
        assert ask.list_offset("slow", -1).offset == 2
        assert ask.values("slow") == [b"of a transaction", b"late"]
        assert committed_values(ask, "slow") == []

        disk.be()
        answers = {7: [answer(first) for _ in range(5)], 8: [answer(second) for _ in range(5)]}
        eventually(lambda: len(committed_values(ask, "slow")) == 12)
        placed = dict(enumerate([b"of a transaction", b"late"]))
        for producer, of_one in answers.items():
            assert [one.error_code for one in of_one] == [ErrorCode.none] * 5
            offsets = [one.base_offset for one in of_one]
            assert offsets == sorted(offsets)
            placed |= {offset: b"%d:%d" % (producer, n) for n, offset in enumerate(offsets)}
        assert committed_values(ask, "slow") == [placed[offset] for offset in sorted(placed)]
        again = batch(b"8:4", producer_id=8, producer_epoch=0, base_sequence=4)
        assert ask.produce({("slow", 0): again})["slow", 0].base_offset == answers[8][4].base_offset


def test_coordinators_that_wait_for_the_disk_hold_up_nobody_else(slow: BrokerProcess, disk: SlowDisk) -> None:
    with (
        Requests(slow.bootstrap) as ask,
        Requests(slow.bootstrap) as first,
        Requests(slow.bootstrap) as second,
        Requests(slow.bootstrap) as third,
        ThreadPoolExecutor() as clients,
    ):
        ask.create("slow", 1)
        ask.create("fast", 1)
        await_coordinator(ask, "group")
        assert commit(ask, "group", {("fast", 0): 1}) == {("fast", 0): ErrorCode.none}
        await_coordinator(ask, "members")
        member = RawMember(ask, "members")
        assert member.join().error_code is ErrorCode.none
        member.sync(5)
        transaction = RawProducer(third, "id").begin()
        assert transaction.add_offsets("group") is ErrorCode.none
        assert transaction.add(("fast", 0)) == [ErrorCode.none]
        assert transaction.send("fast", b"of a transaction") is ErrorCode.none
        assert transaction.commit_offset("group", "fast", 2) is ErrorCode.none

        disk.of("slow", GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
        disk.hold(ask, "slow")
        waiting = clients.submit(commit, first, "group", {("slow", 0): 7})
        disk.wait()
        ended = clients.submit(transaction.end)
        other = clients.submit(commit, second, "other group", {("fast", 0): 3})

        assert member.heartbeat(4) is ErrorCode.none
        assert ask.put("fast", b"more") == 1
        assert ask.values("fast") == [b"of a transaction", b"more"]
        assert committed(ask, "group", None) == {("fast", 0): (1, "at 1")}
        assert committed_values(ask, "fast") == []
        assert not any(one.done() for one in (waiting, ended, other))

        disk.be()
        assert waiting.result() == {("slow", 0): ErrorCode.none}
        assert other.result() == {("fast", 0): ErrorCode.none}
        assert ended.result() is ErrorCode.none
        eventually(lambda: committed_values(ask, "fast") == [b"of a transaction", b"more"])
        held = {("fast", 0): (2, ""), ("slow", 0): (7, "at 7")}
        eventually(lambda: committed(ask, "group", None) == held)
    slow.stop()
    slow.start()
    with Requests(slow.bootstrap) as ask:
        eventually(lambda: committed(ask, "group", None) == held)


def test_a_disk_that_is_full_while_it_is_slow_is_told_and_left(slow: BrokerProcess, disk: SlowDisk) -> None:
    with Requests(slow.bootstrap) as ask, Requests(slow.bootstrap) as other:
        ask.create("slow", 1)
        disk.hold(ask, "slow")
        send(other, "slow", batch(b"refused"))
        disk.wait()
        left = Scrape(slow.metrics_url).total(CLOSED, reason="client")
        with Requests(slow.bootstrap) as gone:
            send(gone, "slow", batch(bytes(100_000)))
            eventually(lambda: held_bytes(slow) > 100_000)
        eventually(lambda: Scrape(slow.metrics_url).total(CLOSED, reason="client") > left)
        assert held_bytes(slow) > 100_000, "whose client is gone still waits, and counts"
        disk.be("full")
        refused = answer(other)
        assert refused.error_code is ErrorCode.kafka_storage_error
        assert "slow-0: No space left on device" in refused.error_message
        eventually(lambda: held_bytes(slow) == 0)
        disk.be()
        assert ask.put("slow", b"taken") == 1
        assert ask.values("slow") == [b"late", b"taken"]
    said = [line for line in slow.output.splitlines() if "appends" in line]
    assert len(said) == 2, "once when it stopped, once when it went on"


def test_a_stop_while_the_disk_is_slow_loses_nothing(slow: BrokerProcess, disk: SlowDisk) -> None:
    with Requests(slow.bootstrap) as ask, Requests(slow.bootstrap) as other:
        ask.create("slow", 1)
        disk.hold(ask, "slow")
        send(other, "slow", batch(b"under way", producer_id=7, producer_epoch=0, base_sequence=0))
        disk.wait()
        stopping = threading.Thread(target=slow.stop)
        stopping.start()
        assert other.is_hung_up()
    assert stopping.is_alive(), "a stop waits for what is under way"
    disk.be()
    stopping.join()
    slow.start()
    assert "not closed cleanly" not in slow.output
    with Requests(slow.bootstrap) as ask:
        assert ask.values("slow") == [b"late", b"under way"]
        again = batch(b"under way", producer_id=7, producer_epoch=0, base_sequence=0)
        assert ask.produce({("slow", 0): again})["slow", 0].base_offset == 1
        assert ask.put("slow", b"next") == 2
