"""Versions of every API that are not served: as in Kafka, the connection is closed and the log has the reason.

Only ApiVersions is answered (test_api_versions.py), so that a client can learn the versions.
"""

from __future__ import annotations

import struct

import pytest

from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import SERVED, Requests

UNSERVED = [*sorted(set(range(-1, 100)) - set(SERVED)), 32767, -32768]
REFUSED = [
    (api, version)
    for api, (low, high) in SERVED.items()
    for version in sorted({-1, low - 1, high + 1, 32767})
    if api is not ApiKey.API_VERSIONS
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
