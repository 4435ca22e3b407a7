"""Which broker of which cluster a log directory belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.meta_properties import check_meta_properties


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
        (b"version=1\nnode.id=0\ncluster.id=c\n", "belongs to broker None"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(ConfigError, match=part):
        check_meta_properties([tmp_path], 0, "c", holds_ours=lambda _: True)


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
    assert "ZooKeeper knows none of the topics" in unusable[tmp_path / "b"]
    assert (tmp_path / "b" / "meta.properties").read_bytes() == content


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unusable = check_meta_properties([tmp_path / "file"], 0, "c", holds_ours=never)
    assert "cannot write" in unusable[tmp_path / "file"]
