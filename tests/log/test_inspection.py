"""The checker: silent on what the log writes, loud on every kind of damage."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, write_epochs
from broker.log.inspection import check_partition
from broker.log.log_config import LogConfig
from broker.log.segment import segment_path
from broker.records.aborted_entries import AbortedEntry, encode_aborted
from broker.records.batch import patch_base_offset
from broker.records.control import ControlType
from tests.support.batches import NOW, append, append_marker, batch, open_log

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200)
FIRST = 0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three segments of idempotent batches, closed; in the last an aborted transaction of another producer."""
    directory = tmp_path / "t-0"
    log = open_log(directory, CONFIG)
    for number in range(25):
        at = NOW + (number * 37) % 100
        append(
            log,
            batch(b"x" * 50, timestamp=at, producer_id=1, producer_epoch=0, sequence=number),
            leader_epoch=number // 9,
        )
    append(log, batch(b"x", producer_id=2, producer_epoch=0, sequence=0, transactional=True), leader_epoch=2)
    append_marker(log, 2, 0, ControlType.ABORT, 0, leader_epoch=2)
    log.close()
    assert len(log.segments) == 3
    return directory


def file(directory: Path, suffix: str, base: int = FIRST) -> Path:
    return segment_path(directory, base, suffix)


def last_base(directory: Path) -> int:
    return max(int(path.stem) for path in directory.glob("*.log"))


def test_a_sound_partition_has_no_problem(directory: Path) -> None:
    assert check_partition(directory) == []


def test_a_log_that_is_being_written_has_none_either(tmp_path: Path) -> None:
    """Indexes of the active segment are written later."""
    log = open_log(tmp_path / "t-0", CONFIG)
    for _ in range(30):
        append(log, batch(b"x" * 50))
        assert check_partition(tmp_path / "t-0") == []
    log.apply_retention()
    log.update_config(replace(CONFIG, retention_bytes=0))
    log.apply_retention()
    log.truncate_to(log.log_end_offset - 1)
    assert check_partition(tmp_path / "t-0") == []


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def overwrite(path: Path, at: int, data: bytes) -> None:
    old = path.read_bytes()
    path.write_bytes(old[:at] + data + old[at + len(data) :])


def cut(path: Path, count: int) -> None:
    os.truncate(path, path.stat().st_size - count)


def append_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def move_second_batch(path: Path, offset: int) -> None:
    """Give the second batch another base offset; its CRC does not mind."""
    overwrite(path, int.from_bytes(path.read_bytes()[8:12], "big") + 12, struct.pack(">q", offset))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped bit in a record": (lambda d: flip(file(d, ".log"), 100), "CRC of the batch at offset 0"),
    "torn tail": (lambda d: cut(file(d, ".log", last_base(d)), 1), "bytes that are no whole batch"),
    "garbage at the end": (lambda d: append_bytes(file(d, ".log", last_base(d)), b"?" * 70), "no whole batch"),
    "offset set back": (lambda d: move_second_batch(file(d, ".log"), 0), "offset 0 where 1"),
    "offset set forward": (lambda d: move_second_batch(file(d, ".log"), 9), "1 to 8 are missing"),
    "segment missing": (lambda d: sorted(d.glob("*.log"))[1].unlink(), "the segment before it ends at"),
    "index without a log": (lambda d: file(d, ".index", 99).touch(), "no log for this index"),
    "index missing": (lambda d: file(d, ".index").unlink(), "is missing"),
    "index cut": (lambda d: cut(file(d, ".index"), 3), "5 stray bytes"),
    "index beside the batch": (lambda d: overwrite(file(d, ".index"), 7, b"\1"), "where no batch begins"),
    "index of another offset": (lambda d: overwrite(file(d, ".index"), 3, b"\0"), "the batch there ends at"),
    "time index missing": (lambda d: file(d, ".timeindex").unlink(), "is missing"),
    "time index cut": (lambda d: cut(file(d, ".timeindex"), 1), "11 stray bytes"),
    "time index short": (lambda d: os.truncate(file(d, ".timeindex"), 12), "the newest of the segment is"),
    "time index wrong": (lambda d: flip(file(d, ".timeindex"), 7), "the newest up to its offset is"),
    "time index backwards": (
        lambda d: append_bytes(file(d, ".timeindex"), file(d, ".timeindex").read_bytes()[:12]),
        "has timestamp",
    ),
    "time index of no batch": (
        lambda d: append_bytes(file(d, ".timeindex"), struct.pack(">qi", NOW + 999, 2000)),
        "where no batch ends",
    ),
    "snapshot damaged": (lambda d: flip(max(d.glob("*.snapshot")), 12), "no producer snapshot"),
    "snapshot past the end": (
        lambda d: next(d.glob("*.snapshot")).rename(file(d, ".snapshot", 999)),
        "is of offset 999; the log ends at 27",
    ),
    "epochs unreadable": (lambda d: (d / LEADER_EPOCHS).write_text("x"), LEADER_EPOCHS),
    "epochs that fall": (lambda d: write_epochs(d / LEADER_EPOCHS, [(2, 0), (1, 5)]), "do not grow"),
    "epochs past the end": (lambda d: write_epochs(d / LEADER_EPOCHS, [(2, 0), (3, 99)]), "past the log's end 27"),
    "aborted cut": (lambda d: cut(file(d, ".txnindex", last_base(d)), 1), "no index of aborted transactions"),
    "aborted without a marker": (
        lambda d: file(d, ".txnindex").write_bytes(encode_aborted([AbortedEntry(1, 2, 3, 4)])),
        "producer 1 has no marker at offset 3",
    ),
    "aborted without a log": (lambda d: file(d, ".txnindex", 99).touch(), "no log for this index"),
    "topic id unreadable": (lambda d: (d / PARTITION_METADATA).write_text("x"), PARTITION_METADATA),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(directory: Path, name: str) -> None:
    damage, complaint = DAMAGES[name]
    damage(directory)
    problems = check_partition(directory)
    assert any(complaint in problem.text for problem in problems), problems


@pytest.mark.parametrize("name", [name for name in DAMAGES if "epochs" not in name and "topic id" not in name])
def test_what_recovery_mends_is_sound_again(directory: Path, name: str) -> None:
    damage, _ = DAMAGES[name]
    damage(directory)
    log = open_log(directory, CONFIG, clean=False)
    log.close()
    assert check_partition(directory) == []


def test_gaps_are_allowed_in_a_compacted_log(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, batch(b"x"))
    log.close()
    later = bytearray(batch(b"later"))
    patch_base_offset(later, 0, 9, 0)
    with file(tmp_path / "t-0", ".log").open("ab") as stream:
        stream.write(later)
    assert [problem.text for problem in check_partition(tmp_path / "t-0")] == ["offsets 1 to 8 are missing"]
    assert check_partition(tmp_path / "t-0", compacted=True) == []
