"""What pykafka 0.1.0 (commit efc2444e) wrote is read, and what a newer one writes is refused in one sentence.

Records had no versions above 1 then. tests/data/older was made by running that code; none of it is edited.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.archive.manifest import Add, BrokenManifest
from broker.archive.manifest_json import decode_entry
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.local_store import LocalStore
from spark_connector.errors import ConnectorError
from spark_connector.loads.bad_record_options import DeadLetterPlace
from spark_connector.loads.history import LoadState
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.loads.request import Target
from spark_connector.loads.upsert import Upsert
from spark_connector.maintenance import history
from spark_connector.offset_store.base import OffsetStoreError
from spark_connector.offset_store.files import FilesEntry
from spark_connector.read.stream_offset import StreamOffset

OLDER = Path(__file__).parent / "data" / "older"
PLAIN = LoadRecord("g-000001-0a0b0c0d", "/data", "delta", "table", 0, (LoadRange("t", 0, 0, 5, None, 3),))


def shown(target: Target) -> list[tuple[int, LoadState, int]]:
    return [(one.record.id.sequence, one.state, one.record.rows) for one in history(target).entries]


def test_loads_into_files_are_listed(tmp_path: Path) -> None:
    shutil.copytree(OLDER / "files", tmp_path / "files")
    assert shown(Target(str(tmp_path / "files"), "q")) == [(1, LoadState.PUBLISHED, 6)]


def test_loads_into_a_delta_table_are_listed(tmp_path: Path) -> None:
    shutil.copytree(OLDER / "delta", tmp_path / "delta")
    target = Target(str(tmp_path / "delta"), "group-0", format="delta")
    assert shown(target) == [(1, LoadState.PUBLISHED, 6), (2, LoadState.PUBLISHED, 6)]


def test_loads_into_a_database_are_listed(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "0.db")
    database.executescript((OLDER / "database.sql").read_text())
    database.close()
    [group] = {row[0] for row in _rows(tmp_path / "0.db", "SELECT group_id FROM pykafka_loads")}
    target = Target(f"sqlite:///{tmp_path}/0.db", group, table="rows", format="sql")
    assert shown(target) == [(1, LoadState.PUBLISHED, 6), (2, LoadState.PUBLISHED, 6)]


def _rows(path: Path, query: str) -> list[Any]:
    database = sqlite3.connect(path)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def test_records_of_an_iceberg_table_are_read() -> None:
    metadata = json.loads((OLDER / "iceberg.json").read_text())
    found = [LoadRecord.from_bytes(one["summary"]["pykafka.load"], "here") for one in metadata["snapshots"]]
    [note] = [json.loads(text) for name, text in metadata["properties"].items() if name.startswith("pykafka.load.")]
    assert LoadRecord.from_json(note["record"], "here") == found[-1]
    assert [record.id.sequence for record in found] == [1, 2]


def test_a_checkpoint_a_manifest_and_a_standalone_broker_are_read(tmp_path: Path) -> None:
    document = json.loads((OLDER / "checkpoint.json").read_text())
    assert StreamOffset.from_json(document).to_json() == document
    change = decode_entry((OLDER / "manifest.json").read_bytes()).change
    assert isinstance(change, Add)
    assert change.segment.end == 9
    shutil.copy(OLDER / "standalone.metadata", tmp_path / "standalone.metadata")
    with LocalStore(tmp_path / "standalone.metadata") as store:
        assert store.get("/cluster/id")[0] == b'{"id":"x"}'


def test_a_record_has_the_least_version_that_can_read_it_safely() -> None:
    assert PLAIN.to_json()["version"] == 1
    assert not {"about", "upsert", "fields", "bad_rows"} & PLAIN.to_json().keys()
    later = [
        replace(PLAIN, columns=("topic",)),
        replace(PLAIN, upsert=Upsert(("id",))),
        replace(PLAIN, fields={"a": "int"}),
        replace(PLAIN, about="g-000002-0a0b0c0d"),
        replace(PLAIN, dead_letters=(str(DeadLetterPlace.parse("delta:/bad")),)),
        PLAIN.with_bad_rows({}),
    ]
    for record in later:
        assert record.to_json()["version"] == 2
        assert LoadRecord.from_bytes(record.to_bytes(), "here") == record


READERS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "record": (
        lambda: LoadRecord.from_json({**PLAIN.to_json(), "version": 3, "ranges": "otherwise"}, "here"),
        LoadError,
        r"here: it was written by a newer pykafka \(record version 3, this one reads up to 2\): upgrade",
    ),
    "offset entry": (
        lambda: FilesEntry.from_bytes(b'{"version": 2, "offsets": 7}', "here"),
        OffsetStoreError,
        r"here was written by a newer pykafka \(entry version 2, this one reads up to 1\): upgrade",
    ),
    "checkpoint": (lambda: StreamOffset.from_json({"v": 2}), ConnectorError, "written in format 2, .* reads 1"),
    "manifest": (
        lambda: decode_entry(b'{"version": 2}'),
        BrokenManifest,
        "version 2 is of a later pykafka; this one reads up to 1",
    ),
}


@pytest.mark.parametrize("kept", READERS)
def test_what_a_newer_pykafka_has_written_is_refused_in_one_sentence(kept: str) -> None:
    read, error, told = READERS[kept]
    with pytest.raises(error, match=told):
        read()


def test_the_offsets_of_a_files_log_are_read() -> None:
    [path] = (OLDER / "files" / "_offsets" / "q").glob("*.json")
    entry = FilesEntry.from_bytes(path.read_bytes(), "here")
    assert entry.offsets == {TopicPartition("t", 0): 3, TopicPartition("t", 1): 3}
