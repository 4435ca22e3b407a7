"""`pykafka quotas`: set, list, remove, and what is wrong is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, error_of


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with BrokerProcess(tmp_path_factory.mktemp("quotas") / Path("data"), standalone=True) as process:
        yield "--bootstrap-server", process.bootstrap


def listed(at: tuple[str, str], *options: str) -> list[Any]:
    found: list[Any] = json.loads(answer_of("quotas", "list", "--json", *options, *at))
    return found


def test_quotas_are_set_listed_and_removed(at: tuple[str, str]) -> None:
    alice = ("--user", "alice", "--client-default")
    said = answer_of("quotas", "set", *alice, "--producer-byte-rate", "1048576", "request_percentage=12.5", *at)
    assert said == "Set request_percentage=12.5, producer_byte_rate=1048576 of user alice, default client-id.\n"
    answer_of("quotas", "set", "--ip-default", "--connection-creation-rate", "5", *at)
    entity = {"user": "alice", "client-id": None}
    limits = {"producer_byte_rate": 1048576, "request_percentage": 12.5}
    assert listed(at, "--user", "alice") == [{"entity": entity, "quotas": limits}]
    assert listed(at, "--ip-default") == [{"entity": {"ip": None}, "quotas": {"connection_creation_rate": 5}}]
    assert len(listed(at)) == 2
    table = answer_of("quotas", "list", *at).splitlines()
    assert [line.split() for line in table] == [
        ["USER", "CLIENT-ID", "IP", "QUOTA", "PER", "SECOND"],
        ["-", "-", "<default>", "connection_creation_rate", "5"],
        ["alice", "<default>", "-", "producer_byte_rate", "1048576"],
        ["alice", "<default>", "-", "request_percentage", "12.5"],
    ]
    answer_of("quotas", "remove", *alice, "request_percentage", *at)
    assert listed(at, "--user", "alice") == [{"entity": entity, "quotas": {"producer_byte_rate": 1048576}}]
    assert (
        answer_of("quotas", "remove", *alice, *at) == "Removed producer_byte_rate of user alice, default client-id.\n"
    )
    answer_of("quotas", "remove", "--ip-default", *at)
    assert listed(at) == []


def test_what_is_wrong_is_said(at: tuple[str, str]) -> None:
    def wrong(*words: str) -> str:
        return error_of("quotas", *words, *at, status=2)

    assert "name whom the quota is for" in wrong("set", "producer_byte_rate=1")
    assert "name a quota to set" in wrong("set", "--user", "a")
    assert "not both" in wrong("list", "--user", "a", "--user-default")
    assert "give --client-id or --client-default" in wrong("list", "--client-id", "a", "--client-default")
    assert "for an address, or for users" in wrong("set", "--user", "a", "--ip", "10.0.0.1", "producer_byte_rate=1")
    assert "did you mean 'producer_byte_rate'" in wrong("set", "--user", "a", "producer_byte_rat=1").lower()
    assert "expected producer_byte_rate=NUMBER" in wrong("set", "--user", "a", "producer_byte_rate=much")
    assert "for addresses only" in wrong("set", "--user", "a", "connection_creation_rate=1")
    assert "for users and client ids only" in wrong("set", "--ip", "10.0.0.1", "producer_byte_rate=1")
    refused = error_of("quotas", "set", "--user", "a", "producer_byte_rate=0", *at)
    assert "Quota producer_byte_rate must be greater than 0" in refused
    assert "has no quotas" in error_of("quotas", "remove", "--user", "nobody", *at)
