"""The offsets of many partitions: one reading of the log, and what deltalake says of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from tests.support.table_harness import DeltaWorld, delta_world

MANY = 40


@pytest.fixture
def delta(tmp_path: Path) -> DeltaWorld:
    world = delta_world(tmp_path)
    world.grow(MANY, 1)
    world.load()
    return world


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The appIds for which deltalake is asked, each a replay of the log."""
    found: list[str] = []
    version_of = DeltaTable.transaction_version

    def counted(table: DeltaTable, app_id: str) -> int | None:
        found.append(app_id)
        return version_of(table, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    return found


def set_offset(storage: Storage, group: str, tp: TopicPartition, offset: int) -> None:
    """As another program may."""
    table = DeltaTable(storage.url)
    moved = CommitProperties(app_transactions=[Transaction(f"{group}/{tp.topic}/{tp.partition}", offset)])
    table.create_write_transaction([], "append", table.schema(), commit_properties=moved)


def test_many_offsets_are_one_reading_of_the_log(delta: DeltaWorld, asked: list[str]) -> None:
    wanted = [*delta.ends, TopicPartition("t", MANY)]
    assert DeltaCommitLog(delta.output, delta.group).offsets(wanted) == delta.ends
    assert asked == [delta.group]


def without_first(storage: Storage) -> None:
    DeltaTable(storage.url).create_checkpoint()
    storage.remove(f"_delta_log/{0:020d}.json")


def in_parts(storage: Storage) -> None:
    """A checkpoint in the name of which more is than the version, and no commit before it."""
    table = DeltaTable(storage.url)
    table.create_checkpoint()
    log, version = Path(storage.url.removeprefix("file://")) / "_delta_log", f"{table.version():020d}"
    (log / f"{version}.checkpoint.parquet").rename(log / f"{version}.checkpoint.{1:010d}.{1:010d}.parquet")
    (log / "_last_checkpoint").write_text(f'{{"version": {table.version()}, "size": 1, "parts": 1}}')
    without_commits(storage, table.version())


def without_column(storage: Storage) -> None:
    """A checkpoint of a writer that leaves out the columns of actions that the table does not have."""
    table = DeltaTable(storage.url)
    table.create_checkpoint()
    log = Path(storage.url.removeprefix("file://")) / "_delta_log"
    checkpoint = log / f"{table.version():020d}.checkpoint.parquet"
    pq.write_table(pq.read_table(checkpoint).drop_columns("txn"), checkpoint)


def without_commits(storage: Storage, version: int) -> None:
    for number in range(version):
        storage.remove(f"_delta_log/{number:020d}.json")


def expiring(storage: Storage) -> None:
    table = DeltaTable(storage.url)
    table.alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 0 days"}, raise_if_not_exists=False
    )


@pytest.mark.parametrize(
    "change", [None, without_first, in_parts, without_column, expiring], ids=lambda one: getattr(one, "__name__", "")
)
def test_deltalake_agrees(delta: DeltaWorld, change: Callable[[Storage], Any] | None) -> None:
    set_offset(delta.output, delta.group, TopicPartition("t", 7), 5)
    if change is not None:
        change(delta.output)
    set_offset(delta.output, delta.group, TopicPartition("t", 8), 6)
    table = DeltaTable(delta.output.url)
    told = {tp: table.transaction_version(f"{delta.group}/{tp.topic}/{tp.partition}") for tp in delta.ends}
    found = DeltaCommitLog(delta.output, delta.group).offsets(delta.ends)
    assert found == {tp: version for tp, version in told.items() if version is not None}
