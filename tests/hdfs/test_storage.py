"""The two atomic acts of a storage on a real HDFS, and the files offset store over it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from broker.storage.storage import Storage, open_storage
from spark_connector.offset_store.files import FilesOffsetStore
from tests.support.hdfs import MiniHdfs
from tests.support.offset_store_contract import A0, ComparingStoreContract

pytestmark = pytest.mark.hdfs


@pytest.fixture
def storage(hdfs: MiniHdfs, hdfs_directory: str) -> Storage:
    return open_storage(hdfs_directory, hdfs.client_options)


class TestFilesStoreContract(ComparingStoreContract):
    @pytest.fixture
    def store(self, storage: Storage) -> FilesOffsetStore:
        return FilesOffsetStore(storage)


def test_create_refuses_to_replace_and_leaves_no_temporary(storage: Storage) -> None:
    storage.create("d/file", b"first")
    with pytest.raises(FileExistsError):
        storage.create("d/file", b"second")
    assert storage.read("d/file") == b"first"
    assert storage.names("d") == ["file"]


FORK = """
import json, subprocess, sys
from broker.storage.storage import open_storage
url, options = json.loads(sys.argv[1])
assert open_storage(url, options).names("nothing") == []
subprocess.run(["true"], preexec_fn=lambda: None)  # Spark starts its JVM like this
"""


def test_a_process_that_has_used_it_can_fork(hdfs: MiniHdfs, hdfs_directory: str) -> None:
    where = json.dumps([hdfs_directory, hdfs.client_options])
    subprocess.run([sys.executable, "-c", FORK, where], check=True, timeout=60)


def test_of_many_creators_exactly_one_wins(storage: Storage) -> None:
    start = threading.Barrier(6)
    won: list[bytes] = []

    def create(content: bytes) -> None:
        start.wait()
        try:
            storage.create("one", content)
        except FileExistsError:
            return
        won.append(content)

    threads = [threading.Thread(target=create, args=(str(number).encode(),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [storage.read("one")]


def test_rename_of_a_directory_refuses_a_target_that_exists(storage: Storage) -> None:
    storage.create("from/file", b"x")
    storage.make_directory("taken")
    with pytest.raises(FileExistsError):
        storage.rename("from", "taken")
    storage.rename("from", "deep/to")
    assert storage.read("deep/to/file") == b"x"
    with pytest.raises(FileNotFoundError):
        storage.rename("from", "elsewhere")


def test_what_is_not_there_lists_as_empty_and_removes_without_error(storage: Storage) -> None:
    assert storage.names("nothing") == []
    assert storage.tree_sizes("nothing") == {}
    storage.remove("nothing")


def test_the_store_survives_a_kill_of_the_name_node(hdfs: MiniHdfs, storage: Storage) -> None:
    store = FilesOffsetStore(storage)
    store.commit("g", {A0: 1})
    hdfs.kill("namenode")
    hdfs.start()
    assert store.read("g") == {A0: 1}
    store.commit("g", {A0: 2}, expected={A0: 1})
    assert store.read("g") == {A0: 2}


def test_what_the_name_node_refuses_is_an_os_error(storage: Storage) -> None:
    too_long = "x" * 300  # dfs.namenode.fs-limits.max-component-length is 255; hdfs-native raises a bare RuntimeError
    storage.create("here", b"")
    with pytest.raises(OSError, match="PathComponentTooLong"):
        storage.create(too_long, b"")
    with pytest.raises(OSError, match="PathComponentTooLong"):
        storage.rename("here", too_long)
    with pytest.raises(OSError, match="PathComponentTooLong"):
        storage.make_directory(too_long)


def test_a_file_that_is_removed_while_it_is_written_cannot_be_closed(storage: Storage) -> None:
    file = storage.open_output("gone")
    file.write(b"some")
    storage.remove("gone")
    with pytest.raises(FileNotFoundError):
        file.close()
