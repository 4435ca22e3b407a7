"""The directories of log.dirs: each is named once, and holds each partition once."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.errors import ConfigError
from broker.log.log_config import LogConfig
from broker.log.log_directory import CLEAN_MARK
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from tests.support.batches import NOW, fill, read_all

T0 = TopicPartition("t", 0)
SMALL = LogConfig(segment_bytes=600)
IDS = (uuid.UUID(int=1), uuid.UUID(int=2))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


def held(clock: ManualClock, *roots: Path) -> int:
    """The records that a start finds."""
    manager = LogManager(roots, clock)
    manager.load(lambda topic: SMALL)
    try:
        return len(read_all(manager.logs()[T0]))
    finally:
        manager.close()


def write(root: Path, clock: ManualClock, topic_id: uuid.UUID | None, records: int = 3) -> None:
    manager = LogManager([root], clock)
    manager.load(lambda topic: SMALL)
    fill(manager.create(T0, SMALL, topic_id), records)
    manager.close()


@pytest.mark.parametrize("topic_ids", [{}, {"t": IDS[0]}, {"t": IDS[1]}])
def test_a_start_is_refused_and_names_both(tmp_path: Path, clock: ManualClock, topic_ids: dict[str, uuid.UUID]) -> None:
    roots = [tmp_path / name for name in "abc"]
    for root in roots[:2]:
        write(root, clock, IDS[0])
    manager = LogManager(roots, clock)
    with pytest.raises(ConfigError, match=rf"is in {roots[0]}/t-0 \(\d+ bytes\) and {roots[1]}/t-0 \(\d+ bytes\)"):
        manager.load(lambda topic: SMALL, topic_ids)
    assert all((root / CLEAN_MARK).exists() for root in roots[:2]), "nothing was changed"
    again = LogManager([roots[1]], clock)
    again.load(lambda topic: SMALL)
    assert len(read_all(again.logs()[T0])) == 3
    again.close()


def test_one_without_an_id_may_be_any(tmp_path: Path, clock: ManualClock) -> None:
    write(tmp_path / "a", clock, IDS[0])
    write(tmp_path / "b", clock, None)
    with pytest.raises(ConfigError, match="the same partition is in"):
        LogManager([tmp_path / "a", tmp_path / "b"], clock).load(lambda topic: SMALL, {"t": IDS[0]})


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_one_of_an_earlier_topic_of_that_name_is_kept_aside(tmp_path: Path, clock: ManualClock, order: str) -> None:
    write(tmp_path / "a", clock, IDS[0], 5)
    write(tmp_path / "b", clock, IDS[1], 2)
    manager = LogManager([tmp_path / name for name in order], clock)
    manager.load(lambda topic: SMALL, {"t": IDS[1]})
    assert manager.logs()[T0].directory == tmp_path / "b" / "t-0"
    manager.close()
    [kept] = (tmp_path / "a").glob("t-0*")
    assert kept.name.endswith("-stray")
    kept.rename(tmp_path / "a" / "t-0")
    assert held(clock, tmp_path / "a") == 5


@pytest.mark.parametrize("deleted", [True, False])
def test_no_log_of_an_earlier_topic_becomes_that_of_a_later_one(
    tmp_path: Path, clock: ManualClock, deleted: bool
) -> None:
    write(tmp_path / "a", clock, IDS[0])
    manager = LogManager([tmp_path / "a"], clock)
    manager.load(lambda topic: SMALL, {"t": IDS[1]}, IDS[:1] if deleted else ())
    assert manager.get(T0) is None
    assert manager.may_have_had(T0) is not deleted, "its checkpoint is explained by the deleted topic only"
    assert read_all(manager.create(T0, SMALL, IDS[1])) == []
    manager.close()
    assert len(list((tmp_path / "a").glob("t-0.*-stray"))) == (0 if deleted else 1)
    assert not list((tmp_path / "a").glob("t-0.*-delete"))


def test_a_topic_whose_id_nobody_knows_keeps_its_log(tmp_path: Path, clock: ManualClock) -> None:
    write(tmp_path / "a", clock, IDS[0])
    manager = LogManager([tmp_path / "a"], clock)
    manager.load(lambda topic: SMALL, {"t": uuid.UUID(int=0)}, IDS[:1])
    assert len(read_all(manager.logs()[T0])) == 3
    manager.close()


@pytest.mark.parametrize("suffix", [".0123456789abcdef0123456789abcdef-future", ".0123-delete", ".0123-stray"])
def test_what_kafka_moves_or_deletes_is_no_copy(tmp_path: Path, clock: ManualClock, suffix: str) -> None:
    for name in "ab":
        write(tmp_path / name, clock, IDS[0])
    (tmp_path / "b" / "t-0").rename(tmp_path / "b" / f"t-0{suffix}")
    assert held(clock, tmp_path / "a", tmp_path / "b") == 3


def test_an_empty_directory_is_no_copy(tmp_path: Path, clock: ManualClock) -> None:
    write(tmp_path / "b", clock, IDS[0])
    (tmp_path / "a" / "t-0").mkdir(parents=True)
    assert held(clock, tmp_path / "a", tmp_path / "b") == 3


@pytest.mark.parametrize("second", ["a", "link", "a/../a", "missing/../a"])
def test_a_directory_is_named_once(tmp_path: Path, clock: ManualClock, second: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    roots = [tmp_path / "a", tmp_path / second]
    with pytest.raises(ConfigError, match=f"^log.dirs names {tmp_path}/a.*; name it once"):
        LogManager(roots, clock).load(lambda topic: SMALL)
    assert not (tmp_path / "a" / ".lock").exists()


def test_so_is_one_that_is_not_there_yet(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(ConfigError, match="which are one directory"):
        LogManager([tmp_path / "a", tmp_path / "b/../a"], clock).load(lambda topic: SMALL)
    assert not (tmp_path / "a").exists()
