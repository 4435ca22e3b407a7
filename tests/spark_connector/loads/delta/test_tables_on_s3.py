"""What else can be done with a Delta table on S3: upserts, compaction, reading its files as a history."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from broker.storage.storage import open_storage
from spark_connector.maintenance import compact
from tests.support.crashing import CrashPoint
from tests.support.fake_s3 import FakeS3
from tests.support.table_harness import check_whole, s3_world
from tests.support.upsert_harness import UpsertIntoDelta, UpsertTopic


def test_upserts_are_merged(s3: FakeS3, tmp_path: Path) -> None:
    world = UpsertIntoDelta(tmp_path, UpsertTopic())
    world.output = open_storage("s3://lake/upserts", s3.options)
    for name in ("a", "b", None, "c"):
        for key in range(4 if name else 2):
            world.source.send(key, name)
        assert world.load() is not None
        table = DeltaTable(world.output.url, storage_options=world.output.object_store_options)
        rows = table.to_pyarrow_table().to_pylist()
        assert {row["id"]: row["name"] for row in rows} == world.source.rows()
        assert len(rows) == len(world.source.rows())
    assert [key for key in s3.keys("lake/upserts") if "/_staging/" in key] == []


def test_files_are_compacted_and_deleted(s3: FakeS3) -> None:
    world = s3_world(s3)
    world.load()
    compact(world.target, rewindable="0s", vacuum=True)
    assert world.visible() == world.produced()
    world.grow()
    world.load()
    check_whole(world)


def test_a_snapshot_has_the_rows(s3: FakeS3) -> None:
    world = s3_world(s3)
    with world.opened(CrashPoint()) as site:
        snapshot = site.snapshot(world.ends)
        read = [snapshot.scan.read(file, ["offset"]) for file in snapshot.files]
        assert sum(batch.num_rows for batches in read for batch in batches) == len(world.visible())
