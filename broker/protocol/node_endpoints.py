"""The tagged fields of Produce and Fetch responses that tell a client who leads a partition (KIP-951)."""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

from broker.protocol.wire import array_length, nullable_string, string, unsigned_varint

_LEADER = struct.Struct(">BBiiB")
_LEADER_SIZE = 9
_INT32 = struct.Struct(">i")


class CurrentLeader(NamedTuple):
    """The leader that a broker knows; id -1 if there is none, and no host if it has no address for the client."""

    broker_id: int
    epoch: int
    host: str = ""
    port: int = -1
    rack: str | None = None


def encode_leader(tag: int, leader: CurrentLeader) -> bytes:
    """The tagged field of a partition."""
    return _LEADER.pack(tag, _LEADER_SIZE, leader.broker_id, leader.epoch, 0)


def encode_node_endpoints(leaders: Collection[CurrentLeader]) -> bytes:
    """All tagged fields of the response: field 0 with the addresses."""
    value = bytearray(array_length(len(leaders), True))
    for one in leaders:
        value += _INT32.pack(one.broker_id) + string(one.host, True) + _INT32.pack(one.port)
        value += nullable_string(one.rack, True) + b"\0"
    return b"\x01\0" + unsigned_varint(len(value)) + bytes(value)
