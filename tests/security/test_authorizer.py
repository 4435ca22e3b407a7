"""The authorizer: which decisions it keeps and for how long, who needs none, and what it logs and counts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import pytest

from broker.protocol.api_keys import ApiKey
from broker.security import authorizer as authorizer_module
from broker.security.acl_decisions import AclSnapshot
from broker.security.acl_types import (
    AccessControlEntry,
    AclOperation,
    AclPermission,
    AclResourceType,
    ResourcePattern,
)
from broker.security.authorizer import MAX_LINES, Authorizer, DecisionLog

LOGGER = "kafka.authorizer.logger"


class Client(NamedTuple):
    principal: str = "User:alice"
    host: str = "10.0.0.1"
    listener: str = "CLIENTS"


class Right:
    """Equal only to itself, as the rows of broker/protocol/permissions.py."""

    def __init__(
        self,
        operation: AclOperation = AclOperation.WRITE,
        resource: AclResourceType = AclResourceType.TOPIC,
        request: str = ApiKey.PRODUCE.title,
    ) -> None:
        self.operation = operation
        self.resource = resource
        self.request = request


WRITE = Right()
AS_BROKER = Right(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, ApiKey.WRITE_TXN_MARKERS.title)
ALICE, ROOT, OTHER = Client(), Client("User:root"), Client(host="10.0.0.2")


class CountedAcls(AclSnapshot):
    """ACLs that count how often they decide."""

    asked = 0
    asked_any = 0

    def allows_any(self, principal: str, host: str, operation: AclOperation, type: AclResourceType) -> bool:
        self.asked_any += 1
        return super().allows_any(principal, host, operation, type)

    def allows(self, principal: str, host: str, operation: AclOperation, type: AclResourceType, name: str) -> bool:
        self.asked += 1
        return super().allows(principal, host, operation, type, name)


def acls(*names: str, principal: str = "User:alice", allow_if_none: bool = False) -> CountedAcls:
    entry = AccessControlEntry(principal, AclOperation.WRITE)
    found = {ResourcePattern(AclResourceType.TOPIC, name): [entry] for name in names}
    return CountedAcls(found, allow_if_none=allow_if_none)


# --- without ACLs


def test_without_acls_only_brokers_act_as_brokers_and_all_else_is_allowed() -> None:
    authorizer = Authorizer({"User:root"}, open_listener="BROKERS")
    assert authorizer.acls is None
    assert authorizer.allows(ALICE, WRITE, "t")
    assert authorizer.allows_any(ALICE, WRITE)
    assert not authorizer.allows(ALICE, AS_BROKER)
    assert authorizer.allows(ROOT, AS_BROKER)
    assert authorizer.allows(Client(listener="BROKERS"), AS_BROKER)


def test_without_an_open_listener_only_super_users_act_as_brokers() -> None:
    assert not Authorizer().allows(Client(listener=""), AS_BROKER)


# --- with ACLs


def test_an_open_listener_is_open_to_nobody_where_acls_decide() -> None:
    authorizer = Authorizer(open_listener="BROKERS", acls=AclSnapshot())
    assert not authorizer.allows(Client(listener="BROKERS"), AS_BROKER)
    entry = AccessControlEntry("User:alice", AclOperation.CLUSTER_ACTION)
    authorizer.use(AclSnapshot({ResourcePattern(AclResourceType.CLUSTER, "kafka-cluster"): [entry]}))
    assert authorizer.allows(ALICE, AS_BROKER)


def test_super_users_may_do_all_even_what_is_denied() -> None:
    denial = AccessControlEntry("User:*", AclOperation.ALL, AclPermission.DENY)
    denied = AclSnapshot({ResourcePattern(AclResourceType.TOPIC, "*"): [denial]})
    authorizer = Authorizer({"User:root"}, acls=denied)
    assert authorizer.is_super_user("User:root")
    assert authorizer.allows(ROOT, WRITE, "t")
    assert authorizer.allows(ROOT, AS_BROKER)
    assert authorizer.allows_any(ROOT, WRITE)
    for name in ("User:*", "root", "User:ROOT", "user:root", "User:root ", "Group:root"):
        assert not authorizer.is_super_user(name)
        assert not authorizer.allows(Client(name), WRITE, "t"), name
        assert not authorizer.allows_any(Client(name), WRITE), name


def test_a_decision_is_made_once_for_each_principal_host_right_and_name() -> None:
    decided = acls("t")
    authorizer = Authorizer(acls=decided)
    asked = [(ALICE, WRITE, "t"), (ALICE, WRITE, "u"), (OTHER, WRITE, "t"), (ROOT, WRITE, "t"), (ALICE, Right(), "t")]
    first = [authorizer.allows(*one) for one in asked]
    assert first == [True, False, True, False, True]
    assert decided.asked == 5
    assert [authorizer.allows(*one) for one in asked for _ in range(10)] == [one for one in first for _ in range(10)]
    assert decided.asked == 5


def test_new_acls_decide_from_the_next_question_on() -> None:
    authorizer = Authorizer(acls=acls("t"))
    assert authorizer.allows(ALICE, WRITE, "t")
    authorizer.use(acls("u"))
    assert not authorizer.allows(ALICE, WRITE, "t")
    assert authorizer.allows(ALICE, WRITE, "u")
    authorizer.use(acls("t"))
    assert authorizer.allows(ALICE, WRITE, "t")
    assert authorizer.allows_any(ALICE, WRITE)
    authorizer.use(acls())
    assert not authorizer.allows_any(ALICE, WRITE)


def test_names_that_clients_make_up_take_no_more_room_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer_module, "_MAX_DECISIONS", 100)
    authorizer = Authorizer(acls=acls("t"))
    for number in range(1000):
        assert not authorizer.allows(ALICE, WRITE, f"made-up-{number}")
        assert authorizer.allows(ALICE, WRITE, "t")
        assert len(authorizer._decisions) <= 100


def test_long_names_that_clients_make_up_are_not_kept() -> None:
    """A name can have 32,767 bytes: 65,536 of them would be two gigabytes."""
    authorizer = Authorizer(acls=acls("t"))
    for number in range(100):
        assert not authorizer.allows(ALICE, WRITE, f"{number}-{'x' * 32_000}")
    assert not authorizer._decisions
    assert not authorizer.allows(ALICE, WRITE, "x" * 249)
    assert len(authorizer._decisions) == 1


def test_whether_any_resource_is_allowed_is_decided_once() -> None:
    """An idempotent producer asks for it at each start."""
    decided = acls("t")
    authorizer = Authorizer(acls=decided)
    assert [authorizer.allows_any(one, WRITE) for one in (ALICE, OTHER, ALICE, Client("User:bob"), ALICE)] == [
        *[True] * 3,
        False,
        True,
    ]
    assert decided.asked_any == 3
    authorizer.use(acls("t", principal="User:bob"))
    assert not authorizer.allows_any(ALICE, WRITE)


def test_decisions_that_are_not_to_be_kept_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations of 10,000 topics are 80,000 decisions."""
    monkeypatch.setattr(authorizer_module, "_MAX_DECISIONS", 10)
    decided = acls("t")
    authorizer = Authorizer(acls=decided)
    authorizer.allows(ALICE, WRITE, "t")
    for number in range(100):
        assert not authorizer.allows(ALICE, WRITE, f"u{number}", asked=False, keep=False)
    decided.asked = 0
    assert authorizer.allows(ALICE, WRITE, "t")
    assert decided.asked == 0


