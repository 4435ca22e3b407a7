"""The two atomic acts of a storage, on a local disk (on HDFS: tests/hdfs/test_storage.py)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.storage.storage import Storage, _os_errors, open_storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root"))


def test_a_file_is_created_with_its_parents_and_read_back(storage: Storage) -> None:
    storage.create("a/b/file", b"content")
    assert storage.read("a/b/file") == b"content"
    assert storage.names("a/b") == ["file"]  # no temporary is left


def test_create_refuses_to_replace_a_file(storage: Storage) -> None:
    storage.create("file", b"first")
    with pytest.raises(FileExistsError):
        storage.create("file", b"second")
    assert storage.read("file") == b"first"
    assert storage.names("") == ["file"]


def test_of_many_creators_exactly_one_wins(storage: Storage) -> None:
    start = threading.Barrier(8)
    won: list[int] = []

    def create(number: int) -> None:
        start.wait()
        try:
            storage.create("one", str(number).encode())
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [storage.read("one")] == [str(number).encode() for number in won]


def test_rename_moves_a_directory_and_makes_the_parent(storage: Storage) -> None:
    storage.create("from/file", b"x")
    storage.rename("from", "deep/to")
    assert storage.read("deep/to/file") == b"x"
    assert not storage.exists("from")


@pytest.mark.parametrize("content", [[], ["file"]], ids=["empty", "filled"])
def test_rename_refuses_a_target_that_exists(storage: Storage, content: list[str]) -> None:
    storage.create("from/file", b"x")
    storage.make_directory("to")
    for name in content:
        storage.create(f"to/{name}", b"y")
    with pytest.raises(FileExistsError):
        storage.rename("from", "to")
    assert storage.read("from/file") == b"x"
    assert storage.names("to") == content


def test_rename_of_nothing_is_file_not_found(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.rename("nothing", "to")


def test_what_is_not_there_lists_as_empty_and_removes_without_error(storage: Storage) -> None:
    assert storage.names("nothing") == []
    storage.create("file", b"x")
    assert storage.names("file") == []
    storage.remove("nothing")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_local_urls_name_the_same_directory(tmp_path: Path, form: str) -> None:
    open_storage(form.format(tmp_path)).create("x", b"1")
    assert (tmp_path / "x").read_bytes() == b"1"


NAMES = ["a b", "a\tb", "a\nb", " a", *"a#b a?b a%b a%20b a{b,c} a*b a[b] a\\b a:b a=b a;b ~a ä€ a|b a^b $a -a".split()]


@pytest.mark.parametrize(
    "form", ["{}", "file://{}", "file:{}", "local://{}", "file://localhost{}", "{}/", "file://{}//"]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_local_name_is_taken_as_it_is(tmp_path: Path, form: str, name: str) -> None:
    """As Hadoop's Path takes it: no character separates, and none is an escape."""
    storage = open_storage(form.format(tmp_path / name))
    storage.create("x", b"1")
    assert [path.relative_to(tmp_path).parts for path in tmp_path.rglob("x")] == [(name, "x")]
    assert storage.url == f"file://{tmp_path}/{name}"
    again = open_storage(storage.url)
    assert again.names("") == ["x"]
    assert again.url == storage.url


@pytest.mark.parametrize("name", NAMES)
def test_a_name_on_hdfs_is_taken_as_it_is(name: str) -> None:
    storage = open_storage(f"hdfs://host:1/x/{name}/")
    assert (storage._root, storage.url) == (f"/x/{name}", f"hdfs://host:1/x/{name}")
    assert open_storage(storage.url).url == storage.url


def test_spark_is_told_which_characters_are_no_pattern(tmp_path: Path) -> None:
    assert open_storage("/a[b]{c}*?\\/#%").pattern_of("d*") == r"file:///a\[b\]\{c\}\*\?\\/#%/d\*"


@pytest.mark.parametrize(
    "url", ["nosuchscheme://host/dir", "hdfs://host:1/", "hdfs:///x", "file://host/x", "hdfs:x", "hdfs://host:1"]
)
def test_a_url_that_cannot_be_used_is_one_clear_error(url: str) -> None:
    with pytest.raises(ConfigError, match=url):
        open_storage(url)


def test_a_file_system_without_atomic_rename_says_so() -> None:
    storage = open_storage("memory://bucket/dir")
    storage.create("file", b"x")
    with pytest.raises(FileExistsError):
        storage.create("file", b"y")
    with pytest.raises(ConfigError, match="atomic rename"):
        storage.rename("file", "other")


def test_what_hdfs_refuses_for_want_of_rights_is_a_permission_error() -> None:
    refused = "RPC error: org.apache.hadoop.security.AccessControlException Permission denied: user=nobody"
    with pytest.raises(PermissionError, match="HDFS: RPC error.*user=nobody"), _os_errors():
        raise RuntimeError(refused)
    with pytest.raises(OSError, match="HDFS: RPC error") as raised, _os_errors():
        raise RuntimeError("RPC error: org.apache.hadoop.hdfs.server.namenode.SafeModeException")
    assert not isinstance(raised.value, PermissionError)
