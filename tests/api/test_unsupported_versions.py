"""Versions of every API that are not served: as in Kafka, the connection is closed and the log has the reason.

ApiVersions is answered (test_api_versions.py), so that a client can learn the versions, and so are Produce and Fetch of
old clients, which would show nothing but a lost connection.
"""

from __future__ import annotations

import struct

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import SERVED, Requests

UNSERVED = [*sorted(set(range(-1, 100)) - set(SERVED)), 32767, -32768]
REFUSED = [
    (api, version)
    for api, (low, high) in SERVED.items()
    for version in sorted({-1, low - 1, high + 1, 32767})
    if api is not ApiKey.API_VERSIONS and (api, version) != (ApiKey.FETCH, low - 1)
]


def frame(api: int, version: int) -> bytes:
    return struct.pack(">ihhih", 40, api, version, 7, -1) + b"\0" * 30


@pytest.mark.parametrize(("api", "version"), REFUSED, ids=[f"{api.name}-{version}" for api, version in REFUSED])
def test_a_version_that_is_not_served_ends_the_connection(broker: BrokerProcess, api: ApiKey, version: int) -> None:
    with Requests(broker.bootstrap, timeout_s=10) as ask:
        ask.socket.sendall(frame(api, version))
        assert ask.is_hung_up()
        host, port = ask.socket.getsockname()
    assert f"closing the connection of {host}:{port}: {api.name} version {version} is outside" in broker.output


def test_an_api_that_is_not_served_ends_the_connection(broker: BrokerProcess) -> None:
    for key in UNSERVED:
        with Requests(broker.bootstrap, timeout_s=10) as ask:
            ask.socket.sendall(frame(key, 0))
            assert ask.is_hung_up(), key
    assert f"API key {UNSERVED[0]} is not served" in broker.output


def old_produce(version: int, acks: int, topic: str) -> bytes:
    """As clients from before record batches send it, with an old message of no value that matters."""
    name, message = topic.encode(), b"m" * 20
    partition = struct.pack(">iii", 1, 0, len(message)) + message
    body = struct.pack(">hiih", acks, 1000, 1, len(name)) + name + partition
    return struct.pack(">ihhih", 10 + len(body), ApiKey.PRODUCE, version, 7, -1) + body


@pytest.mark.parametrize(("version", "rest"), [(0, 0), (1, 4), (2, 12)])
def test_a_produce_from_before_record_batches_is_told_so(
    ask: Requests, broker: BrokerProcess, topic: str, version: int, rest: int
) -> None:
    """The bytes are those of the protocol then: `rest` are the time of append and the throttle time."""
    ask.create(topic)
    ask.socket.sendall(old_produce(version, 1, topic))
    (length,) = struct.unpack(">i", ask.read(4))
    name = topic.encode()
    answer = struct.pack(">iih", 7, 1, len(name)) + name + struct.pack(">iihq", 1, 0, ErrorCode.unsupported_version, -1)
    times = {0: b"", 1: bytes(4), 2: struct.pack(">qi", -1, 0)}[version]
    assert (ask.read(length), len(times)) == (answer + times, rest)
    assert ask.values(topic) == []  # and the connection goes on
    assert f"PRODUCE version {version} is outside" in broker.output


def test_an_old_produce_that_wants_no_answer_ends_the_connection(ask: Requests, topic: str) -> None:
    ask.socket.sendall(old_produce(2, 0, topic))
    assert ask.is_hung_up()


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_fetch_from_before_record_batches_is_told_so(ask: Requests, version: int) -> None:
    most = struct.pack(">i", 1000) if version >= 3 else b""
    partition = struct.pack(">iiqi", 1, 5, 0, 1000)
    body = struct.pack(">iii", -1, 0, 1) + most + struct.pack(">ih", 1, 1) + b"t" + partition
    ask.socket.sendall(struct.pack(">ihhih", 10 + len(body), ApiKey.FETCH, version, 7, -1) + body)
    (length,) = struct.unpack(">i", ask.read(4))
    throttled = bytes(4) if version >= 1 else b""
    partition = struct.pack(">iihqi", 1, 5, ErrorCode.unsupported_version, -1, 0)
    assert ask.read(length) == struct.pack(">i", 7) + throttled + struct.pack(">ih", 1, 1) + b"t" + partition
