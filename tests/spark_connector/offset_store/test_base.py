"""The door to the stores: which one is opened, and what a wrong option says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.errors import ConfigError
from spark_connector.offset_store.base import check_group, open_store
from spark_connector.offset_store.files import FilesOffsetStore


def test_the_kind_and_option_names_are_taken_in_any_case(tmp_path: Path) -> None:
    assert isinstance(open_store("Files", {"offsetstore.PATH": str(tmp_path)}), FilesOffsetStore)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("kafka", {}, "offsetStore must be one of zookeeper, files, group, not 'kafka'"),
        ("files", {}, "'offsetStore.path' must be set"),
        ("files", {"offsetStore.path": " "}, "'offsetStore.path' must be set"),
        ("zookeeper", {}, "'offsetStore.zookeeper.connect' must be set"),
        ("group", {}, "'kafka.bootstrap.servers' must be set"),
    ],
)
def test_a_wrong_option_is_one_clear_error(kind: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(kind, options)


@pytest.mark.parametrize("group", ["", "a/b", "..", "ä", "x" * 201])
def test_a_group_that_is_no_path_element_is_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        check_group(group)


def test_kazoo_is_imported_only_by_the_zookeeper_store(tmp_path: Path) -> None:
    program = (
        "import sys; from spark_connector.offset_store.base import open_store;"
        f"open_store('files', {{'offsetStore.path': {str(tmp_path)!r}}}); assert 'kazoo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
