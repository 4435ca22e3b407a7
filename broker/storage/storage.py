"""A directory on any file system, with two atomic operations that a commit can rely on.

`create` (a whole file appears, or FileExistsError) and `rename` (a directory changes its name at once, or
FileExistsError / FileNotFoundError) are atomic on a local disk and on HDFS; object stores have only `create`, a
conditional put, and `probe` finds those that do not obey the condition. Used by the files offset store and by `load`.
Everything goes through fsspec: it needs no JVM and works in any Python process, including Spark Connect clients.
`hdfs://` is hdfs-native's file system, because fsspec's own needs libhdfs.

Paths given to a `Storage` are relative to its root, with `/` between the parts. Parts may come from a record that a
stranger has written, so a path that would leave the root is refused (`joined`).
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
from hdfs_native.fsspec import HdfsFileSystem

from broker.errors import ConfigError, PykafkaError
from broker.storage.object_stores import ObjectStore, ObjectWriter, http_status, object_store_of
from broker.storage.url_secrets import text_without_secrets, without_secrets

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HDFS = re.compile(r"(hdfs://[^/]*)(/.*)?", re.DOTALL)
_GLOB = re.compile(r"[\\\[\]{}*?]")
_WRITE_BUFFER = 1 << 20  # bytes

MOST_READ = 64 << 20
"""Bytes of a file that is read as a whole, unless its reader knows better. A record of a load of 100,000 partitions has
20 MB."""

_CRC_MAGIC = b"crc\0"
_CRC_READ = 4 << 20  # bytes
_SYNCS_AT_ONCE = 8
_PART = 8 << 20  # bytes of a part of an upload, which waits in memory
_PUTS = 20  # tries of a conditional put while another one of the same name is under way
_PAUSE = 0.1  # seconds between them
_probed: set[tuple[str, str, str]] = set()  # (scheme, bucket, endpoint) of the stores that obey the condition


class OutsidePlace(PykafkaError):
    """A path that would lead out of the directory that it is given for."""


class TooLarge(PykafkaError):
    """A file that has more bytes than what should be there can have."""


def joined(root: str, path: str) -> str:
    """The place `path` below `root`; "" is the root itself. Every path of a `Storage` is made here.

    Raises OutsidePlace for a path with an empty part, `..` or NUL: so what it names does not lie above the root.
    """
    if not path:
        return root
    if "\0" in path or not {"", ".."}.isdisjoint(path.split("/")):
        raise OutsidePlace(f"{path!r} is no name of anything below {without_secrets(root)}")
    return f"{root}/{path}"


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """hdfs-native raises a plain RuntimeError when the NameNode refuses a call (rights, safe mode, limits, quotas)."""
    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise
        kind = PermissionError if "AccessControlException" in str(error) else OSError
        raise kind(f"HDFS: {error}") from error


class _Hdfs(HdfsFileSystem):
    """hdfs-native's file system, but failing with OSErrors like all others.

    fsspec must not cache it: in a forked child fsspec drops its cache, and dropping this instance waits for threads
    that a child does not have. Spark forks when it starts its JVM.
    """

    cachable = False
    info = _os_errors()(HdfsFileSystem.info)
    ls = _os_errors()(HdfsFileSystem.ls)
    mkdir = _os_errors()(HdfsFileSystem.mkdir)
    mv = _os_errors()(HdfsFileSystem.mv)
    rm = _os_errors()(HdfsFileSystem.rm)
    cat_file = _os_errors()(HdfsFileSystem.cat_file)
    _open = _os_errors()(HdfsFileSystem._open)


fsspec.register_implementation("hdfs", _Hdfs, clobber=True)


def open_storage(url: str, options: Mapping[str, str] | None = None) -> Storage:
    """The directory at `url`: a plain path, `file://…`, `hdfs://host:port/…` or any other scheme fsspec knows.

    `options` are those of broker/storage/object_stores.py; for HDFS they are Hadoop client settings such as
    `dfs.replication`. Nothing is created or connected yet. Raises ConfigError for a URL that cannot be used.
    """
    if "\0" in url:
        raise ConfigError(f"{url!r} cannot be the name of a directory")
    scheme, colon, rest = url.partition(":")
    if scheme in {"file", "local"} and colon:
        host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
        if host not in {"", "localhost"}:
            raise ConfigError(f"'{url}' names the host '{host}': a local directory is file:///…, with three slashes")
        return _local(slash + path)
    if not (_SCHEME.fullmatch(scheme) and rest.startswith("//")):
        if scheme in fsspec.available_protocols():
            raise ConfigError(f"'{url}' names no host: write {scheme}://…")
        return _local(url)
    store = object_store_of(url)
    if store is not None:
        return _open_object_storage(store, rest[2:], options or {})
    # For fsspec a # or ? ends the path on HDFS; for Hadoop and Spark they are characters of a name as all others.
    on_hdfs = _HDFS.fullmatch(url)
    server = on_hdfs[1] if on_hdfs else url
    try:
        filesystem, root = fsspec.core.url_to_fs(server, **(options or {}))
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        raise ConfigError(f"cannot use '{without_secrets(url)}': {text_without_secrets(str(error))}") from error
    if on_hdfs:
        root = posixpath.normpath(f"/{(on_hdfs[2] or '').lstrip('/')}")
        url = server + root
    if not root.strip("/"):
        raise ConfigError(f"'{without_secrets(url)}' names no directory: give a path below the root")
    return Storage(filesystem, root.rstrip("/"), url.rstrip("/"), options or {})


def _open_object_storage(store: ObjectStore, path: str, options: Mapping[str, str]) -> ObjectStorage:
    """`path` is `<bucket>/<way>`."""
    store.require()
    url = f"{store.scheme}://{path}".rstrip("/")
    if not path.partition("/")[0]:
        raise ConfigError(f"'{without_secrets(url)}' names no bucket: write {store.scheme}://BUCKET/DIRECTORY")
    checked = store.checked(options)
    try:
        filesystem, root = store.open(url, checked)
    except Exception as error:  # of whatever library is behind it
        raise ConfigError(f"cannot use '{without_secrets(url)}': {text_without_secrets(str(error))}") from error
    return ObjectStorage(filesystem, root.rstrip("/"), url, checked)


def discard_output(file: Any) -> None:
    """End an output after an error. On an object store nothing of it appears; elsewhere a part of the file stays."""
    if isinstance(file, ObjectWriter):
        file.discard()
    else:
        file.close()  # fsspec's local file has a `discard` that always fails


def _local(path: str) -> LocalStorage:
    full = os.path.abspath(path)
    return LocalStorage(fsspec.filesystem("file"), full, f"file://{full}", {})


class Storage:
    """A directory reached through fsspec (HDFS, object stores). The root need not exist."""

    def __init__(self, filesystem: Any, root: str, url: str, options: Mapping[str, str]) -> None:
        """Called by `open_storage`. `url` and `options` open the same directory in another process."""
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

    @property
    def object_store_options(self) -> dict[str, str] | None:
        """`options` as Rust's object_store names them, on which `deltalake` stands."""
        return self.options or None

    def probe(self) -> None:
        """Raise ConfigError where `create` would replace a file: commits would overwrite each other (A13). For writers.

        Once per process and store, by creating twice; the first one may find its own file, see `ObjectStorage.create`.
        """
        if self.renames_directories:
            return  # which is how `create` works there
        if getattr(type(self._fs), "pipe_file", None) is fsspec.AbstractFileSystem.pipe_file:
            raise ConfigError(
                f"'{self.shown}': fsspec cannot create a file only if there is none there: it looks, then writes. Of "
                "two commits at the same time one would be lost. Use a local directory, hdfs://, s3://, gs:// or abfs://"
            )
        store = (self.url.partition("://")[0], self._root.partition("/")[0], self.options.get("endpoint_url", ""))
        if store in _probed:
            return
        path = f"_probe-{secrets.token_hex(6)}"
        try:
            with contextlib.suppress(FileExistsError):
                self.create(path, b"first")
            self.create(path, b"second")
        except FileExistsError:
            _probed.add(store)
            return
        finally:
            self.remove(path)
        raise ConfigError(
            f"'{self.shown}': this store ignores the condition of a conditional put (If-None-Match) and overwrites: of "
            "two commits at the same time one would be lost. Use a store that obeys it, as Amazon S3 does"
        )

    def below(self, path: str) -> Storage:
        """The directory `path` as its own storage."""
        return type(self)(self._fs, self._full(path), self.url_of(path), self.options)

    @property
    def shown(self) -> str:
        """Its URL for messages and records."""
        return without_secrets(self.url)

    def parents(self) -> Iterator[tuple[Storage, str]]:
        """The directories that this one lies in, from the nearest on, and the way from each to this one."""
        root, url, way = self._root, self.url, ""
        while (above := posixpath.dirname(root)) not in {"", "/"}:
            way = posixpath.join(posixpath.basename(root), way).rstrip("/")
            root, url = above, posixpath.dirname(url)
            yield type(self)(self._fs, root, url, self.options), way

    def url_of(self, path: str) -> str:
        """The URL of `path` for Spark."""
        return joined(self.url, path)

    def pattern_of(self, path: str) -> str:
        """The same for Spark's readers, which take these characters for a pattern; its writers do not."""
        return _GLOB.sub(r"\\\g<0>", self.url_of(path))

    def read(self, path: str, most: int = MOST_READ) -> bytes:
        """The whole file. Raises FileNotFoundError, and TooLarge for one of more than `most` bytes, because others may
        have written it: no more than that comes into memory."""
        data = self.read_range(path, 0, most + 1)
        if len(data) > most:
            raise TooLarge(f"{self.shown}/{path} has more than {most:,} bytes: no program of ours has written it")
        return data

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes in [start, end) of a file; fewer where it ends, and behind that some stores raise OSError.

        Raises FileNotFoundError.
        """
        return bytes(self._fs.cat_file(self._full(path), start=start, end=end))

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._full(path)))

    def modified_ms(self, path: str) -> int:
        """When the file was written, in milliseconds since 1970. Raises FileNotFoundError."""
        return int(self._fs.modified(self._full(path)).timestamp() * 1000)

    def names(self, path: str) -> list[str]:
        """Sorted names of the entries of the directory; empty when it does not exist."""
        return sorted(self._entries(path))

    def sizes(self, path: str) -> dict[str, int | None]:
        """Name → bytes of the entries of the directory; None for a directory."""
        entries = sorted(self._entries(path).items())
        return {name: int(info["size"]) if info["type"] == "file" else None for name, info in entries}

    def tree_sizes(self, path: str) -> dict[str, int]:
        """Path below the directory → bytes, of all files in it and in its subdirectories that are not hidden."""
        found = {}
        for name, info in sorted(self._entries(path).items()):
            if info["type"] == "file":
                found[name] = int(info["size"])
            elif not name.startswith(("_", ".")):
                found.update(
                    {f"{name}/{file}": size for file, size in self.tree_sizes(posixpath.join(path, name)).items()}
                )
        return found

    def data_files(self, path: str) -> dict[str, int]:
        """`tree_sizes` of the files that readers see: without hidden files (_SUCCESS, checksums)."""
        sizes = self.tree_sizes(path).items()
        return {name: size for name, size in sizes if not posixpath.basename(name).startswith(("_", "."))}

    def agrees_with_checksums(self, path: str) -> bool:
        """Whether a file has the bytes that Hadoop wrote, by the checksum file beside it (`.part-….crc`).

        The file is `crc\\0`, the size of a chunk, and a CRC-32 per chunk. True where there is none. HDFS checks itself.
        """
        directory, name = posixpath.split(path)
        if self.is_hdfs:
            return True
        try:
            sums = self.read(f"{directory}/.{name}.crc")
        except FileNotFoundError:
            return True
        size = int.from_bytes(sums[4:8], "big")
        if sums[:4] != _CRC_MAGIC or not 0 < size <= _CRC_READ:
            return True
        found = bytearray()
        with self.open_input(path) as file:
            while block := file.read(_CRC_READ // size * size):
                view = memoryview(block)
                for at in range(0, len(block), size):
                    found += zlib.crc32(view[at : at + size]).to_bytes(4, "big")
        return found == sums[8:]

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
        """Create a file that is never visible half-written. Raises FileExistsError and then changes nothing.

        On HDFS the file is written under another name and renamed: a plain create would show an empty file first, and
        a lost race for it fails in two ways (FileAlreadyExists, AlreadyBeingCreated). Object stores: a conditional put.
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
        """Rename a file or directory in one step; creates the parent of the target.

        Raises FileExistsError when the target exists and FileNotFoundError when the source does not.
        """
        if not self.renames_directories:
            raise ConfigError(f"'{self.shown}' has no atomic rename; use a local directory or hdfs://")
        self.make_directory(posixpath.dirname(target))
        self._fs.mv(self._full(source), self._full(target))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content; no error when it does not exist."""
        try:
            self._fs.rm(self._full(path), recursive=True)
        except FileNotFoundError:
            return

    def sync(self, path: str) -> None:
        """Make what lies at `path`, a file or a directory with all below it, survive a power failure, and its name."""

    def _write_temporary(self, path: str, data: bytes) -> str:
        """Write beside `path` under a unique hidden name; gives that name."""
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
        entries = {posixpath.basename(info["name"].rstrip("/")): info for info in listing}
        is_file = len(listing) == 1 and listing[0]["name"].rstrip("/") == self._full(path)  # which lists itself
        return {} if is_file else entries

    def _full(self, path: str) -> str:
        return joined(self._root, path)


class ObjectStorage(Storage):
    """A bucket, or what lies in it below a name. Directories need not be made, and none is renamed."""

    @property
    def object_store_options(self) -> dict[str, str]:
        store = object_store_of(self.url)
        assert store is not None
        return store.for_object_store(self.options)

    def make_directory(self, path: str) -> None:
        """Nothing: s3fs would make the bucket."""

    def agrees_with_checksums(self, path: str) -> bool:
        """Hadoop has written nothing here; the store checks its own objects."""
        return True

    def create(self, path: str, data: bytes) -> None:
        """A conditional put. One whose answer is lost is repeated by the library, and may then meet its own file."""
        for attempt in range(_PUTS):
            try:
                self._fs.pipe_file(self._full(path), data, mode="create")
                return
            except FileExistsError:
                raise
            except OSError as error:  # s3fs does not tell a condition that does not hold from other errors
                status = http_status(error)
                if status == 412:
                    raise FileExistsError(f"{self._full(path)} exists") from error
                if status != 409 or attempt == _PUTS - 1:
                    raise
                time.sleep(_PAUSE)  # S3 does not know yet which of two puts is the first

    def open_output(self, path: str) -> Any:
        """A binary file object to write. The object appears as a whole at `close`; after an error, not at all."""
        return ObjectWriter(self._fs.open(self._full(path), "wb", block_size=_PART))

    def _entries(self, path: str) -> dict[str, dict[str, Any]]:
        """Without the empty object that some programs make for a directory."""
        own = self._full(path)
        try:
            listing = self._fs.ls(own, detail=True, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        named = {info["name"].rstrip("/"): info for info in listing}
        return {posixpath.basename(name): info for name, info in named.items() if name != own}


class LocalStorage(Storage):
    """A directory of this machine. It calls `os`, because fsspec's local `mv` moves INTO an existing directory."""

    @property
    def renames_directories(self) -> bool:
        return True

    def create(self, path: str, data: bytes) -> None:
        temporary = self._write_temporary(path, data)
        try:
            os.link(self._full(temporary), self._full(path))  # unlike rename, refuses to replace
        finally:
            self.remove(temporary)
        _sync(os.path.dirname(self._full(path)))

    def rename(self, source: str, target: str) -> None:
        self.make_directory(posixpath.dirname(target))
        if os.path.lexists(self._full(target)):  # os.rename would replace a file or an empty directory
            raise FileExistsError(f"{self._full(target)} exists")
        os.rename(self._full(source), self._full(target))
        for path in (target, source):  # in this order: in between it has two names, in the other it could have none
            _sync(os.path.dirname(self._full(path)))

    def make_directory(self, path: str) -> None:
        """Each new name is synced, as those of files are: a file is lost with the name of its directory."""
        full, missing = self._full(path), []
        while not os.path.isdir(full):
            missing.append(full)
            full = os.path.dirname(full)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory)
            _sync(os.path.dirname(directory))

    def sync(self, path: str) -> None:
        full = self._full(path)
        paths = [place for place in (full, os.path.dirname(full)) if os.path.lexists(place)]
        for directory, below, files in os.walk(full):
            paths += [os.path.join(directory, name) for name in (*below, *files)]
        with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
            list(pool.map(_sync, paths))  # raises the first error

    def remove(self, path: str) -> None:
        full = self._full(path)
        if os.path.isdir(full):
            shutil.rmtree(full, ignore_errors=True)  # two repairs may remove the same leftover at once
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(full)

    def _write_temporary(self, path: str, data: bytes) -> str:
        temporary = super()._write_temporary(path, data)
        _sync(self._full(temporary))
        return temporary


class _BytesWriter(io.RawIOBase):
    """hdfs-native's file takes only `bytes`, but writers give it any buffer."""

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


def _sync(path: str) -> None:
    """Make the bytes of a local file, or the names in a local directory, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
