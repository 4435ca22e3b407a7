"""Frames that nobody should send, thousands of them, to a running broker: it neither ends nor hangs nor grows."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_request
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import SERVED, Requests, ask_for, batch, fetch_body
from tests.support.waiting import eventually

FRAMES = 20_000
TIME_S = 25.0
GROWTH_BYTES = 50 << 20
TOPIC = "target"

BODIES: dict[ApiKey, dict[str, Any]] = {
    ApiKey.PRODUCE: {
        "acks": 1,
        "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch(b"v" * 40)}]}],
    },
    ApiKey.FETCH: fetch_body([ask_for(TOPIC)], max_wait=1),
    ApiKey.LIST_OFFSETS: {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
    ApiKey.METADATA: {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False},
    ApiKey.OFFSET_COMMIT: {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 3}]}],
    },
    ApiKey.OFFSET_FETCH: {
        "group_id": "g",
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        "groups": [{"group_id": "g", "topics": [{"name": TOPIC, "partition_indexes": [0]}]}],
    },
    ApiKey.FIND_COORDINATOR: {"key": "g", "coordinator_keys": ["g"]},
    ApiKey.JOIN_GROUP: {
        "group_id": "g",
        "session_timeout": 6000,
        "rebalance_timeout": 1,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    },
    ApiKey.SYNC_GROUP: {"group_id": "g", "generation_id": 1, "member_id": "m"},
    ApiKey.DESCRIBE_CONFIGS: {"resources": [{"resource_type": 2, "resource_name": TOPIC}]},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": TOPIC,
                "configs": [{"name": "segment.ms", "config_operation": 0, "value": "99999"}],
            }
        ],
        "validate_only": True,
    },
    ApiKey.CREATE_TOPICS: {
        "topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}],
        "validate_only": True,
    },
    ApiKey.DELETE_TOPICS: {"topics": [{"name": "none"}], "topic_names": ["none"]},
}


@pytest.fixture
def target(broker_factory: Callable[..., BrokerProcess]) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": "1"}
    broker = broker_factory(
        {**settings, "group.initial.rebalance.delay.ms": "0", "socket.request.max.bytes": "1000000"}
    )
    with Requests(broker.bootstrap) as ask:
        ask.create(TOPIC)
        ask.ask(ApiKey.FIND_COORDINATOR, {"coordinator_keys": ["g"]})
    yield broker
    assert broker.running, broker.output[-3000:]
    assert "Traceback" not in broker.output, broker.output[-6000:]


def memory(broker: BrokerProcess) -> int:
    """Resident bytes."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def descriptors(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


def sound(dice: random.Random) -> bytes:
    api = dice.choice(list(BODIES))
    low, high = SERVED[api]
    return encode_request(api, dice.randint(low, high), dice.getrandbits(31), "x", BODIES[api])[4:]


def hostile(dice: random.Random) -> bytes:
    """A frame, with its length: random bytes, or a sound request with some of its bytes wrong, gone or doubled."""
    kind = dice.randrange(8)
    if kind == 0:
        frame = dice.randbytes(dice.randrange(1, 200))
    elif kind == 1:
        frame = struct.pack(">hhi", dice.choice([*SERVED, 4, 7, 26, 99]), dice.randrange(-2, 20), 1) + dice.randbytes(
            30
        )
    else:
        frame = sound(dice)
        for _ in range(dice.randint(0, 4)):
            at = dice.randrange(min(4, len(frame) - 1), len(frame))
            change = dice.randrange(4)
            if change == 0:
                frame = (
                    frame[:at] + bytes([dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))]) + frame[at + 1 :]
                )
            elif change == 1:
                frame = frame[:at] + dice.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0")) + frame[at + 4 :]
            elif change == 2:
                frame = frame[:at] + frame[at + dice.randrange(1, 9) :]
            else:
                frame = frame[:at] + frame[at - 4 : at] + frame[at:]
    length = len(frame) if dice.random() > 0.02 else dice.choice((-1, 0, 1 << 30, len(frame) + 5))
    return struct.pack(">i", length) + frame


def test_twenty_thousand_hostile_frames_do_no_harm(target: BrokerProcess) -> None:
    dice = random.Random(20_000)
    host, _, port = target.bootstrap.rpartition(":")
    with Requests(target.bootstrap) as good:
        good.put(TOPIC, b"x")
        before, open_before = memory(target), descriptors(target)
        sent, deadline = 0, time.monotonic() + TIME_S
        while sent < FRAMES and time.monotonic() < deadline:
            with socket.create_connection((host, int(port)), timeout=10) as sock:
                frames = [hostile(dice) for _ in range(dice.randint(1, 10))]
                sent += len(frames)
                try:
                    sock.sendall(b"".join(frames))
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(1 << 16):
                        pass
                except ConnectionError:
                    pass
            if sent % 50 == 0:
                assert good.metadata(TOPIC).topics[0].error_code is ErrorCode.none
        assert sent > FRAMES // 10
        eventually(lambda: descriptors(target) <= open_before + 5)
        assert good.metadata(TOPIC).topics[0].error_code is ErrorCode.none
        assert memory(target) - before < GROWTH_BYTES


def test_half_frames_and_unread_responses_hold_nobody_up(target: BrokerProcess) -> None:
    with Requests(target.bootstrap) as good:
        for _ in range(40):
            good.put(TOPIC, b"x" * 900_000)
        before = memory(target)
        stuck = [Requests(target.bootstrap) for _ in range(60)]
        for number, one in enumerate(stuck):
            if number % 2:
                one.socket.sendall(struct.pack(">i", 900_000) + b"\0" * 1000)  # and no more
            else:
                one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                for _ in range(30):  # 36 MB each, of which nothing is read
                    one.send(ApiKey.FETCH, fetch_body([ask_for(TOPIC, max_bytes=50 << 20)]), 12)
        asked = time.monotonic()
        for _ in range(20):
            good.put(TOPIC, b"y")
        assert time.monotonic() - asked < 5
        assert memory(target) - before < GROWTH_BYTES
        for one in stuck:
            one.close()
        eventually(lambda: descriptors(target) < 60)
