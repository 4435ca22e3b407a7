"""The metadata store in a file: it answers as a real ZooKeeper does, and a crash leaves what was last answered."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata"


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


CHANGES: list[list[Operation]] = [
    [Create("/a", b"1")],
    [SetData("/a", b"2"), Create("/a/x-", sequence=True)],
    [Create("/a/x-", b"\xff", sequence=True)],
    [Delete("/a/x-0000000000")],
]


def nodes(store: LocalStore) -> list[Any]:
    return [(n.path, n.data, n.version, n.children, n.children_created, store.children(n.path)) for n in store.nodes()]


class Killed:
    """The files that a killed process leaves, and what it had answered when the second one had a size."""

    def __init__(self, path: Path) -> None:
        self.path, self.wal = path, path.with_name(f"{path.name}-wal")
        self.answered: list[tuple[int, Any]] = []
        self.first = self.second = b""
        with LocalStore(path) as store:
            for change in [[], *CHANGES]:
                store.transaction(change)
                self.answered.append((self.wal.stat().st_size, nodes(store)))
            self.first, self.second = path.read_bytes(), self.wal.read_bytes()

    def leave(self, first: bytes, second: bytes) -> None:
        self.path.write_bytes(first)
        self.wal.write_bytes(second)


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    return Killed(tmp_path / "metadata")


def test_a_process_killed_at_any_write_leaves_the_last_answered_state(killed: Killed) -> None:
    ends = {end for end, _ in killed.answered}
    for size in sorted({*range(0, len(killed.second), 997), *ends, *(end - 1 for end in ends if end)}):
        for tail in (b"", b"\0" * (len(killed.second) - size)):  # a block that never reached the disk is read as zeros
            killed.leave(killed.first, killed.second[:size] + tail)
            with LocalStore(killed.path) as store:
                assert nodes(store) == [state for end, state in killed.answered if end <= size][-1]
                store.create("/after")
            with LocalStore(killed.path) as store:
                assert store.exists("/after")


def test_a_process_killed_while_it_writes_into_the_file_loses_nothing(killed: Killed) -> None:
    killed.leave(killed.first, killed.second)
    with LocalStore(killed.path):
        pass
    whole = killed.path.read_bytes()
    for size in range(0, len(whole), 512):
        killed.leave(whole[:size] + killed.first[size:], killed.second)
        with LocalStore(killed.path) as store:
            assert nodes(store) == killed.answered[-1][1]


def test_a_process_killed_again_after_a_start_loses_nothing(killed: Killed) -> None:
    killed.leave(killed.first, killed.second)
    with LocalStore(killed.path) as store:
        store.create("/after")
        left = killed.path.read_bytes(), killed.wal.read_bytes()
    killed.leave(*left)
    with LocalStore(killed.path) as store:
        assert store.exists("/after")


def spoilt(content: bytes, step: int) -> Iterator[bytes]:
    for position in range(0, len(content), step):
        yield content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def test_a_file_that_was_damaged_later_is_refused_or_has_lost_nothing(path: Path) -> None:
    with LocalStore(path) as store:
        for change in CHANGES:
            store.transaction(change)
        state = nodes(store)
    whole, refusals = path.read_bytes(), set()
    for damaged in spoilt(whole, 9):
        path.write_bytes(damaged)
        try:
            with LocalStore(path) as store:
                assert nodes(store) == state
        except ConfigError as error:
            refusals.add(re.sub(rf"^{path} (is damaged|was written by) [^\n]+$", r"\1", str(error)))
    assert refusals == {"is damaged", "was written by"}


def test_damage_beside_the_file_loses_no_more_than_a_torn_write_does(killed: Killed) -> None:
    last, refusals = [state for _, state in killed.answered[-2:]], set()
    for damaged in spoilt(killed.second, 101):
        killed.leave(killed.first, damaged)
        try:
            with LocalStore(killed.path) as store:
                assert nodes(store) in last
        except ConfigError as error:
            refusals.add(re.sub(r"\d", "N", str(error).removeprefix(f"{killed.wal} ").partition(".")[0]))
            assert killed.wal.read_bytes() == damaged
    assert refusals == {"is damaged before the last N transactions"}


def set_format(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 3")


def test_a_file_of_another_version_or_program_is_refused(path: Path) -> None:
    path.write_bytes(b"text\n" * 100)
    with pytest.raises(ConfigError, match="is damaged .file is not a database"):
        LocalStore(path).start()
    path.unlink()
    set_format(path)
    with pytest.raises(ConfigError, match="is not a metadata file of pykafka, or its first page is damaged"):
        LocalStore(path).start()
    path.unlink()
    LocalStore(path).start().close()
    set_format(path)
    with pytest.raises(ConfigError, match="was written by a newer pykafka"):
        LocalStore(path).start()


def test_two_processes_do_not_open_one_file(path: Path) -> None:
    with LocalStore(path):
        again = [sys.executable, "-c", _WRITER, str(path)]
        refused = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=False)
        assert f"ConfigError: {path} cannot be opened: another process has it open" in refused.stderr


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


def test_a_killed_process_loses_nothing_that_was_answered(path: Path) -> None:
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


def test_a_full_disk_refuses_the_change_and_keeps_the_state(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LocalStore(path) as store:
        store.create("/a", b"1")
        size = path.with_name("metadata-wal").stat().st_size
        for room in range(0, 8000, 500):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
            try:
                with pytest.raises(
                    ZooKeeperError, match=rf"^/a: {path} cannot be written: the disk, a quota or a limit"
                ):
                    store.set("/a", b"2" * 10_000)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert store.get("/a")[0] == b"1"
            assert store.connected
        store.set("/a", b"3", version=0)
    with LocalStore(path) as store:
        assert store.get("/a")[0] == b"3"


def test_a_start_that_finds_no_room_says_so_and_leaves_nothing_to_close(path: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LocalStore(path) as running:
        running.create("/mine", ephemeral=True)
        running._database.checkpoint()
        killed = Path(shutil.copy(path, tmp_path / "killed"))
    store = LocalStore(killed)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(ConfigError, match=f"{killed} cannot be opened: .*: the disk, a quota"):
            store.start()
        assert not store.connected
        store.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with LocalStore(killed) as store:
        assert store.children("/") == []


def test_what_cannot_be_read_while_it_runs_is_no_answer(path: Path) -> None:
    with LocalStore(path) as store:
        store.create("/a", b"1")
        store._database._run("UPDATE nodes SET path = CAST(x'2FFF' AS TEXT) WHERE path = '/a'")
        with pytest.raises(ConnectionFailed, match=f"{path} cannot be read: Could not decode to UTF-8"):
            store.children("/")
        assert not store.connected


def test_it_says_when_no_space_is_left_and_goes_on_when_there_is(path: Path) -> None:
    with LocalStore(path) as store:
        store.create("/a", b"1")
        store._database._run("PRAGMA max_page_count = 1")
        for _ in range(2):
            with pytest.raises(ZooKeeperError, match=rf"^/a: {path} cannot be written: No space left on device"):
                store.set("/a", b"2" * 10_000)
        store._database._run("PRAGMA max_page_count = 1000000")
        store.set("/a", b"3" * 10_000, version=0)


@contextlib.contextmanager
def in_place_of(file: Path, name: Path, flags: int) -> Iterator[None]:
    """Put another file behind the descriptor that this process has of a file."""
    [fd] = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and fd.readlink() == file]
    kept, other = os.dup(int(fd.name)), os.open(name, flags)
    os.dup2(other, int(fd.name))
    try:
        yield
    finally:
        os.dup2(kept, int(fd.name))
        os.close(kept)
        os.close(other)


def test_a_file_that_cannot_take_the_changes_leaves_them_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, wal = tmp_path / "metadata", tmp_path / "metadata-wal"
    with LocalStore(path) as store:
        store.create("/a", b"1")
        with in_place_of(path, path, os.O_RDONLY):
            for _ in range(3):
                store.set("/a", b"2" * 600_000)
        assert f"{path} cannot be written: the disk, a quota or a limit of file sizes takes no more; " in caplog.text
        assert store.connected
        assert wal.stat().st_size > 1_800_000
        store.set("/a", b"3", version=3)
        assert wal.stat().st_size == 0
    with LocalStore(path) as store:
        assert store.get("/a")[0] == b"3"


def test_after_a_failed_sync_it_takes_no_more_writes(tmp_path: Path) -> None:
    with LocalStore(tmp_path / "metadata") as store:
        store.create("/a", b"1")
        with (  # takes all bytes and cannot sync them
            in_place_of(tmp_path / "metadata-wal", Path("/dev/null"), os.O_RDWR),
            pytest.raises(ZooKeeperError, match="/metadata cannot be written: disk I/O error"),
        ):
            store.set("/a", b"2")
        assert not store.connected
        assert store.get("/a")[0] == b"1"
        with pytest.raises(ConnectionFailed, match="restart the broker"):
            store.set("/a", b"2")


def test_what_is_beside_it_does_not_outgrow_it(tmp_path: Path) -> None:
    path, wal = tmp_path / "metadata", tmp_path / "metadata-wal"
    with LocalStore(path) as store:
        store.create("/a")
        store.delete(store.create("/a/n-", sequence=True))
        store.create("/mine", ephemeral=True)
        largest = 0
        for _ in range(50):
            store.set("/a", b"x" * 60_000)
            largest = max(largest, wal.stat().st_size)
        state = [node for node in nodes(store) if node[0] == "/a"]
        assert 900_000 < largest < 1_200_000
        assert path.stat().st_size < 1 << 20
    assert not wal.exists()
    with LocalStore(path) as store:
        assert [node for node in nodes(store) if node[0] == "/a"] == state
        with pytest.raises(BadVersion):
            store.set("/a", b"", version=49)


def test_many_short_lives_do_not_make_it_grow(path: Path) -> None:
    for _ in range(5):
        with LocalStore(path) as store:
            store.create("/n-", b"x" * 300_000, sequence=True)
            store.delete(f"/{store.children('/')[0]}")
    assert path.stat().st_size < 1_400_000


def test_a_file_of_the_first_form_is_refused_as_it_is(path: Path) -> None:
    journal = b'pykafka metadata 1\n397014b1 {"zxid":7,"nodes":[["/","",0,0,0,0,1]]}\n'
    path.write_bytes(journal)
    with pytest.raises(ConfigError, match=rf"^{path} has format 1, .* start the broker once with commit e9c2fa35"):
        LocalStore(path).start()
    assert path.read_bytes() == journal


def test_a_crash_while_the_file_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, left, wal = (tmp_path / name for name in ("metadata", "metadata.tmp", "metadata.tmp-wal"))

    def crash(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", crash)
        with pytest.raises(ConfigError, match=rf"^{path} cannot be opened: .*No space left"):
            LocalStore(path).start()
    assert not path.exists()
    half = left.read_bytes()
    for size in (0, 100, len(half) - 1000):
        left.write_bytes(half[:size])
        wal.write_bytes(half[size:])
        with LocalStore(path) as store:
            assert store.children("/") == []
        assert sorted(os.listdir(tmp_path)) == ["metadata"]
        path.unlink()


def test_only_the_owner_may_read_the_file(path: Path) -> None:
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
