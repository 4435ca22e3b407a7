"""The manifest of an archive on a real HDFS."""

from __future__ import annotations

import pytest

from broker.storage.storage import Storage, open_storage
from tests.support.hdfs import MiniHdfs
from tests.support.manifest_contract import ManifestContract

pytestmark = pytest.mark.hdfs


class TestHdfs(ManifestContract):
    @pytest.fixture
    def storage(self, hdfs: MiniHdfs, hdfs_directory: str) -> Storage:
        return open_storage(hdfs_directory, hdfs.client_options)
