"""Requests of every API, made from kio's schemas: well-formed ones with hostile values, and frames that are broken.

Used by tests/faults/test_fuzz.py and test_hostile_frames.py. Everything comes out of `API_TABLE`, so an API that is
added is attacked from the day it is served. All randomness comes from the `random.Random` handed in: hypothesis can
drive it, and a seed repeats a run.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import typing
import uuid
from typing import Any

from kio.static.constants import EntityType

from broker.errors import ErrorCode
from broker.log.log_config import LogConfig
from broker.protocol.api_keys import ApiKey
from broker.protocol.entities import entity_class, unwrap_optional
from broker.protocol.messages import encode_request
from broker.settings import settings_of
from tests.support.raw_requests import NO_ID, SERVED, batch

TOPIC = "target"
GROUP = "hunters"

STRINGS = [
    "",
    " ",
    "x",
    ".",
    "..",
    "a" * 249,
    "a" * 250,
    "ü" * 40,
    "no\0way",
    "/../etc",
    "-1",
    "*",
    "\U0001f4a9",
    "z" * 5000,
]
NAMES = [TOPIC, TOPIC, TOPIC, "other", "__consumer_offsets", "__transaction_state"]
KNOWN_STRINGS: dict[str, list[str]] = {
    "topic": NAMES,
    "name": [*NAMES, "retention.ms", "cleanup.policy", "range"],
    "group": [GROUP, GROUP, "prey"],
    "key": [GROUP, "tx"],
    "member": ["", "m", GROUP],
    "instance": ["i1", "i2"],
    "transactional": ["tx", "tx2"],
    "resource_name": [TOPIC, "0", "", "other"],
    "protocol_type": ["consumer", "connect"],
    "value": ["0", "1", "-1", "2000", "true", "compact", "LogAppendTime", str(2**63 - 1), str(2**63), "1.5", "NaN"],
    "mechanism": ["PLAIN", "SCRAM-SHA-256", "GSSAPI"],
}
KNOWN_INTS: dict[str, list[int]] = {
    "partition": [0, 0, 1, 2, 999],
    "index": [0, 0, 1, 999],
    "acks": [-1, 0, 1, 2],
    "num_partitions": [-1, 0, 1, 2],
    "count": [0, 1, 2, 3, 4],
    "replication_factor": [-1, 1, 2],
    "resource_type": [2, 4, 8, 16, 32],
    "config_operation": [0, 1, 2, 3],
    "offset": [0, 1, 5, -1, -2],
    "timestamp": [-1, -2, -3, -4, 0, 1_700_000_000_000],
    "epoch": [-1, 0, 1],
    "generation": [-1, 0, 1, 2],
    "producer_id": [-1, 0, 1, 2],
    "bytes": [0, 1, 1000, 1 << 20],
    "replica_id": [-1, 0, 1],
    "session_id": [0, 0, 1],
}
TOPIC_SETTINGS = list(settings_of(LogConfig))
BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
SHORT_WAITS = [-1, 0, 0, 1, 5, 30]


class HostileRequests:
    """Makes request bodies and frames. `topic_id` is the id of `TOPIC`."""

    def __init__(self, dice: random.Random, topic_id: uuid.UUID = NO_ID) -> None:
        self._dice = dice
        self._topic_id = topic_id

    # --- well-formed requests

    def body(self, api: ApiKey, version: int) -> dict[str, Any]:
        """A body of this version in kio's field names, its values likely and unlikely ones."""
        return self._struct(entity_class(api, version, EntityType.request))

    def sound(self, api: ApiKey, version: int | None = None, correlation_id: int = 0) -> bytes:
        """A whole well-formed frame, length first; of any version served when none is named."""
        if version is None:
            version = self._dice.randint(*SERVED[api])
        return encode_request(api, version, correlation_id, "fuzz", self.body(api, version))

    def _struct(self, entity: Any) -> dict[str, Any]:
        hints = typing.get_type_hints(entity)
        made = {
            field.name: self._value(field.name, hints[field.name], field.metadata.get("kafka_type", ""))
            for field in dataclasses.fields(entity)
        }
        if {"name", "value"} <= made.keys() and self._dice.random() < 0.7:  # a setting
            made["name"] = self._dice.choice(TOPIC_SETTINGS)
        return made

    def _value(self, name: str, hint: Any, kafka_type: str) -> Any:
        hint, optional = unwrap_optional(hint)
        if optional and self._dice.random() < 0.15:
            return None
        if typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            count = self._dice.choice((0, 1, 1, 1, 1, 2, 3))
            return [self._value(name, item, kafka_type) for _ in range(count)]
        if dataclasses.is_dataclass(hint):
            return self._struct(hint)
        return self._scalar(name, kafka_type)

    def _scalar(self, name: str, kafka_type: str) -> Any:
        dice = self._dice
        if kafka_type in BITS:
            return self._int(name, kafka_type)
        match kafka_type:
            case "bool":
                return dice.random() < 0.5
            case "float64":
                return dice.choice((0.0, -1.0, 1e308))
            case "string":
                return self._likely(name, KNOWN_STRINGS, STRINGS)
            case "bytes" | "records":
                return self._bytes(name)
            case "uuid":
                return dice.choice((NO_ID, self._topic_id, uuid.UUID(int=dice.getrandbits(128))))
            case "error_code":
                return dice.choice((ErrorCode.none, ErrorCode.unknown_server_error, ErrorCode.not_coordinator))
            case "timedelta_i32" | "timedelta_i64":
                long_ones = [6000, 30_000, 2**31 - 1] if "session" in name else [2**31 - 1]
                return dice.choice(SHORT_WAITS if dice.random() < 0.8 else long_ones)
            case "datetime_i64":
                return dice.choice((-1, 0, 1_700_000_000_000))
        raise AssertionError(f"{name} has the new type {kafka_type!r}: say here how to make one")

    def _int(self, name: str, kafka_type: str) -> int:
        bits = BITS[kafka_type]
        low, high = (0, 2**bits - 1) if kafka_type[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        value: int = self._likely(name, KNOWN_INTS, [0, 1, -1, 2, 7, low, high])
        return min(max(value, low), high)

    def _likely(self, name: str, known: dict[str, list[Any]], unlikely: list[Any]) -> Any:
        likely = [value for part, values in known.items() if part in name for value in values]
        return self._dice.choice(likely if likely and self._dice.random() < 0.8 else unlikely)

    def _bytes(self, name: str) -> bytes:
        dice = self._dice
        if name == "records" and dice.random() < 0.8:
            records = batch(b"v" * dice.choice((0, 40, 2000)), producer_id=dice.choice((-1, -1, 7)), base_sequence=0)
            return records if dice.random() < 0.5 else self._mutated(records)
        return dice.choice(
            (b"", b"\0", b"\xff" * 8, b"\0\0\0\1\0\6target\0\0\0\1\0\0\0\0\0\0\0\0", dice.randbytes(100))
        )

    # --- broken frames

    def broken(self, corpus: list[bytes]) -> bytes:
        """A frame, length first: noise, or one of the corpus with bits, bytes or its length wrong."""
        dice = self._dice
        kind = dice.randrange(12)
        if kind == 0:
            frame = dice.randbytes(dice.randrange(1, 200))
        elif kind == 1:
            header = struct.pack(">hhi", dice.choice([*SERVED, 4, 7, 26, 99]), dice.randrange(-2, 20), 1)
            frame = header + dice.randbytes(dice.randrange(60))
        elif kind == 2:  # the head of one, the tail of another
            first, second = dice.choice(corpus)[4:], dice.choice(corpus)[4:]
            frame = first[: dice.randrange(1, len(first) + 1)] + second[dice.randrange(len(second)) :]
        else:
            frame = dice.choice(corpus)[4:]
            for _ in range(dice.choice((0, 1, 1, 1, 2, 5))):
                frame = self._mutated(frame)
        length = len(frame) if dice.random() > 0.01 else dice.choice((-1, 0, 1 << 30, len(frame) + 5, len(frame) // 2))
        return struct.pack(">i", length) + frame

    def _mutated(self, frame: bytes) -> bytes:
        """Some bits flipped, bytes overwritten, cut out or doubled, mostly behind the API key and version."""
        dice = self._dice
        if len(frame) < 12:
            return frame + b"\0"
        at = dice.randrange(0 if dice.random() < 0.05 else 8, len(frame))
        match dice.randrange(6):
            case 0:
                return frame[:at] + bytes([frame[at] ^ (1 << dice.randrange(8))]) + frame[at + 1 :]
            case 1:
                return frame[:at] + bytes([dice.choice((0, 1, 2, 0x7F, 0x80, 0xFF))]) + frame[at + 1 :]
            case 2:
                return frame[:at] + dice.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0")) + frame[at + 4 :]
            case 3:
                return frame[:at] + frame[at + dice.randrange(1, 9) :]
            case 4:
                return frame[:at] + frame[at - 4 : at] + frame[at:]
            case _:
                return frame[:at]
