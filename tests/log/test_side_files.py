"""A file beside the log that a power loss or a bad disk has spoilt costs time, never the start or a record."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker import durable_files
from broker.clock import ManualClock
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.log.checkpoints import (
    CLEAN_OFFSETS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_epochs,
)
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.log_directory import CLEAN_MARK
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType
from tests.support.batches import NOW, append, append_marker, batch, fill, read_all

SMALL = LogConfig(segment_bytes=4000, index_interval_bytes=0)
DAMAGED, SOUND = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER = 7
TOPIC_ID = uuid.uuid4()

SIDE_FILES = [
    LEADER_EPOCHS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    LOG_START_OFFSETS,
    CLEAN_OFFSETS,
    ".snapshot",
    ".index",
    ".timeindex",
    ".txnindex",
]
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) * 2 // 3 - 1],
    "zeros": lambda data: bytes(len(data)),
    "garbage": lambda data: bytes((byte * 131 + number * 197 + 89) % 256 for number, byte in enumerate(data)),
    "gone": lambda data: b"",
}


def open_manager(root: Path) -> LogManager:
    manager = LogManager([root], ManualClock(NOW))
    manager.load(lambda topic: SMALL)
    return manager


def crash(manager: LogManager) -> None:
    for directory in manager._directories:
        directory.unlock()


def write(root: Path) -> LogManager:
    """Two partitions of several segments, three leader epochs and an aborted transaction each, flushed in between."""
    manager = open_manager(root)
    for tp in (DAMAGED, SOUND):
        log = manager.create(tp, SMALL, TOPIC_ID)
        fill(log, 60)
        append(
            log,
            batch(b"dropped", producer_id=PRODUCER, producer_epoch=0, sequence=0, transactional=True),
            leader_epoch=2,
        )
        append_marker(log, PRODUCER, 0, ControlType.ABORT, 0, leader_epoch=2)
        log.flush()
        for number in range(60):
            append(log, batch(b"x" * 100, timestamp=NOW + number), leader_epoch=5)
    manager.tick()
    clean = next(iter(manager._directories))
    clean.write(CLEAN_OFFSETS, lambda: {SOUND: 3})
    manager._write_checkpoints(clean)
    return manager


def seen(log: Log) -> tuple[object, ...]:
    return (
        log.log_start_offset,
        read_all(log),
        log.epochs.entries,
        log.aborted.transactions_between(0, log.log_end_offset),
        log.offset_for_timestamp(NOW + 30),
        log.max_timestamp(),
        [(entry.producer_id, entry.epoch, entry.transaction_first_offset) for entry in log.producers],
    )


def spoil(root: Path, name: str, damage: str) -> None:
    paths = list((root / str(DAMAGED)).glob("*" + name)) or [root / name]
    for path in paths:
        data = path.read_bytes()
        path.write_bytes(DAMAGES[damage](data))
        if damage == "gone":
            path.unlink()


@pytest.fixture(scope="module", params=[True, False], ids=["clean stop", "crash"])
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, Any]]:
    """A data directory as a broker left it, and what could be read of it."""
    root = tmp_path_factory.mktemp("left")
    manager = write(root)
    before = {tp: seen(log) for tp, log in manager.logs().items()}
    if request.param:
        manager.close()
    crash(manager)
    return root, before


# That an index of aborted transactions is gone cannot be told: a segment that has none has no file either.
CASES = [(name, damage) for name in SIDE_FILES for damage in DAMAGES if (name, damage) != (".txnindex", "gone")]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_spoilt_side_file_changes_nothing_that_is_read(
    tmp_path: Path, left: tuple[Path, dict[Any, Any]], name: str, damage: str
) -> None:
    root, before = left
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    spoil(tmp_path, name, damage)
    again = open_manager(tmp_path)
    assert {tp: seen(log) for tp, log in again.logs().items()} == before
    append(again.create(DAMAGED, SMALL, TOPIC_ID), batch(b"goes on"), leader_epoch=9)
    again.close()
    last = open_manager(tmp_path)
    log = last.get(DAMAGED)
    assert log is not None
    assert log.topic_id == TOPIC_ID
    assert read_epochs(log.directory / LEADER_EPOCHS)[-1] == (9, log.log_end_offset - 1)
    last.close()


def test_every_file_is_synced_before_it_is_renamed_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    replace = Path.replace

    def synced(fd: int) -> None:
        steps.append("sync " + Path(os.readlink(f"/proc/self/fd/{fd}")).name)

    def renamed(path: Path, target: Path) -> Path:
        steps.append(f"rename {path.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    durable_files.write_atomically(tmp_path / "f", b"data")
    assert steps == ["sync f.tmp", "rename f.tmp", f"sync {tmp_path.name}"]


def test_an_epoch_is_on_disk_before_the_recovery_point_passes_it_and_after_a_tick(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    flushed, ticked = manager.create(DAMAGED, SMALL), manager.create(SOUND, SMALL)
    for log in (flushed, ticked):
        append(log, batch(b"a"), leader_epoch=3)
    flushed.flush()
    assert read_epochs(flushed.directory / LEADER_EPOCHS) == [(3, 0)]
    assert read_epochs(ticked.directory / LEADER_EPOCHS) == []
    manager.tick()
    assert read_epochs(ticked.directory / LEADER_EPOCHS) == [(3, 0)]
    crash(manager)


class TestOffline:
    """What cannot be read goes offline alone."""

    def test_a_partition(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        write(tmp_path).close()
        broken = max((tmp_path / str(DAMAGED)).glob("*.log"))
        broken.unlink()
        broken.mkdir()
        manager = open_manager(tmp_path)
        assert set(manager.logs()) == {SOUND}
        assert any(str(broken) in text or str(broken.parent) in text for text in caplog.messages)
        with pytest.raises(BrokerError, match="t-0 is offline") as raised:
            manager.create(DAMAGED, SMALL)
        assert raised.value.code is ErrorCode.kafka_storage_error
        manager.close()
        assert not (tmp_path / CLEAN_MARK).exists(), "t-0 was not recovered"

    def test_its_checkpoints_wait_for_it(self, tmp_path: Path) -> None:
        manager = write(tmp_path)
        manager.logs()[DAMAGED].delete_records(5)
        manager.close()
        broken = max((tmp_path / str(DAMAGED)).glob("*.log"))
        aside = broken.rename(tmp_path / "aside")
        broken.mkdir()
        open_manager(tmp_path).close()
        broken.rmdir()
        aside.rename(broken)
        manager = open_manager(tmp_path)
        assert manager.logs()[DAMAGED].log_start_offset == 5
        manager.close()

    def test_a_directory_without_rights(self, caplog: pytest.LogCaptureFixture) -> None:
        with as_a_user_without_rights() as root:
            for name in ("a", "b"):
                write(root / name).close()
            (root / "b").chmod(0)
            manager = LogManager([root / "a", root / "b"], ManualClock(NOW))
            manager.load(lambda topic: SMALL)
            assert manager.failures == {root / "b": f"cannot use {root / 'b'}: Permission denied"}
            assert f"log.dirs: {root / 'b'} is offline" in caplog.text
            manager.expect([DAMAGED, SOUND, TopicPartition("elsewhere", 0)])
            with pytest.raises(BrokerError, match="elsewhere-0 is offline: cannot use"):
                manager.create(TopicPartition("elsewhere", 0), SMALL)
            fill(manager.create(TopicPartition("new", 0), SMALL), 3)
            assert (root / "a" / "new-0").is_dir()
            assert set(manager.logs()) == {DAMAGED, SOUND, TopicPartition("new", 0)}
            manager.tick()
            manager.close()
            (root / "b").chmod(0o755)

    def test_a_partition_directory_without_rights(self) -> None:
        with as_a_user_without_rights() as root:
            write(root).close()
            (root / str(DAMAGED)).chmod(0)
            manager = open_manager(root)
            assert set(manager.logs()) == {SOUND}
            assert "Permission denied" in manager.offline[DAMAGED]
            manager.close()
            (root / str(DAMAGED)).chmod(0o755)

    def test_the_last_directory_ends_the_start(self) -> None:
        with as_a_user_without_rights() as root:
            (root / "b").mkdir(mode=0)
            with pytest.raises(ConfigError, match=f"log.dirs: cannot use {root / 'b'}"):
                open_manager(root / "b")


@contextlib.contextmanager
def as_a_user_without_rights() -> Iterator[Path]:
    """A directory of his own; root would get in everywhere."""
    root = Path(tempfile.mkdtemp())
    user = os.geteuid()
    try:
        if user == 0:
            os.chown(root, 65534, 65534)
            os.seteuid(65534)
        yield root
    finally:
        os.seteuid(user)
        shutil.rmtree(root)
