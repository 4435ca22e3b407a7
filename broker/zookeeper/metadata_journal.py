"""The file of a metadata store without ZooKeeper: lines of JSON with checksums, appended and synced one by one.

    pykafka metadata 1
    5e1c0f3a [snapshot…]
    9b02d1c7 [transaction…]

The first line names the format. Every other line begins with the CRC-32 of its JSON. When the transactions outgrow the
snapshot, a new file with a new snapshot replaces this one.

JSON has neither a line break nor a NUL inside a line. So after a crash a line that was being written is one without an
end, or with NULs where a block never reached the disk. Such a line at the end of the file was never answered: it is
cut off. Any other line that is wrong was damaged later, and the file is refused.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from broker.durable_files import write_atomically
from broker.errors import ConfigError

_FORMAT = b"pykafka metadata 1\n"
_FORMAT_NAME = b"pykafka metadata "
_OWNER_ONLY = 0o600  # it holds users' credentials
_REWRITE_BYTES = 1 << 20


class MetadataJournal:
    """Not thread-safe. Every method blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._size = 0
        self._snapshot_size = 0
        self.failure = ""
        """Why nothing more can be written; empty while all is well."""

    def open(self) -> list[Any]:
        """Return the values of all lines, none for a new file. Raises ConfigError for a damaged file, OSError."""
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        if not content.startswith(_FORMAT):
            raise ConfigError(self._unknown_format(content))
        values, self._size = self._decode(content)
        self._snapshot_size = content.index(b"\n", len(_FORMAT)) + 1
        self._open_to_append()
        if self._size < len(content):
            os.ftruncate(self._fd, self._size)
            os.fsync(self._fd)
        return values

    def append(self, value: Any) -> None:
        """Return when the value is on disk. After an OSError it is not in the file.

        If that is not certain, `failure` is set: this process must write nothing more.
        """
        line = _line(value)
        try:
            self._write(line)
        except OSError:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError as error:
                self.failure = f"{self.path} cannot be written: {error.strerror}"
            raise
        try:
            os.fsync(self._fd)
        except OSError as error:
            # The kernel may have dropped what it could not write, and would not say so a second time.
            self.failure = f"{self.path} cannot be written: {error.strerror}"
            raise
        self._size += len(line)

    @property
    def outgrown(self) -> bool:
        """Whether it is time for `rewrite`."""
        return self._size - self._snapshot_size > max(_REWRITE_BYTES, self._snapshot_size)

    def rewrite(self, snapshot: Iterable[Any]) -> None:
        """Replace the file by one with these values.

        After an OSError the old file is still in use, or `failure` is set.
        """
        content = _FORMAT + b"".join(map(_line, snapshot))
        try:
            write_atomically(self.path, content, _OWNER_ONLY)
        except OSError as error:
            if self._fd >= 0 and not os.path.samestat(os.fstat(self._fd), self.path.stat()):
                self.failure = f"{self.path} cannot be written: {error.strerror}"
            raise
        self.close()
        self._size = self._snapshot_size = len(content)
        self._open_to_append()

    def damaged(self, line: int, reason: str) -> ConfigError:
        """The error for a file that cannot be trusted; `line` counts from 1."""
        return ConfigError(
            f"{self.path} is damaged in line {line} ({reason}). It holds the topics, settings and users of "
            "this broker. Put back an older copy of the file"
        )

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.pwrite(self._fd, line[written:], self._size + written)

    def _open_to_append(self) -> None:
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            self.failure = f"{self.path} cannot be opened: {error.strerror}"
            raise

    def _decode(self, content: bytes) -> tuple[list[Any], int]:
        """The values, and the size of the file without a torn line at its end."""
        lines = content.split(b"\n")[1:-1]  # without the format, and without a torn line at the end
        values: list[Any] = []
        size = len(_FORMAT)
        for number, line in enumerate(lines, start=2):
            value = _value(line)
            if value is None:
                if b"\0" in line and number == len(lines) + 1:
                    break
                raise self.damaged(number, "its checksum is wrong")
            values.append(value)
            size += len(line) + 1
        if not values:
            raise self.damaged(2, "its snapshot, which is written at once, is not whole")
        return values, size

    def _unknown_format(self, content: bytes) -> str:
        if content.startswith(_FORMAT_NAME):
            return f"{self.path} was written by a newer pykafka; start that one"
        return f"{self.path} is not a metadata file of pykafka, or its first line is damaged"


def _line(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _value(line: bytes) -> Any | None:
    """None when the line is not as it was written."""
    checksum, _, text = line.partition(b" ")
    return json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None
