"""The file of a metadata store without ZooKeeper: a tree of nodes in SQLite with ZooKeeper's rules
(org.apache.zookeeper.server: PrepRequestProcessor, DataTree).

SQLite appends the pages that a transaction changes to `<file>-wal` and syncs them before the answer. They are copied
into the file when there are many, and when it is closed; then `<file>-wal` is empty or gone. After a crash SQLite reads
both, without a transaction whose write was torn. It would also leave out damaged transactions and all behind them, and
it keeps no checksums of the file. So every node has one, and a start checks them all.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.durable_files import TEMPORARY_SUFFIX, sync_directory
from broker.errors import ConfigError
from broker.zookeeper.operations import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NodeStat,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
    ZooKeeperError,
    shown,
)

ROOT = "/"

_APPLICATION_ID = 0x70796B66
_FORMAT = 2
"""Raise it when an older version could not read the file."""
_FORMAT_1 = b"pykafka metadata 1\n"
"""The beginning of a journal of text, which no release wrote."""
_PAGE_BYTES = 4096
_SCHEMA = f"""
CREATE TABLE nodes (
    path TEXT PRIMARY KEY, parent TEXT, data BLOB, created_zxid INTEGER, created_ms INTEGER, ephemeral_owner INTEGER,
    version INTEGER, children INTEGER, children_created INTEGER, checksum INTEGER
) WITHOUT ROWID;
CREATE INDEX children ON nodes (parent);
CREATE TABLE last_transaction (zxid INTEGER, checksum INTEGER);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT};
"""
_COLUMNS = "path, data, created_zxid, created_ms, ephemeral_owner, version, children, children_created"
_WRITE = """
INSERT INTO nodes VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT (path) DO UPDATE SET data = excluded.data,
    version = excluded.version, children = excluded.children, children_created = excluded.children_created,
    checksum = excluded.checksum
