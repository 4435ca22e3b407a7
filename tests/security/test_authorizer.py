"""The authorizer: who is asked, what is kept, what is logged."""

from __future__ import annotations

import logging

import pytest

from broker.api.permissions import DESCRIBE_GROUPS_GROUP, FETCH_AS_FOLLOWER, FETCH_TOPIC, INIT_IDEMPOTENT_TOPIC
from broker.net.router import Client
from broker.security.acl_decisions import AclSnapshot
from broker.security.acl_types import AccessControlEntry, AclOperation, AclResourceType, PatternType, ResourcePattern
from broker.security.authorizer import Authorizer

LOGGER = "kafka.authorizer.logger"
ALICE = Client("10.0.0.1", 1, principal="User:alice")
READABLE = AclSnapshot(
    {ResourcePattern(AclResourceType.TOPIC, "t"): [AccessControlEntry("User:alice", AclOperation.READ)]}
)


def test_without_acls_all_is_allowed_but_to_act_as_a_broker() -> None:
    authorizer = Authorizer(["User:admin"], open_listener="INTERNAL")
    assert authorizer.allows(ALICE, FETCH_TOPIC, "t")
    assert authorizer.allows_any(ALICE, INIT_IDEMPOTENT_TOPIC)
    assert not authorizer.allows(ALICE, FETCH_AS_FOLLOWER)
    assert authorizer.allows(Client("10.0.0.1", 1, principal="User:admin"), FETCH_AS_FOLLOWER)
    assert authorizer.allows(Client("10.0.0.1", 1, listener="INTERNAL"), FETCH_AS_FOLLOWER)


def test_with_acls_an_open_listener_opens_nothing() -> None:
    authorizer = Authorizer(open_listener="INTERNAL", acls=AclSnapshot())
    assert not authorizer.allows(Client("10.0.0.1", 1, listener="INTERNAL"), FETCH_AS_FOLLOWER)


def test_super_users_need_no_acl() -> None:
    authorizer = Authorizer(["User:alice"], acls=AclSnapshot())
    assert authorizer.allows(ALICE, FETCH_TOPIC, "t")
    assert authorizer.allows(ALICE, FETCH_AS_FOLLOWER)
    assert authorizer.allows_any(ALICE, INIT_IDEMPOTENT_TOPIC)


def test_other_acls_decide_at_once() -> None:
    authorizer = Authorizer(acls=READABLE)
    for _ in range(2):
        assert authorizer.allows(ALICE, FETCH_TOPIC, "t")
    authorizer.use(AclSnapshot())
    assert not authorizer.allows(ALICE, FETCH_TOPIC, "t")
    authorizer.use(READABLE)
    assert authorizer.allows(ALICE, FETCH_TOPIC, "t")
    assert (authorizer.allowed, authorizer.denied) == (3, 1)


def test_names_that_clients_make_up_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.security.authorizer._MAX_DECISIONS", 10)
    authorizer = Authorizer(acls=READABLE)
    for number in range(100):
        assert not authorizer.allows(ALICE, FETCH_TOPIC, f"made-up-{number}")
        assert len(authorizer._decisions) <= 10
    assert authorizer.allows(ALICE, FETCH_TOPIC, "t")


class TestLog:
    def test_a_denial_is_one_line_in_kafkas_form(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, LOGGER):
            Authorizer(acls=AclSnapshot()).allows(ALICE, DESCRIBE_GROUPS_GROUP, "g")
        (line,) = caplog.messages
        assert line.startswith(
            "Principal = User:alice is Denied Operation = Describe from host = 10.0.0.1 on resource ="
        )
        assert line.endswith("resource = Group:LITERAL:g for request = DescribeGroups with resourceRefCount = 1")

    def test_the_rest_is_debug(self, caplog: pytest.LogCaptureFixture) -> None:
        authorizer = Authorizer(acls=READABLE)

        def decide() -> None:
            authorizer.allows(ALICE, FETCH_TOPIC, "t")
            authorizer.allows(ALICE, FETCH_TOPIC, "u", asked=False)

        with caplog.at_level(logging.INFO, LOGGER):
            decide()
        assert caplog.messages == []
        with caplog.at_level(logging.DEBUG, LOGGER):
            decide()
        assert ["Allowed" in line for line in caplog.messages] == [True, False]

    def test_a_name_makes_no_second_line(self, caplog: pytest.LogCaptureFixture) -> None:
        mallory = Client("10.0.0.1", 1, principal="User:m\nPrincipal = User:x is Allowed")
        with caplog.at_level(logging.INFO, LOGGER):
            Authorizer(acls=AclSnapshot()).allows(mallory, FETCH_TOPIC, "a\nb" + "c" * 10_000)
        (line,) = caplog.messages
        assert "\n" not in line
        assert len(line) < 1000


def test_a_prefix_is_shown_as_such() -> None:
    assert str(ResourcePattern(AclResourceType.TRANSACTIONAL_ID, "x", PatternType.PREFIXED)) == (
        "TransactionalId:PREFIXED:x"
    )
