"""Names of files and nodes that are numbers, and those that only look like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.log.producer_snapshot import snapshot_offsets
from broker.storage.storage import open_storage
from broker.stored_names import number_named
from spark_connector.loads.files.directory import FilesCommitLog
from spark_connector.loads.files.zookeeper_log import ZooKeeperCommitLog
from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore

NO_NUMBERS = ["", "x", "²", "٣", "-1", "+1", " 1", "1_0", "9" * 19, "9" * 5000]


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_what_is_no_number_is_none(name: str) -> None:
    assert number_named(name) is None


def test_numbers_have_leading_zeros_or_none() -> None:
    assert [number_named(name) for name in ("0", "7", "00000000000000000042", str(2**63 - 1))] == [0, 7, 42, 2**63 - 1]


def test_files_of_other_names_beside_the_records_are_passed_over(tmp_path: Path) -> None:
    directory = tmp_path / "_offsets" / "q"
    directory.mkdir(parents=True)
    for name in ("x", "²", "-1"):
        for suffix in (".pruned", ".json", ".noted", ".snapshot"):
            (directory / f"{name}{suffix}").touch()
    assert FilesCommitLog(open_storage(str(tmp_path)), "q").sequences() == []
    assert snapshot_offsets(directory) == []


def test_nodes_of_other_names_are_passed_over(zookeeper: str) -> None:
    store = ZooKeeperOffsetStore(f"{zookeeper}/stored-names")
    for name in ("²", "x"):
        store.ensure(f"/consumers/q/loads/{name}")
        store.ensure(f"/consumers/q/offsets/t/{name}")
    log = ZooKeeperCommitLog(store, "q")
    assert (log.sequences(), log.offsets()) == ([], {})
    log.close()
