"""The HDFS the tests of this folder share: started once, with everything under a temporary directory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.hdfs import MiniHdfs
from tests.support.requirements import Unavailable, give_up


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniHdfs]:
    """A running HDFS. Where it cannot be had: a failure with CI=true, else a skip that says what is missing."""
    try:
        cluster = MiniHdfs(tmp_path_factory.mktemp("hdfs"))
    except Unavailable as missing:
        give_up(f"no HDFS: {missing}")
    with cluster:
        yield cluster


@pytest.fixture
def hdfs_directory(hdfs: MiniHdfs) -> str:
    """The URL of a directory in HDFS that no other test uses (not created)."""
    return f"{hdfs.uri}/test-{uuid.uuid4().hex}"
