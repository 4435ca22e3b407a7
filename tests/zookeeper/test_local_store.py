"""The metadata store in a file: it answers as a real ZooKeeper does, and a crash leaves what was last answered."""

from __future__ import annotations

import itertools
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError, ConnectionFailed
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.operations import (
    BadVersion,
    Check,
    Create,
    Delete,
    NodeStat,
    NotAccepted,
    Operation,
    SetData,
    ZooKeeperError,
)
from tests.support.source_tree import ROOT

PATHS = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep"])
DATA = st.sampled_from([b"", b"1", b"\xff\x00\n", "höhe".encode()])
VERSIONS = st.sampled_from([-1, 0, 1, 2])
FLAGS = st.booleans()
CREATES = st.builds(Create, PATHS, DATA, ephemeral=FLAGS, sequence=FLAGS)
OPERATIONS = st.one_of(
    CREATES,
    st.builds(SetData, PATHS, DATA, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)
STEPS = st.lists(
    st.one_of(
        CREATES,
        OPERATIONS,
        st.lists(OPERATIONS, max_size=4),
        st.tuples(st.sampled_from(["ensure_path", "create_with_parents"]), PATHS),
        st.just("reopen"),
    ),
    max_size=25,
)
EVERYTHING = ["/", "/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep", "/a/x0000000000"]


def answer(store: MetadataStore, call: Callable[[], Any]) -> Any:
    """What a store answers, without what differs from store to store: times, transaction and session ids."""

    def plain(value: Any) -> Any:
        if isinstance(value, NodeStat):
            return value.version, value.children, value.ephemeral_owner and value.ephemeral_owner == store.session_id
        return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value

    try:
        return plain(call())
    except ZooKeeperError as error:
        return type(error), error.path


def step(store: MetadataStore, todo: Any) -> Any:
    match todo:
        case list():
            return answer(store, lambda: store.transaction(todo))
        case Create(path, data, ephemeral, sequence):
            return answer(store, lambda: store.create(path, data, ephemeral=ephemeral, sequence=sequence))
        case SetData(path, data, version):
            return answer(store, lambda: store.set(path, data, version))
        case Delete(path, version):
            return answer(store, lambda: store.delete(path, version))
        case Check():
            return answer(store, lambda: store.exists(todo.path))
        case "ensure_path", path:
            return answer(store, lambda: store.ensure_path(path))
        case "create_with_parents", path:
            return answer(store, lambda: store.create(path, b"1", parents=True))
    raise AssertionError(todo)


def tree(store: MetadataStore) -> Any:
    return answer(store, lambda: [store.get_many(EVERYTHING), store.children_many(EVERYTHING)])


_examples = itertools.count()


NUMBERS = [
    Create("/a"),
    [Create("/a/x", sequence=True), Check("/b", 0)],  # rolled back: its number is given again
    Create("/a/x", sequence=True),
    Create("/a/x0000000002"),
    Create("/a/x", sequence=True),  # its name is taken
]


@example(steps=NUMBERS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_it_answers_as_a_real_zookeeper_does(zookeeper: str, tmp_path: Path, steps: list[Any]) -> None:
    example = next(_examples)
    connect, path = f"{zookeeper}/local-store-{example}", tmp_path / str(example)
    real, local = ZooKeeper(connect, 6000).start(), LocalStore(path).start()
    try:
        for todo in steps:
            if todo == "reopen":
                real.close()
                local.close()
                real, local = ZooKeeper(connect, 6000).start(), LocalStore(path).start()
            else:
                assert step(local, todo) == step(real, todo), todo
            assert tree(local) == tree(real)
    finally:
        real.close()
        local.close()


def test_a_file_cut_at_any_byte_has_the_last_answered_state(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    sizes: list[tuple[int, Any]] = []
    changes: list[list[Operation]] = [
        [Create("/a", b"1")],
        [SetData("/a", b"2"), Create("/a/x-", sequence=True)],
        [Create("/a/x-", b"\xff", sequence=True)],
        [Delete("/a/x-0000000000")],
    ]
    with LocalStore(path) as store:
        sizes.append((path.stat().st_size, nodes(store)))
        for change in changes:
            store.transaction(change)
            sizes.append((path.stat().st_size, nodes(store)))
    whole = path.read_bytes()
    for size in range(sizes[0][0], len(whole)):
        for tail in (b"", b"\0" * (len(whole) - size)):  # a block that never reached the disk is read as zeros
            path.write_bytes(whole[:size] + tail)
            with LocalStore(path) as store:
                assert nodes(store) == [state for end, state in sizes if end <= size][-1]
                store.create("/after")
            with LocalStore(path) as store:
                assert store.exists("/after")


def nodes(store: LocalStore) -> list[Any]:
    return [
        (path, node.data, node.version, node.children_created, sorted(node.children)) for path, node in store.nodes()
    ]


def test_a_file_that_was_damaged_later_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    with LocalStore(path) as store:
        for number in range(3):
            store.create(f"/n{number}")
    whole = path.read_bytes()
    for position in range(len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(
            ConfigError, match=rf"^{path} (is damaged in line \d|is not a metadata file|was written by)"
        ):
            LocalStore(path).start()
    lines = whole.splitlines(keepends=True)
    for half in (lines[1][:-10], lines[1][:-10] + b"\0" * 9 + b"\n"):  # a snapshot is never torn
        path.write_bytes(lines[0] + half)
        with pytest.raises(ConfigError, match="is damaged in line 2 .its snapshot"):
            LocalStore(path).start()
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(ConfigError, match="is damaged in line 3 .it should be transaction 1 and is 2"):
        LocalStore(path).start()
    path.write_bytes(b"pykafka metadata 2\n")
    with pytest.raises(ConfigError, match="was written by a newer pykafka"):
        LocalStore(path).start()


_WRITER = """
import sys
from pathlib import Path
from broker.zookeeper.local_store import LocalStore
store = LocalStore(Path(sys.argv[1])).start()
store.create("/mine", ephemeral=True)
for number in range(100_000):
    store.create("/n-", sequence=True)
    print(number, flush=True)
"""


def test_a_killed_process_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    command = [sys.executable, "-c", _WRITER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        answered = 20 + len(writer.stdout.read().splitlines())
    with LocalStore(path) as store:
        names = store.children("/")
        assert names == [f"n-{number:010d}" for number in range(1, len(names) + 1)]  # 0 was the ephemeral node's
        assert len(names) - answered in (0, 1)


def test_a_full_disk_refuses_the_change_and_keeps_the_state(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LocalStore(path) as store:
        store.create("/a", b"1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))  # half a line fits
        try:
            with pytest.raises(ZooKeeperError, match=rf"^/a: {path} cannot be written: File too large"):
                store.set("/a", b"2")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.get("/a")[0] == b"1"
        assert store.connected
        store.set("/a", b"3", version=0)
    with LocalStore(path) as store:
        assert store.get("/a")[0] == b"3"


def test_after_a_failed_sync_it_takes_no_more_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with LocalStore(tmp_path / "metadata") as store:
        store.create("/a", b"1")
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", fail)
            with pytest.raises(ZooKeeperError, match="Input/output error"):
                store.set("/a", b"2")
        assert not store.connected
        assert store.get("/a")[0] == b"1"
        with pytest.raises(ConnectionFailed, match="restart the broker"):
            store.set("/a", b"2")


def test_it_is_rewritten_when_it_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    with LocalStore(path) as store:
        store.create("/a")
        store.delete(store.create("/a/n-", sequence=True))
        store.create("/mine", ephemeral=True)
        largest = 0
        for _ in range(50):
            store.set("/a", b"x" * 60_000)
            largest = max(largest, path.stat().st_size)
        state = [one for one in nodes(store) if one[0] == "/a"]
        assert 1 << 20 < largest < 1_200_000
        assert path.stat().st_size < 1 << 20
    with LocalStore(path) as store:
        assert [one for one in nodes(store) if one[0] == "/a"] == state
        with pytest.raises(BadVersion):
            store.set("/a", b"", version=49)


def test_many_short_lives_do_not_make_it_grow(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    for _ in range(5):
        with LocalStore(path) as store:
            store.create("/n-", b"x" * 300_000, sequence=True)
            store.delete(f"/{store.children('/')[0]}")
    assert path.stat().st_size < 1_400_000


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    with LocalStore(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_closed_store_refuses_calls(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "metadata").start()
    store.close()
    store.close()
    for call in (lambda: store.get("/"), lambda: store.create("/a"), lambda: store.children("/")):
        with pytest.raises(ConnectionFailed, match="is closed"):
            call()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/none/metadata cannot be opened: .*No such file"):
        LocalStore(tmp_path / "none" / "metadata").start()


def test_the_same_is_refused_as_by_zookeeper(tmp_path: Path) -> None:
    with LocalStore(tmp_path / "store") as store:
        for path, data in (("/large", b"x" * 1_100_000), ("/" + "é" * 600_000, b""), ("/..", b"")):
            with pytest.raises(NotAccepted):
                store.create(path, data)
        assert store.children_many(["/"]) == [[]]