# --- the log and the counters


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, LOGGER)
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    found = [(level, message) for name, level, message in log.record_tuples if name == LOGGER]
    log.clear()
    return found


def test_each_decision_is_logged_as_kafka_logs_it(log: pytest.LogCaptureFixture) -> None:
    authorizer = Authorizer({"User:root"}, acls=acls("t"))
    for client, name in ((ALICE, "t"), (ALICE, "u"), (ROOT, "u"), (ALICE, "u")):
        authorizer.allows(client, WRITE, name)
    line = "Principal = User:{} is {} Operation = Write from host = 10.0.0.1 on resource = Topic:LITERAL:{} for request"
    ending = " = Produce with resourceRefCount = 1"
    assert lines(log) == [
        (logging.DEBUG, line.format("alice", "Allowed", "t") + ending),
        (logging.INFO, line.format("alice", "Denied", "u") + ending),
        (logging.DEBUG, line.format("root", "Allowed", "u") + ending),
        (logging.INFO, line.format("alice", "Denied", "u") + ending),
    ]
    authorizer.allows(ALICE, AS_BROKER)
    ((_, message),) = lines(log)
    assert "Operation = ClusterAction from host = 10.0.0.1 on resource = Cluster:LITERAL:kafka-cluster for " in message
    assert "request = WriteTxnMarkers with" in message


