"""Many reads in one ZooKeeper request: the multiRead operation (ZOOKEEPER-3402, ZooKeeper 3.6), which kazoo lacks.

4,000 nodes take 30 ms. As many pipelined requests take a second, nearly all of it in kazoo. `GetDataOfMany` and
`GetChildrenOfMany` are requests as kazoo knows them: each has a `type`, encodes itself and decodes the response, in
ZooKeeper's encoding (jute, big-endian):

    request   [header, path, watch byte] per node, closing header
    answer    [header, then data and stat | names of the children | error code] per node, closing header
    header    type of operation int32, "nothing follows" byte, error int32
    path, data, name: int32 length (-1: none), bytes;  names: int32 count, each name
    stat      czxid mzxid ctime mtime int64, version cversion aversion int32, ephemeralOwner int64,
              dataLength numChildren int32, pzxid int64
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from broker.zookeeper.operations import NodeStat, ZooKeeperError

_HEADER = struct.Struct("!iBi")
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_CLOSING_HEADER = _HEADER.pack(-1, True, -1)
_ERROR = -1
_NO_NODE = -101

T = TypeVar("T")


class MultiRead(ABC, Generic[T]):
    """The response is a list with an entry per path; None for a missing node."""

    type = 22
    operation: int  # ZooKeeper's number of the read of one node

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def serialize(self) -> bytes:
        header = _HEADER.pack(self.operation, False, -1)
        parts: list[bytes] = []
        for path in map(str.encode, self.paths):
            parts += (header, _INT.pack(len(path)), path, b"\0")
        return b"".join(parts) + _CLOSING_HEADER

    def deserialize(self, buffer: bytes, position: int) -> list[T | None]:
        """Raises ZooKeeperError when a node exists and could not be read."""
        found: list[T | None] = []
        while True:
            operation, closing, _ = _HEADER.unpack_from(buffer, position)
            position += _HEADER.size
            if closing:
                return found
            if operation == _ERROR:
                (code,) = _INT.unpack_from(buffer, position)
                position += _INT.size
                if code != _NO_NODE:
                    raise ZooKeeperError(self.paths[len(found)], f"cannot be read, ZooKeeper error {code}")
                found.append(None)
            else:
                one, position = self._read_one(buffer, position)
                found.append(one)

    @abstractmethod
    def _read_one(self, buffer: bytes, position: int) -> tuple[T, int]:
        """One entry, and the position after it."""


class GetDataOfMany(MultiRead[tuple[bytes, NodeStat]]):
    operation = 4

    def _read_one(self, buffer: bytes, position: int) -> tuple[tuple[bytes, NodeStat], int]:
        data, position = _read_bytes(buffer, position)
        created_zxid, _, created_ms, _, version, _, _, owner, _, children, _ = _STAT.unpack_from(buffer, position)
        return (data, NodeStat(version, created_zxid, created_ms, owner, children)), position + _STAT.size


class GetChildrenOfMany(MultiRead[list[str]]):
    operation = 8

    def _read_one(self, buffer: bytes, position: int) -> tuple[list[str], int]:
        (count,) = _INT.unpack_from(buffer, position)
        position += _INT.size
        names = []
        for _ in range(count):
            name, position = _read_bytes(buffer, position)
            names.append(name.decode())
        return names, position


def _read_bytes(buffer: bytes, position: int) -> tuple[bytes, int]:
    (length,) = _INT.unpack_from(buffer, position)
    position += _INT.size
    end = position + max(length, 0)
    return buffer[position:end], end
