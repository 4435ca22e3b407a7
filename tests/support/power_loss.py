"""A local file system that forgets what was not synced: what a power failure leaves at its worst.

    with PowerLoss(directory) as power:
        …
        power.cut(3)        # `directory` is now what the first three fsyncs had made durable

A file has the bytes of its last fsync, none if it never had one. A directory has the names of its last fsync. So a file
that was synced is lost if the name of one of its directories was not. Every fsync of this process counts; those of
others do not, which makes the file system forget more, never less.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

Inode = int


class PowerLoss:
    """Watches `os.fsync` below `root`, a directory that exists and is durable itself."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real = os.fsync
        self._syncs: list[tuple[Inode, bytes | dict[str, Inode]]] = []
        self._kept = [os.open(root, os.O_RDONLY)]
        self._directories: set[Inode] = set()
        self._root_inode = os.fstat(self._kept[0]).st_ino

    @property
    def syncs(self) -> int:
        """How many fsyncs there were."""
        return len(self._syncs)

    def cut(self, syncs: int | None = None) -> None:
        """Replace what lies below the root by what was durable after so many fsyncs; None: after all of them."""
        durable = dict(self._syncs[:syncs])
        for entry in self._root.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._restore(self._root, self._root_inode, durable)

    def _restore(self, path: Path, inode: Inode, durable: dict[Inode, bytes | dict[str, Inode]]) -> None:
        """A directory without any fsync has no names; what was never synced and is no directory is an empty file."""
        names = durable.get(inode, {})
        assert isinstance(names, dict)
        for name, child in names.items():
            found = durable.get(child, {} if child in self._directories else b"")
            if isinstance(found, dict):
                (path / name).mkdir()
                self._restore(path / name, child, durable)
            else:
                (path / name).write_bytes(found)

    def _fsync(self, fd: int) -> None:
        self._real(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if not path.is_relative_to(self._root):
            return
        self._kept.append(os.dup(fd))  # so that no other file gets this inode's number
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            children = {entry.name: entry for entry in os.scandir(path)}
            for entry in children.values():
                self._keep(entry)
            self._syncs.append((status.st_ino, {name: entry.inode() for name, entry in children.items()}))
        else:
            self._syncs.append((status.st_ino, path.read_bytes()))

    def _keep(self, entry: os.DirEntry[str]) -> None:
        if entry.is_dir():
            self._directories.add(entry.inode())
        self._kept.append(os.open(entry.path, os.O_RDONLY))

    def __enter__(self) -> Self:
        os.fsync = self._fsync  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync = self._real
        for fd in self._kept:
            os.close(fd)
