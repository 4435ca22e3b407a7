"""Which broker of which cluster a log directory belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.errors import ConfigError
from broker.log.manager import LogManager
from broker.meta_properties import (
    adopt,
    adopted,
    check_meta_properties,
    end_adoption,
    refuse_foreign,
    stored_broker_id,
    unconfirmed,
)


def never(_: Path) -> bool:
    return False


def test_a_new_directory_is_claimed_and_known_again(tmp_path: Path) -> None:
    for _ in range(2):
        assert check_meta_properties([tmp_path], 3, "the-cluster", holds_ours=never) == {}
    assert "broker.id=3\ncluster.id=the-cluster" in (tmp_path / "meta.properties").read_text()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"version=0\nbroker.id=7\ncluster.id=c\n", "belongs to broker 7, and broker.id=0"),
        (b"version=0\nbroker.id=0\ncluster.id=x\n", "belongs to cluster x"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(ConfigError, match=part):
        check_meta_properties([tmp_path], 0, "c", holds_ours=lambda _: True)


KRAFT = "version=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\ndirectory.id=5aP1Xg\n"


@pytest.mark.parametrize("zookeeper", ["zookeeper", None])
def test_a_directory_of_kraft_is_refused_before_anything_is_written(tmp_path: Path, zookeeper: str | None) -> None:
    (tmp_path / "meta.properties").write_text(KRAFT)
    with pytest.raises(ConfigError, match=r"KRaft mode \(node.id=1, cluster MkU3OEVBNTcwNTJENDM2Qg\)"):
        refuse_foreign([tmp_path], [tmp_path / zookeeper] if zookeeper else [])
    assert [path.name for path in tmp_path.iterdir()] == ["meta.properties"]


def test_no_zookeeper_is_started_over_the_directory_of_another(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=0\ncluster.id=c\n")
    places = [tmp_path / "file", tmp_path / "zookeeper"]
    with pytest.raises(ConfigError, match=f"not in {tmp_path}/file; set zookeeper.connect to the ZooKeeper of"):
        refuse_foreign([tmp_path], places)
    refuse_foreign([tmp_path])
    places[1].mkdir()
    refuse_foreign([tmp_path, tmp_path / "new"], places)


def test_the_id_is_that_of_a_claimed_directory(tmp_path: Path) -> None:
    assert stored_broker_id([tmp_path]) is None
    check_meta_properties([tmp_path], 1004, "c", holds_ours=never)
    assert stored_broker_id([tmp_path / "new", tmp_path]) == 1004


UNREADABLE = [b"", b"version=0\n", b"\0\0\0", b"\xff\xfe"]


@pytest.mark.parametrize("content", UNREADABLE)
def test_one_that_says_nothing_is_written_anew_where_the_partitions_are_ours(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    assert check_meta_properties([tmp_path], 0, "c", holds_ours=lambda _: True) == {}
    assert "broker.id=0\ncluster.id=c" in (tmp_path / "meta.properties").read_text()


@pytest.mark.parametrize("content", UNREADABLE)
def test_its_directory_is_unusable_where_they_are_not(tmp_path: Path, content: bytes) -> None:
    for name, written in (("a", b"broker.id=0\ncluster.id=c\n"), ("b", content)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_bytes(written)
    unusable = check_meta_properties([tmp_path / "a", tmp_path / "b"], 0, "c", holds_ours=never)
    assert list(unusable) == [tmp_path / "b"]
    assert "the cluster has none of the topics" in unusable[tmp_path / "b"]
    assert (tmp_path / "b" / "meta.properties").read_bytes() == content


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unusable = check_meta_properties([tmp_path / "file"], 0, "c", holds_ours=never)
    assert "cannot write" in unusable[tmp_path / "file"]


class TestUnconfirmed:
    """A directory without the file beside one that has it: a disk that is not mounted looks like that."""

    def roots(self, tmp_path: Path, *claimed: str) -> list[Path]:
        for name in claimed:
            (tmp_path / name).mkdir()
            (tmp_path / name / "meta.properties").write_text("broker.id=0\ncluster.id=c\n")
        (tmp_path / "empty").mkdir()
        return [tmp_path / name for name in ("a", "empty", "missing")]

    def test_all_are_new_at_the_first_start(self, tmp_path: Path) -> None:
        assert unconfirmed(self.roots(tmp_path)) == {}

    def test_those_without_it_are_named_with_the_ways_out(self, tmp_path: Path) -> None:
        found = unconfirmed(self.roots(tmp_path, "a"))
        empty, missing = tmp_path / "empty", tmp_path / "missing"
        ways = "has one: is its disk mounted? Mount it. If it is new, or what it held is given up, confirm it with"
        assert found == {
            empty: f"{empty} has no meta.properties, and {tmp_path}/a {ways} `pykafka log dirs --adopt {empty}`",
            missing: f"{missing} does not exist, so it has no meta.properties, and {tmp_path}/a {ways} "
            f"`pykafka log dirs --adopt {missing}`",
        }
        assert not missing.exists()

    def test_a_damaged_file_was_a_file(self, tmp_path: Path) -> None:
        roots = self.roots(tmp_path, "a")
        (tmp_path / "empty" / "meta.properties").write_bytes(b"")
        assert list(unconfirmed(roots)) == [tmp_path / "missing"]

    def test_what_was_adopted_is_confirmed_until_a_start_has_used_it(self, tmp_path: Path) -> None:
        roots = self.roots(tmp_path, "a")
        for root in roots[1:]:
            adopt(root)
        assert unconfirmed(roots) == {}
        assert adopted(roots) == roots[1:]
        end_adoption(roots)
        assert adopted(roots) == []
        assert len(unconfirmed(roots)) == 2

    def test_a_link_to_nowhere_does_not_exist(self, tmp_path: Path) -> None:
        roots = self.roots(tmp_path, "a")
        roots[2].symlink_to(tmp_path / "mount")
        assert "missing does not exist, so it has no meta.properties" in unconfirmed(roots)[roots[2]]
        (tmp_path / "mount").mkdir()
        assert f"{roots[2]} has no meta.properties" in unconfirmed(roots)[roots[2]]

    def test_what_is_no_directory_is_left_to_the_lock(self, tmp_path: Path) -> None:
        roots = self.roots(tmp_path, "a")
        roots[2].touch()
        assert list(unconfirmed(roots)) == [tmp_path / "empty"]

    def test_a_disk_that_has_failed_is_left_to_the_lock(self, tmp_path: Path) -> None:
        roots = [*self.roots(tmp_path, "a"), tmp_path / ("x" * 300)]  # every look at it is an OSError
        with pytest.raises(OSError, match="too long"):
            roots[3].exists()
        assert list(unconfirmed(roots)) == roots[1:3]
        assert stored_broker_id([roots[3], roots[0]]) == 0
        refuse_foreign([roots[3]], [tmp_path / "file"])
        manager = LogManager([roots[3], roots[0]], ManualClock(0))
        manager.lock()
        assert manager.failures == {roots[3]: f"cannot use {roots[3]}: File name too long"}
        manager.close()