"""
"""REPLACE would write the page of the index, too."""
_OWNER_ONLY = 0o600  # it holds users' credentials
_CHECKPOINT_BYTES = 1 << 20
_REASONS = {
    "SQLITE_FULL": "No space left on device",
    "SQLITE_IOERR_WRITE": "the disk, a quota or a limit of file sizes takes no more",
    "SQLITE_BUSY": "another process has it open",
}
_NOTHING_WRITTEN = {"SQLITE_FULL", "SQLITE_IOERR_WRITE"}
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")


@dataclass(slots=True)
class Znode:
    """`ephemeral_owner` is the session that holds the node, 0 for a persistent node."""

    path: str
    data: bytes = b""
    created_zxid: int = 0
    created_ms: int = 0
    ephemeral_owner: int = 0
    version: int = 0
    children: int = 0
    children_created: int = 0
    """How many children were ever created: the number of the next sequence node."""

    def stat(self) -> NodeStat:
        return NodeStat(self.version, self.created_zxid, self.created_ms, self.ephemeral_owner, self.children)

    @property
    def checksum(self) -> int:
        numbers = f"{self.created_zxid} {self.created_ms} {self.ephemeral_owner} {self.version} {self.children}"
        return zlib.crc32(self.data, zlib.crc32(f"{self.path} {numbers} {self.children_created} ".encode()))


class MetadataDatabase:
    """Not thread-safe. Every method blocks. All but `open` and `close` raise sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.zxid = 0
        """The number of the last transaction."""
        self._wal = path.with_name(f"{path.name}-wal")
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, or create it. Raises ConfigError for a damaged file, OSError."""
        if not self.path.exists():
            self._create()
        self._refuse_format_1()
        wal = self._wal.read_bytes() if self._wal.exists() else b""
        try:
            self._connect()
            self._check_wal(wal)
            self._check()
        except sqlite3.Error as error:
            if _name_of(error).startswith(_DAMAGE):
                raise damaged(self.path, f"({error})") from error
            raise

    def close(self) -> None:
        """Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def is_outgrown(self) -> bool:
        """Whether it is time for `checkpoint`."""
        return self._wal.stat().st_size > _CHECKPOINT_BYTES

    def checkpoint(self) -> None:
        """Copy the changes from `<file>-wal` into the file."""
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    def node(self, path: str) -> Znode | None:
        rows = self._run(f"SELECT {_COLUMNS} FROM nodes WHERE path = ?", path)
        return Znode(*rows[0]) if rows else None

    def children(self, path: str) -> list[str]:
        rows = self._run("SELECT path FROM nodes WHERE parent = ? ORDER BY path", path)
        return [child.rpartition("/")[2] for (child,) in rows]

    def nodes(self) -> list[Znode]:
        """All nodes, parents before their children."""
        return [Znode(*row) for row in self._run(f"SELECT {_COLUMNS} FROM nodes ORDER BY path")]

    def apply(self, operations: Sequence[Operation], *, now_ms: int, session: int) -> list[Any]:
        """Do all operations or none, in a transaction on disk. `session` owns the ephemeral nodes.

        Returns what `MetadataStore.transaction` does. Raises ZooKeeperError.
        """
        zxid = self.zxid + any(not isinstance(operation, Check) for operation in operations)
        with self._opened() as connection:  # commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            results = [self._do(operation, zxid, now_ms, session) for operation in operations]
            if zxid > self.zxid:
                self._run("UPDATE last_transaction SET zxid = ?, checksum = ?", zxid, _zxid_checksum(zxid))
        self.zxid = zxid
        return results

    # -- one operation

    def _do(self, operation: Operation, zxid: int, now_ms: int, session: int) -> Any:
        match operation:
            case Create(path, data, ephemeral):
                return self._create_node(operation, Znode(path, data, zxid, now_ms, session * ephemeral))
            case SetData(path, data, version):
                node = self._at_version(path, version)
                node.data, node.version = data, node.version + 1
                self._write(node)
                return node.stat()
            case Delete(path, version):
                self._delete(path, version)
            case Check(path, version):
                self._at_version(path, version)
        return True

    def _create_node(self, operation: Create, node: Znode) -> str:
        parent = self._existing(parent_of(node.path), asked=node.path)
        if operation.sequence:
            node.path = f"{node.path}{parent.children_created:010d}"
        if self.node(node.path):
            raise NodeExists(operation.path)
        if parent.ephemeral_owner:
            raise ZooKeeperError(operation.path, "an ephemeral node cannot have children")
        parent.children += 1
        parent.children_created += 1
        self._write(parent)
        self._write(node)
        return node.path

    def _delete(self, path: str, version: int) -> None:
        if path == ROOT:
            raise ZooKeeperError(path, "the root cannot be deleted")
        if self._at_version(path, version).children:
            raise NotEmpty(path)
        parent = self._existing(parent_of(path), asked=path)
        parent.children -= 1
        self._write(parent)
        self._run("DELETE FROM nodes WHERE path = ?", path)

    def _at_version(self, path: str, version: int) -> Znode:
        node = self._existing(path, asked=path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path)
        return node

    def _existing(self, path: str, *, asked: str) -> Znode:
        node = self.node(path)
        if node is None:
            raise NoNode(asked)
        return node

    def _write(self, n: Znode) -> None:
        parent = None if n.path == ROOT else parent_of(n.path)
        numbers = n.created_zxid, n.created_ms, n.ephemeral_owner, n.version, n.children, n.children_created
        self._run(_WRITE, n.path, parent, n.data, *numbers, n.checksum)

    # -- the file

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError(f"{self.path} is closed")
        return self._connection

    def _run(self, statement: str, *values: Any) -> list[Any]:
        return self._opened().execute(statement, values).fetchall()

    def _connect(self) -> None:
        self._connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        self._run(f"PRAGMA page_size={_PAGE_BYTES}")
        self._run("PRAGMA locking_mode=EXCLUSIVE")  # so SQLite needs no memory shared with others: NFS will do
        self._run("PRAGMA journal_mode=WAL")
        self._run("PRAGMA synchronous=FULL")
        self._run("PRAGMA wal_autocheckpoint=0")  # `checkpoint` says when it fails
        self._run("PRAGMA temp_store=MEMORY")

    def _create(self) -> None:
        """Write a file with nothing but the root, under another name until it is whole."""
        new = MetadataDatabase(self.path.with_name(self.path.name + TEMPORARY_SUFFIX))
        for left_behind in (new.path, new._wal, self._wal):
            left_behind.unlink(missing_ok=True)
        os.close(os.open(new.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY))
        try:
            new._connect()
            new._run("PRAGMA synchronous=OFF")  # it is synced below, at once
            new._opened().executescript(_SCHEMA)
            new._write(Znode(ROOT))
            new._run("INSERT INTO last_transaction VALUES (?, ?)", 0, _zxid_checksum(0))
            new.checkpoint()
        finally:
            new.close()
        with new.path.open("rb") as file:
            os.fsync(file.fileno())
        new.path.replace(self.path)
        sync_directory(self.path.parent)

    def _refuse_format_1(self) -> None:
        with self.path.open("rb") as file:
            if file.read(len(_FORMAT_1)) == _FORMAT_1:
                raise ConfigError(
                    f"{self.path} has format 1, which no release of pykafka wrote: start the broker once with commit "
                    "e9c2fa35, which makes a file of format 2 of it, and then this one"
                )

    def _check_wal(self, wal: bytes) -> None:
        """SQLite ignores what is behind a damaged transaction, and `close` deletes it. A crash tears only the last."""
        [(_, taken, _)] = self._run("PRAGMA wal_checkpoint")
        frames = [wal[start : start + 24] for start in range(32, len(wal) - 24 - _PAGE_BYTES + 1, 24 + _PAGE_BYTES)]
        lost = sum(frame[4:8] != bytes(4) for frame in frames[taken:])  # a commit has the size of the file there
        if lost > 1:
            self.close()
            self._wal.write_bytes(wal)
            raise damaged(self._wal, f"before the last {lost} transactions")
        self.checkpoint()

    def _check(self) -> None:
        """Raises ConfigError, sqlite3.Error."""
        if self._run("PRAGMA application_id") != [(_APPLICATION_ID,)]:
            raise ConfigError(f"{self.path} is not a metadata file of pykafka, or its first page is damaged")
        if self._run("PRAGMA user_version") > [(_FORMAT,)]:
            raise ConfigError(f"{self.path} was written by a newer pykafka; start that one")
        [(found,), *_] = self._run("PRAGMA integrity_check")
        if found != "ok":
            raise damaged(self.path, f"({found})")
        [(self.zxid, checksum)] = self._run("SELECT zxid, checksum FROM last_transaction")
        if checksum != _zxid_checksum(self.zxid):
            raise damaged(self.path, "(the checksum of its last transaction is wrong)")
        for *columns, checksum in self._run(f"SELECT {_COLUMNS}, checksum FROM nodes"):
            if checksum != Znode(*columns).checksum:
                raise damaged(self.path, f"(the checksum of {shown(columns[0])} is wrong)")


def damaged(path: Path, reason: str) -> ConfigError:
    """The error for a metadata file that cannot be trusted."""
    shown = " ".join(reason.split())  # SQLite's reasons have line breaks
    return ConfigError(
        f"{path} is damaged {shown}. It holds the topics, settings and users of this broker. Put back an older copy of "
        "the file, with the -wal file of that copy or with none"
    )


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def reason_of(error: sqlite3.Error) -> str:
    return _REASONS.get(_name_of(error), str(error))


def may_be_tried_again(error: sqlite3.Error) -> bool:
    """Whether the file is as it was before the write that failed, and may be written when there is room."""
    return _name_of(error) in _NOTHING_WRITTEN


def _name_of(error: sqlite3.Error) -> str:
    """Python's own errors have no name: a text that is not UTF-8."""
    return getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")


def _zxid_checksum(zxid: int) -> int:
    return zlib.crc32(str(zxid).encode())
