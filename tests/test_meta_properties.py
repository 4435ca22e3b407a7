"""Which broker of which cluster a log directory belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.meta_properties import check_meta_properties


def test_a_new_directory_is_claimed_and_known_again(tmp_path: Path) -> None:
    for _ in range(2):
        check_meta_properties([tmp_path], 3, "the-cluster")
    assert "broker.id=3\ncluster.id=the-cluster" in (tmp_path / "meta.properties").read_text()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"version=0\nbroker.id=7\ncluster.id=c\n", "belongs to broker 7, and broker.id=0"),
        (b"version=0\nbroker.id=0\ncluster.id=x\n", "belongs to cluster x"),
        (b"version=0\n", "belongs to broker None"),
        (b"\0\0\0", "line 1: expected key=value"),
        (b"\xff\xfe", "it is no text file in UTF-8"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(ConfigError, match=part):
        check_meta_properties([tmp_path], 0, "c")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="log.dirs: cannot write .*meta.properties"):
        check_meta_properties([tmp_path / "file"], 0, "c")