def test_what_is_asked_about_one_resource_at_one_time_is_one_line(log: pytest.LogCaptureFixture) -> None:
    due: list[Callable[[], None]] = []
    authorizer = Authorizer(acls=acls("t"), log=DecisionLog(due.append))
    for name in ("u", "u", "t", "v", "u"):
        authorizer.allows(ALICE, WRITE, name)
    assert len(due) == 1
    assert not lines(log)
    due.pop()()
    found = [(level, message.split("LITERAL:")[1]) for level, message in lines(log)]
    assert found == [
        (logging.INFO, "u for request = Produce with resourceRefCount = 3"),
        (logging.DEBUG, "t for request = Produce with resourceRefCount = 1"),
        (logging.INFO, "v for request = Produce with resourceRefCount = 1"),
    ]
    authorizer.allows(ALICE, WRITE, "u")
    due.pop()()
    assert [message[-1] for _, message in lines(log)] == ["1"]


def test_of_very_many_denials_at_one_time_most_are_only_counted(log: pytest.LogCaptureFixture) -> None:
    due: list[Callable[[], None]] = []
    authorizer = Authorizer(acls=acls("t"), log=DecisionLog(due.append))
    for number in range(MAX_LINES + 77):
        authorizer.allows(ALICE, WRITE, f"made-up-{number}")
    authorizer.allows(ALICE, WRITE, "made-up-0")
    due.pop()()
    *shown, last = lines(log)
    assert len(shown) == MAX_LINES
    assert shown[0][1].endswith("Topic:LITERAL:made-up-0 for request = Produce with resourceRefCount = 2")
    assert last == (logging.INFO, "77 more decisions at the same time are not shown")
    assert authorizer.denied == MAX_LINES + 78


def test_what_was_not_asked_for_is_denied_without_noise(log: pytest.LogCaptureFixture) -> None:
    authorizer = Authorizer(acls=acls("t"))
    authorizer.allows(ALICE, WRITE, "u", asked=False)
    authorizer.allows_any(OTHER, WRITE, asked=False)
    authorizer.allows_any(ROOT, WRITE)
    assert [level for level, _ in lines(log)] == [logging.DEBUG, logging.DEBUG, logging.INFO]


def test_at_info_only_denials_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    authorizer = Authorizer(acls=acls("t"))
    authorizer.allows(ALICE, WRITE, "t")
    authorizer.allows(ALICE, WRITE, "u")
    assert [level for level, _ in lines(caplog)] == [logging.INFO]


@pytest.mark.parametrize(
    "hostile",
    [
        "t\nPrincipal = User:root is Allowed",
        "t\r\n",
        "t\x1b[2J",
        "t\0",
        "t\u2028next",
        "t\u2029",
        "t\x85",
        "t\u202egnp",
        "\ud800",
        "%s %d %(name)s {0}",
        "x" * 32_000,
        "\n" * 32_000,
    ],
    ids=ascii,
)
def test_hostile_names_leave_one_short_line_that_can_be_written(log: pytest.LogCaptureFixture, hostile: str) -> None:
    authorizer = Authorizer(acls=acls("t"))
    assert not authorizer.allows(Client(f"User:{hostile}"), WRITE, hostile)
    ((level, line),) = lines(log)
    assert level == logging.INFO
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert len(line.encode()) < 1_000
    assert line.startswith("Principal = User:")
    assert line.endswith("for request = Produce with resourceRefCount = 1")


def test_every_decision_is_counted_also_one_that_was_kept() -> None:
    authorizer = Authorizer({"User:root"}, acls=acls("t"))
    for _ in range(3):
        authorizer.allows(ALICE, WRITE, "t")
        authorizer.allows(ALICE, WRITE, "u")
        authorizer.allows(ROOT, WRITE, "u")
        authorizer.allows_any(ALICE, WRITE)
        authorizer.allows_any(OTHER, Right(AclOperation.READ), asked=False)
    assert (authorizer.allowed, authorizer.denied) == (9, 6)
