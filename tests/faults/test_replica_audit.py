"""The audit of replicas, on logs written by hand: equal ones pass, and each fault is named for what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from broker.log.checkpoints import LEADER_EPOCHS, write_epochs
from broker.log.log_config import LogConfig
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType
from tests.support.batches import append, append_marker, batch, open_log
from tests.support.compaction import keyed, put
from tests.support.replica_audit import compacted_anomalies, replica_anomalies

TP = TopicPartition("t", 0)
FEW_RECORDS = LogConfig(segment_bytes=200)

# Leader epoch and value of the record at each offset.
RECORDS = [(0, b"a"), (0, b"b"), (2, b"c"), (2, b"d"), (5, b"e"), (5, b"f")]
WATERMARK = 4


def write(
    directory: Path, records: list[tuple[int, bytes]] = RECORDS, config: LogConfig | None = None, *, first: int = 0
) -> Path:
    """A replica with these records, each in a batch; those before `first` are deleted."""
    log = open_log(directory, config)
    for epoch, value in records:
        append(log, batch(value), leader_epoch=epoch)
    if first:
        log.delete_records(first)
    log.close()
    return directory


@pytest.fixture
def replicas(tmp_path: Path) -> dict[int, Path]:
    """Three that are equal. The segments of one are shorter."""
    return {1: write(tmp_path / "1"), 2: write(tmp_path / "2", config=FEW_RECORDS), 3: write(tmp_path / "3")}


def kinds(replicas: Mapping[int, Path], watermark: int | None = None, in_sync: tuple[int, ...] = ()) -> set[str]:
    return {found.kind for found in replica_anomalies(TP, replicas, watermark, in_sync=in_sync)}


def test_equal_replicas_pass_whatever_their_segments_are(replicas: dict[int, Path]) -> None:
    assert len(list(replicas[2].glob("*.log"))) > len(list(replicas[1].glob("*.log")))
    assert kinds(replicas) == set()
    assert kinds(replicas, WATERMARK, (1, 2, 3)) == set()


def test_a_log_may_begin_later_than_another(replicas: dict[int, Path], tmp_path: Path) -> None:
    replicas[4] = write(tmp_path / "4", config=FEW_RECORDS, first=3)
    assert not (replicas[4] / "00000000000000000000.log").exists()
    assert kinds(replicas) == set()


def test_a_follower_may_lag_and_a_deposed_leader_have_more(replicas: dict[int, Path], tmp_path: Path) -> None:
    replicas[2] = write(tmp_path / "lags", RECORDS[:3])
    replicas[3] = write(tmp_path / "deposed", [*RECORDS[:4], (3, b"never"), (3, b"committed"), (3, b"here")])
    assert kinds(replicas, WATERMARK, (1, 3)) == set()
    assert kinds(replicas) == {"short replica", "diverged replicas"}


def test_what_is_appended_meanwhile_is_not_looked_at(replicas: dict[int, Path]) -> None:
    newest = max(replicas[3].glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-5])
    assert kinds(replicas, WATERMARK, (1, 2, 3)) == set()
    assert kinds(replicas) == {"short replica"}


def _flip_a_bit(directory: Path) -> None:
    path = max(directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _lose_the_end(directory: Path) -> None:
    rewrite(directory, RECORDS[:3])


def _lose_the_middle(directory: Path) -> None:
    newest = directory / "00000000000000000000.log"
    data = newest.read_bytes()
    size = len(data) // len(RECORDS)
    newest.write_bytes(data[:size] + data[2 * size :])


def _have_another_record(directory: Path) -> None:
    rewrite(directory, [*RECORDS[:3], (2, b"x"), *RECORDS[4:]])


def _have_a_record_of_another_epoch(directory: Path) -> None:
    rewrite(directory, [*RECORDS[:3], (3, b"d"), *RECORDS[4:]])


def _begin_an_epoch_elsewhere(directory: Path) -> None:
    write_epochs(directory / LEADER_EPOCHS, [(0, 0), (2, 3), (5, 4)])


def rewrite(directory: Path, records: list[tuple[int, bytes]]) -> None:
    for path in directory.iterdir():
        path.unlink()
    write(directory, records)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("diverged replicas", _flip_a_bit),
        ("short replica", _lose_the_end),
        ("diverged replicas", _lose_the_middle),
        ("diverged replicas", _have_another_record),
        ("two leaders in one epoch", _have_another_record),
        ("diverged replicas", _have_a_record_of_another_epoch),
        ("two leaders in one epoch", _begin_an_epoch_elsewhere),
    ],
)
def test_a_fault_is_named(kind: str, spoil: Callable[[Path], None], replicas: dict[int, Path]) -> None:
    spoil(replicas[3])
    assert kind in kinds(replicas)
    if spoil is not _flip_a_bit:  # which is above the watermark
        assert kind in kinds(replicas, WATERMARK, (1, 2, 3))


def test_two_leaders_show_above_the_watermark_too(replicas: dict[int, Path]) -> None:
    rewrite(replicas[3], [*RECORDS[:4], (5, b"x")])
    assert kinds(replicas, WATERMARK, (1, 2, 3)) == {"two leaders in one epoch"}


def test_replicas_of_a_compacted_log_have_the_same_last_record_of_each_key(tmp_path: Path) -> None:
    def replica(name: str, *batches: list[tuple[bytes, bytes | None]], start: int = 0, aborted: bytes = b"") -> Path:
        log = open_log(tmp_path / name)
        log.truncate_fully_and_start_at(start)
        for pairs in batches:
            put(log, *pairs)
        if aborted:
            append(log, keyed((b"a", aborted), producer_id=7, producer_epoch=0, sequence=0, transactional=True))
            append_marker(log, 7, 0, ControlType.ABORT, 0)
        log.close()
        return tmp_path / name

    whole = replica("1", [(b"a", b"1")], [(b"a", b"2")], [(b"b", b"3")], [(b"c", b"4"), (b"b", None)])
    compacted = replica("2", [(b"a", b"2"), (b"x", None)], [(b"c", b"4")], start=1, aborted=b"5")
    assert compacted_anomalies(TP, {1: whole, 2: compacted}) == []
    other = replica("3", [(b"a", b"2"), (b"x", None)], [(b"c", b"other")], start=1)
    (found,) = compacted_anomalies(TP, {1: whole, 2: other})
    assert (found.kind, "broker 2 (3, b'other')" in found.detail) == ("diverged replicas", True)
