"""`pykafka delegation-tokens`, with a broker of its own, for it needs a secret and logins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, error_of
from tests.support.token_broker import TOKEN_SETTINGS, properties_of

COMMAND = "delegation-tokens"
As = Callable[[str], tuple[str, str]]


@pytest.fixture(scope="module")
def issuing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tokens"), TOKEN_SETTINGS, standalone=True) as process:
        yield process


@pytest.fixture
def by(issuing: BrokerProcess, tmp_path: Path) -> As:
    """`by("alice")`: the options of her login."""

    def config(user: str) -> tuple[str, str]:
        path = tmp_path / f"{user}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties_of(issuing, user).items()))
        return ("--config", str(path))

    return config


def test_a_token_is_created_shown_renewed_and_expired(by: As) -> None:
    wanted = ("--max-life-time-period", "120000", "--renewer-principal", "User:bob")
    (made,) = json.loads(answer_of(COMMAND, "create", *wanted, "--json", *by("alice")))
    assert (made["owner"], made["requester"], made["renewers"]) == ("User:alice", "User:alice", ["User:bob"])
    assert made["maxMs"] - made["issuedMs"] == 120_000
    hmac = made["hmac"]

    listed = answer_of(COMMAND, "describe", *by("bob"))
    assert made["tokenId"] in listed
    assert hmac not in listed
    assert hmac in answer_of(COMMAND, "describe", "--show-hmac", "--owner-principal", "User:alice", *by("bob"))
    shown = json.loads(answer_of(COMMAND, "describe", "--json", *by("alice")))
    assert {name: value for name, value in made.items() if name != "hmac"} in shown

    renewed = answer_of(COMMAND, "renew", "--renew-time-period", "30000", *by("bob"), stdin=f"{hmac}\n".encode())
    assert renewed.startswith("The token expires at ")
    answer_of(COMMAND, "expire", "--hmac", hmac, *by("alice"))
    assert made["tokenId"] not in answer_of(COMMAND, "describe", *by("alice"))


def test_what_is_wrong_is_said(by: As, issuing: BrokerProcess) -> None:
    wrong = error_of(COMMAND, "renew", *by("alice"), stdin=b"no base64!\n", status=2)
    assert "the HMAC is base64 text" in wrong
    unknown = error_of(COMMAND, "expire", "--hmac", "AAAA", *by("alice"))
    assert "DELEGATION_TOKEN_NOT_FOUND" in unknown
    principal = error_of(COMMAND, "create", "--owner-principal", "alice", *by("alice"), status=2)
    assert "expected a type and a name, such as User:alice" in principal
    lacking = error_of(COMMAND, "create", "--owner-principal", "User:bob", *by("alice"))
    assert "grants it with: pykafka acls add --allow-principal User:alice --operation CreateTokens" in lacking
    assert "--user-principal User:bob" in lacking
    anonymous = error_of(COMMAND, "create", "--bootstrap-server", issuing.listeners["PLAINTEXT"])
    assert "who asks must have logged in" in anonymous
