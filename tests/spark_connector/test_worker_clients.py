"""Connections between tasks: kept when a task ends well, closed when it does not, bounded in number."""

from __future__ import annotations

import subprocess
import sys

import pytest

from broker.client.settings import ClientSettings
from broker.protocol.topic_partition import TopicPartition
from spark_connector.worker_clients import WorkerClients

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
