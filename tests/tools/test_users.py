"""`pykafka users` through a broker, in ZooKeeper itself, and in the file of a standalone broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.console import answer_of, error_of
from tests.support.kafka import Kafka
from tests.support.waiting import eventually


@pytest.fixture(params=["broker", "zookeeper", "file"])
def at(request: pytest.FixtureRequest, broker: Kafka, tmp_path: Path) -> tuple[str, str]:
    if request.param == "file":
        return ("--log-dir", str(tmp_path / "logs"))
    if request.param == "broker":
        return ("--bootstrap-server", broker.bootstrap)
    return ("--zookeeper", request.getfixturevalue("own_broker").zookeeper)


def users(at: tuple[str, str]) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = json.loads(answer_of("users", "list", "--json", *at))
    return found


def known_as(at: tuple[str, str], user: str) -> list[dict[str, dict[str, int]] | None]:
    """What is known of the user, asked several times: with KRaft any broker may answer, one that lags too."""
    return [users(at).get(user) for _ in range(6)]


def test_a_user_is_created_listed_changed_and_deleted(at: tuple[str, str], group: str) -> None:
    named = ("--user", group)
    created = answer_of("users", "create", *named, "--password-stdin", *at, stdin=b"s3cret\n")
    assert created == f"Created user {group} (SCRAM-SHA-256, SCRAM-SHA-512).\n"
    both = {"SCRAM-SHA-256": {"iterations": 4096}, "SCRAM-SHA-512": {"iterations": 4096}}
    eventually(lambda: all(known == both for known in known_as(at, group)))
    again = error_of("users", "create", *named, "--password-stdin", *at, stdin=b"s3cret\n")
    assert f"there is a user {group} already" in again

    change = ("--mechanism", "scram-sha-512", "--iterations", "8192")
    answer_of("users", "password", *named, *change, "--password-stdin", *at, stdin=b"s3cret\n")
    changed = {**both, "SCRAM-SHA-512": {"iterations": 8192}}
    eventually(lambda: all(known == changed for known in known_as(at, group)))
    line = f"{group}\tSCRAM-SHA-256=[iterations=4096],SCRAM-SHA-512=[iterations=8192]"
    assert line in answer_of("users", "list", *at).splitlines()

    answer_of("users", "delete", *named, "--mechanism", "SCRAM-SHA-256", *at)
    eventually(lambda: all(list(known or ()) == ["SCRAM-SHA-512"] for known in known_as(at, group)))
    assert "no credential for SCRAM-SHA-256" in error_of("users", "delete", *named, "--mechanism", "SCRAM-SHA-256", *at)
    assert answer_of("users", "delete", *named, *at) == f"Deleted user {group} (SCRAM-SHA-512).\n"
    eventually(lambda: not any(known_as(at, group)))


def test_what_is_wrong_is_said(at: tuple[str, str]) -> None:
    assert "there is no user nobody" in error_of("users", "delete", "--user", "nobody", *at)
    assert "there is no user nobody" in error_of("users", "password", "--user", "nobody", "--password-stdin", *at)
    assert "the password is empty" in error_of(
        "users", "create", "--user", "x", "--password-stdin", *at, stdin=b"\n", status=2
    )
    wrong = error_of("users", "create", "--user", "x", "--mechanism", "PLAIN", *at, status=2)
    assert "use SCRAM-SHA-256 or SCRAM-SHA-512" in wrong


def test_broker_and_zookeeper_are_one_or_the_other() -> None:
    both = ("--zookeeper", "127.0.0.1:1", "--bootstrap-server", "127.0.0.1:1")
    assert "--zookeeper and --log-dir need no broker" in error_of("users", "list", *both, status=2)
