"""A directory on any file system, with the two acts that a commit can lean on.

`create` (a file appears whole, or FileExistsError) and `rename` (a directory changes its name at once, or
FileExistsError / FileNotFoundError) are atomic on a local disk and on HDFS. Object stores have the first one only.
Used by the files offset store and by `load`; everything goes through fsspec, so there is no JVM and it works in any
Python process, Spark Connect included. `hdfs://` is hdfs-native's file system: fsspec's own needs libhdfs.

Paths given to a `Storage` are relative to its root, with `/` between the parts.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
import secrets
import shutil
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import fsspec
from hdfs_native.fsspec import HdfsFileSystem

from broker.errors import ConfigError

__all__ = ["LocalStorage", "Storage", "heals_by_waiting", "open_storage"]

_WRITE_BUFFER = 1 << 20  # bytes


_LASTING = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
)


def heals_by_waiting(error: OSError) -> bool:
    """Whether the same may work later, with nobody changing what the user has set up.

    A right that is missing, a file where a directory should be, a disk that cannot be written to: somebody must do
    something about it. A full disk may be emptied by those who fill it; servers come back.
    """
    lasting = isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError)
    return not lasting and error.errno not in _LASTING


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """hdfs-native says by a plain RuntimeError what the NameNode refuses (rights, safe mode, limits, quotas)."""
    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise
        kind = PermissionError if "AccessControlException" in str(error) else OSError
        raise kind(f"HDFS: {error}") from error


class _Hdfs(HdfsFileSystem):
    """hdfs-native's file system, failing as all others do: with an OSError.

    fsspec keeps no instance of it: in a forked child it drops what it keeps, and dropping this one waits for threads
    that no child has. Spark's own start of a JVM is such a fork.
    """

    cachable = False

    def info(self, path: str, **options: Any) -> Any:
        with _os_errors():
            return super().info(path, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        with _os_errors():
            return super().ls(path, detail, **options)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        with _os_errors():
            super().mkdir(path, create_parents, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        with _os_errors():
            super().mv(path1, path2, **options)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        with _os_errors():
            super().rm(path, recursive, maxdepth)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        with _os_errors():
            return super().cat_file(path, start, end, **options)

    def _open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        with _os_errors():
            return super()._open(path, mode, *arguments, **options)


fsspec.register_implementation("hdfs", _Hdfs, clobber=True)


def open_storage(url: str, options: Mapping[str, str] | None = None) -> Storage:
    """The directory at `url`: a plain path, `file://…`, `hdfs://host:port/…` or any other scheme fsspec knows.

    `options` are fsspec's storage options; for HDFS they are Hadoop client settings such as `dfs.replication`.
    Nothing is created or connected yet. Raises ConfigError for a URL that cannot be used.
    """
    scheme = urlsplit(url).scheme
    if scheme in {"", "file", "local"}:
        path = os.path.abspath(urlsplit(url).path if scheme else url)
        return LocalStorage(fsspec.filesystem("file"), path, f"file://{path}", {})
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **(options or {}))
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(f"cannot use '{url}': {error}") from error
    if not root.strip("/"):
        raise ConfigError(f"'{url}' names no directory: give a path below the root")
    return Storage(filesystem, root.rstrip("/"), url.rstrip("/"), options or {})


class Storage:
    """A directory reached through fsspec (HDFS, object stores). The root need not exist."""

    def __init__(self, filesystem: Any, root: str, url: str, options: Mapping[str, str]) -> None:
        """Made by `open_storage`. `url` and `options` open the same directory in another process."""
        self._fs = filesystem
        self._root = root
        self.url = url
        self.options = dict(options)

    @property
    def renames_directories(self) -> bool:
        """Whether `rename` is atomic here; `load` needs it."""
        return self.is_hdfs

    @property
    def is_hdfs(self) -> bool:
        return isinstance(self._fs, HdfsFileSystem)

    def below(self, path: str) -> Storage:
        """The directory `path` as a storage of its own."""
        return type(self)(self._fs, self._full(path), self.url_of(path), self.options)

    def url_of(self, path: str) -> str:
        """What Spark is given to reach `path`."""
        return f"{self.url}/{path}"

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        return bytes(self._fs.cat_file(self._full(path)))

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._full(path)))

    def names(self, path: str) -> list[str]:
        """Names (last parts) of what lies directly in the directory, sorted; empty when there is no such directory."""
        return sorted(self._entries(path))

    def file_sizes(self, path: str) -> dict[str, int]:
        """Name → bytes of the files directly in the directory; empty when there is no such directory."""
        entries = self._entries(path)
        return {name: int(info["size"]) for name, info in sorted(entries.items()) if info["type"] == "file"}

    def tree_sizes(self, path: str) -> dict[str, int]:
        """Name below the directory → bytes of the files in it and in all directories below; no hidden directories."""
        found = {}
        for name, info in sorted(self._entries(path).items()):
            if info["type"] == "file":
                found[name] = int(info["size"])
            elif not name.startswith(("_", ".")):
                found.update({f"{name}/{file}": size for file, size in self.tree_sizes(f"{path}/{name}").items()})
        return found

    def open_input(self, path: str) -> Any:
        """A seekable binary file object."""
        return self._fs.open(self._full(path), "rb")

    def open_output(self, path: str) -> Any:
        """A binary file object that replaces the file; parents are made."""
        self.make_directory(posixpath.dirname(path))
        file = self._fs.open(self._full(path), "wb")
        return io.BufferedWriter(_BytesWriter(file), _WRITE_BUFFER) if self.is_hdfs else file

    def make_directory(self, path: str) -> None:
        """Make the directory and its parents where they do not exist."""
        self._fs.makedirs(self._full(path), exist_ok=True)

    def create(self, path: str, data: bytes) -> None:
        """Make a new file that is never seen half-written. Raises FileExistsError; then nothing has changed.

        HDFS: written under another name and renamed, for a plain create would show an empty file first, and a lost
        race for it has two faces (FileAlreadyExists and AlreadyBeingCreated). Object stores: a conditional put.
        """
        if not self.renames_directories:
            self._fs.pipe_file(self._full(path), data, mode="create")
            return
        temporary = self._write_temporary(path, data)
        try:
            self._fs.mv(self._full(temporary), self._full(path))
        except FileExistsError:
            self.remove(temporary)
            raise

    def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name in one step; the target's parent is made.

        Raises FileExistsError when the target exists and FileNotFoundError when the source does not.
        """
        if not self.renames_directories:
            raise ConfigError(f"'{self.url}' has no atomic rename; use a local directory or hdfs://")
        self.make_directory(posixpath.dirname(target))
        self._fs.mv(self._full(source), self._full(target))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all it holds; no error when there is none."""
        try:
            self._fs.rm(self._full(path), recursive=True)
        except FileNotFoundError:
            return

    def _write_temporary(self, path: str, data: bytes) -> str:
        """Write next to `path` under a hidden name that nobody else uses; gives that name."""
        directory, name = posixpath.split(path)
        temporary = posixpath.join(directory, f".{name}.{secrets.token_hex(6)}.tmp")
        with self.open_output(temporary) as file:
            file.write(data)
        return temporary

    def _entries(self, path: str) -> dict[str, dict[str, Any]]:
        try:
            listing = self._fs.ls(self._full(path), detail=True, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {posixpath.basename(info["name"].rstrip("/")): info for info in listing}

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


class LocalStorage(Storage):
    """A directory of this machine. fsspec's local `mv` moves INTO an existing directory, hence the calls to `os`."""

    @property
    def renames_directories(self) -> bool:
        return True

    def create(self, path: str, data: bytes) -> None:
        temporary = self._write_temporary(path, data)
        try:
            os.link(self._full(temporary), self._full(path))  # unlike rename, refuses to replace
        finally:
            self.remove(temporary)
        _sync_directory(os.path.dirname(self._full(path)))

    def rename(self, source: str, target: str) -> None:
        self.make_directory(posixpath.dirname(target))
        if os.path.lexists(self._full(target)):  # os.rename would replace a file or an empty directory
            raise FileExistsError(f"{self._full(target)} exists")
        os.rename(self._full(source), self._full(target))
        _sync_directory(os.path.dirname(self._full(target)))

    def remove(self, path: str) -> None:
        full = self._full(path)
        if os.path.isdir(full):
            shutil.rmtree(full, ignore_errors=True)  # two repairs may remove the same leftover at once
        elif os.path.lexists(full):
            os.unlink(full)

    def _write_temporary(self, path: str, data: bytes) -> str:
        temporary = super()._write_temporary(path, data)
        with open(self._full(temporary), "rb") as file:
            os.fsync(file.fileno())
        return temporary


class _BytesWriter(io.RawIOBase):
    """hdfs-native's file takes nothing but `bytes`; writers hand in any buffer."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _os_errors():
            return int(self._file.write(bytes(data)))

    def close(self) -> None:
        if not self.closed:
            try:
                with _os_errors():
                    self._file.close()
            finally:
                super().close()


def _sync_directory(path: str) -> None:
    """Make a new name in a local directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
