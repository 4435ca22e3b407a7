"""Connections between tasks: kept when a task ends well, closed when it does not, bounded in number; and how long a
worker waits for a cluster that it has not reached yet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest

from broker.client.client_settings import ClientSettings
from broker.errors import ConnectionFailed
from broker.protocol.topic_partition import TopicPartition
from spark_connector.first_contact import FIRST_CONTACT_S
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.options.write_options import parse_write_options
from spark_connector.read.fetch import read_ranges
from spark_connector.read.planning import OffsetRange
from spark_connector.worker_clients import WorkerClients, worker_clients
from spark_connector.write import write_plan
from spark_connector.write.attempt import run_attempt
from spark_connector.write.task_report import Attempt
from spark_connector.write.write_plan import plan_write
from tests.support.broker_process import BrokerProcess
from tests.support.topics import Topic
from tests.support.waits import Waits

SETTINGS = ClientSettings.from_properties({"bootstrap.servers": "127.0.0.1:1"})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_fetcher_is_kept_for_the_next_task_of_its_partition() -> None:
    clients = WorkerClients()
    with clients.fetcher(SETTINGS, T0) as first:
        pass
    with clients.fetcher(SETTINGS, T1) as other:
        assert other is not first
    with clients.fetcher(ClientSettings.from_properties({"bootstrap.servers": "127.0.0.1:1"}), T0) as again:
        assert again is first
        with clients.fetcher(SETTINGS, T0) as second_at_once:
            assert second_at_once is not first


def test_a_fetcher_that_was_left_early_is_not_used_again() -> None:
    clients = WorkerClients()
    with pytest.raises(RuntimeError), clients.fetcher(SETTINGS, T0) as broken:
        raise RuntimeError
    with clients.fetcher(SETTINGS, T0) as fresh:
        assert fresh is not broken


def test_one_cluster_per_settings_and_not_too_many() -> None:
    clients = WorkerClients()
    first = clients.cluster(SETTINGS)
    assert clients.cluster(SETTINGS) is first
    for port in range(2, 8):
        clients.cluster(ClientSettings.from_properties({"bootstrap.servers": f"127.0.0.1:{port}"}))
    assert clients.cluster(SETTINGS) is not first
    clients.close()


def test_without_the_option_the_rack_is_that_of_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYKAFKA_CLIENT_RACK", "eu-1a")
    clients = WorkerClients()
    assert clients.cluster(SETTINGS).settings.client_rack == "eu-1a"
    named = parse_options(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "kafka.client.rack": "eu-1b"}, Mode.BATCH
    )
    assert clients.cluster(named.client).settings.client_rack == "eu-1b"
    clients.close()


def test_a_process_has_one_set_and_a_forked_child_its_own() -> None:
    program = (
        "import os; from spark_connector.worker_clients import worker_clients; mine = worker_clients();"
        "assert worker_clients() is mine; child = os.fork();"
        "child or os._exit(int(worker_clients() is mine));"
        "assert os.waitpid(child, 0)[1] == 0"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)  # here no other thread holds a lock


def test_no_collection_looks_through_what_a_worker_has_imported() -> None:
    program = (
        "import gc, os; from spark_connector.worker_clients import keep_imports; keep_imports();"
        "kept = gc.get_freeze_count(); assert kept > 10_000, kept; more = [[] for _ in range(1000)];"
        "keep_imports(); assert gc.get_freeze_count() <= kept;"
        "child = os.fork(); child or (keep_imports(), os._exit(int(gc.get_freeze_count() <= kept)));"
        "assert os.waitpid(child, 0)[1] == 0"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_tasks_and_plans_outlast_a_restart_of_the_broker_that_they_begin_in(
    broker_factory: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_factory()
    Topic(broker.bootstrap, "t", 2).number(3, 0)
    servers = {"kafka.bootstrap.servers": broker.bootstrap}
    reading = parse_options({**servers, "subscribe": "t"}, Mode.BATCH)
    writing = parse_write_options({**servers, "topic": "t", "delivery": "exactly-once"}, stream=False)
    ranges = [OffsetRange(T0, 0, 3), OffsetRange(T1, 0, 0)]
    planned = plan_write(writing)
    rows = pa.record_batch({"value": ["a"]})

    def start_after_15_s(now: float) -> None:
        if now == 15:
            broker.start()

    for run, expected in (
        (lambda: sum(batch.num_rows for batch in read_ranges(reading, ranges, {})), 3),
        (lambda: plan_write(writing).options.exactly_once, True),
        (lambda: run_attempt(planned, Attempt("w", None, 0), [rows]).rows, 1),
    ):
        worker_clients().close()  # each in a worker of its own
        write_plan._plans.clear()
        broker.kill()
        with monkeypatch.context() as patched:
            Waits(patched, start_after_15_s)
            assert run() == expected
    worker_clients().close()
    write_plan._plans.clear()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, FIRST_CONTACT_S),
        ({"kafka.max.block.ms": "5000"}, 5),
        ({"kafka.max.block.ms": "5000", "kafka.default.api.timeout.ms": "7000"}, 7),
    ],
)
def test_a_write_gives_up_a_cluster_that_was_never_reached_after_seconds_unless_the_user_sets_the_time(
    given: dict[str, str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(monkeypatch)
    with pytest.raises(ConnectionFailed):
        plan_write(parse_write_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", **given}, stream=False))
    assert waits.now == seconds + 1  # the wait that would be too long is not waited
    worker_clients().close()
