"""The encoding of multiRead, as far as a healthy server does not show it (the rest is in test_client.py)."""

from __future__ import annotations

import struct

import pytest

from broker.zookeeper.multi_read import GetChildrenOfMany, GetDataOfMany
from broker.zookeeper.operations import ZooKeeperError

CLOSING = struct.pack("!iBi", -1, 1, -1)


def error(code: int) -> bytes:
    return struct.pack("!iBi", -1, 0, code) + struct.pack("!i", code)


def test_a_request_is_a_header_and_a_path_per_node() -> None:
    assert GetDataOfMany(["/a", "/ü"]).serialize() == (
        b"\0\0\0\x04\0\xff\xff\xff\xff\0\0\0\x02/a\0" + b"\0\0\0\x04\0\xff\xff\xff\xff\0\0\0\x03/\xc3\xbc\0" + CLOSING
    )


def test_missing_nodes_are_none_and_a_node_without_data_is_empty() -> None:
    no_data = struct.pack("!iBi", 4, 0, 0) + struct.pack("!i", -1) + struct.pack("!qqqqiiiqiiq", *range(11))
    found = GetDataOfMany(["/a", "/b"]).deserialize(b"xx" + error(-101) + no_data + CLOSING, 2)
    assert found[0] is None
    assert found[1] is not None
    assert found[1][0] == b""
    stat = found[1][1]
    assert (stat.created_zxid, stat.created_ms, stat.version, stat.ephemeral_owner, stat.children) == (0, 2, 4, 7, 9)


def test_another_error_names_its_node() -> None:
    with pytest.raises(ZooKeeperError, match=r"^/b: cannot be read, ZooKeeper error -102$"):
        GetChildrenOfMany(["/a", "/b"]).deserialize(error(-101) + error(-102) + CLOSING, 0)
