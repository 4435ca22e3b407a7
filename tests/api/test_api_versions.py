"""ApiVersions: the whole table, and the answer to versions that are not known yet."""

from __future__ import annotations

import struct

import pytest

from broker.api.table import API_TABLE
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response
from tests.support.raw_requests import Requests, versions


@pytest.mark.parametrize("version", versions(ApiKey.API_VERSIONS))
def test_every_version_tells_the_whole_table(ask: Requests, version: int) -> None:
    body = {"client_software_name": "tests", "client_software_version": "1"}
    answer = ask.ask(ApiKey.API_VERSIONS, body, version)
    told = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    served = {int(api): (0 if api is ApiKey.PRODUCE else low, high) for api, low, high, *_ in API_TABLE}
    assert (answer.error_code, told) == (ErrorCode.none, served)


@pytest.mark.parametrize(("version", "lowest"), [(3, []), (4, [0])])
def test_older_clients_are_not_told_of_features_from_version_0_on(
    ask: Requests, version: int, lowest: list[int]
) -> None:
    """Older ones for Java cannot read them (KAFKA-17492)."""
    body = {"client_software_name": "tests", "client_software_version": "1"}
    answer = ask.ask(ApiKey.API_VERSIONS, body, version)
    assert [one.min_version for one in answer.supported_features] == lowest


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_an_unknown_version_is_answered_in_version_0_with_the_table(ask: Requests, version: int) -> None:
    ask.socket.sendall(struct.pack(">ihhi", 30, int(ApiKey.API_VERSIONS), version, 77) + b"\x7f" * 22)
    (length,) = struct.unpack(">i", ask.read(4))
    correlation_id, answer = decode_response(ApiKey.API_VERSIONS, 0, ask.read(length))
    assert (correlation_id, answer.error_code) == (77, ErrorCode.unsupported_version)
    assert len(answer.api_keys) == len(API_TABLE)
    assert ask.ask(ApiKey.API_VERSIONS, {}, 0).error_code is ErrorCode.none  # the connection goes on


@pytest.mark.parametrize(("name", "version"), [("x y", "1"), ("x", ""), ("-x", "1")])
def test_software_that_cannot_be_named_so_is_refused(ask: Requests, name: str, version: str) -> None:
    answer = ask.ask(ApiKey.API_VERSIONS, {"client_software_name": name, "client_software_version": version}, 3)
    assert answer.error_code is ErrorCode.invalid_request
