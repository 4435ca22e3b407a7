"""`pykafka acls`: what its options mean, against a broker whose ACLs decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.security.acl_types import Acl, AclFilter, AclPermission, AclResourceType, PatternType
from broker.tools.acls import AddOptions, ListOptions, RemoveOptions
from tests.support.console import answer_of, error_of
from tests.support.guarded import Guarded
from tests.support.kafka import Kafka

ALICE = ("--allow-principal", "User:alice")
NOBODY = ("-b", "127.0.0.1:1")
"""No broker is asked: what is wrong is said before."""


@pytest.fixture
def at(guarded: Guarded) -> tuple[str, str]:
    return ("--bootstrap-server", guarded.listeners["PLAINTEXT"])


def acls(at: tuple[str, str], *options: str, command: str = "list", stdin: bytes = b"") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answer_of("acls", command, "--json", *options, *at, stdin=stdin))
    return found


def shown(found: list[dict[str, Any]]) -> list[str]:
    return [f"{one['permissionType']} {one['principal']} {one['operation']} {one['host']}" for one in found]


def texts(found: list[Acl]) -> set[str]:
    return set(map(str, found))


class TestOptions:
    def test_each_principal_host_and_operation_for_each_resource(self) -> None:
        options = AddOptions(
            topic=["a", " b"],
            group=["*"],
            allow_principal=["User:x", "User:x "],
            allow_host=["192.0.2.1", "192.0.2.2"],
            deny_principal=["User:CN=y:z,O=w"],
            operation=["read", "DESCRIBE"],
        )
        found = options.acls()
        assert len(found) == 3 * (2 + 1) * 2
        assert "Allow User:x Read from 192.0.2.2 on Topic:LITERAL:b" in texts(found)
        assert "Deny User:CN=y:z,O=w Describe from * on Group:LITERAL:*" in texts(found)

    def test_all_operations_unless_some_are_named(self) -> None:
        options = AddOptions(cluster=True, transactional_id=["t"], deny_principal=["User:*"])
        assert texts(options.acls()) == {
            "Deny User:* All from * on Cluster:LITERAL:kafka-cluster",
            "Deny User:* All from * on TransactionalId:LITERAL:t",
        }

    def test_what_a_producer_needs(self) -> None:
        options = AddOptions(
            producer=True,
            idempotent=True,
            topic=["a"],
            transactional_id=["t"],
            resource_pattern_type="prefixed",
            allow_principal=["User:x"],
        )
        assert texts(options.acls()) == {
            *(f"Allow User:x {one} from * on Topic:PREFIXED:a" for one in ("Write", "Describe", "Create")),
            *(f"Allow User:x {one} from * on TransactionalId:PREFIXED:t" for one in ("Write", "Describe")),
            "Allow User:x IdempotentWrite from * on Cluster:LITERAL:kafka-cluster",
        }

    def test_what_a_consumer_needs(self) -> None:
        options = AddOptions(consumer=True, topic=["a"], group=["g"], allow_principal=["User:x"])
        consumer = {
            *(f"Allow User:x {one} from * on Topic:LITERAL:a" for one in ("Read", "Describe")),
            "Allow User:x Read from * on Group:LITERAL:g",
        }
        assert texts(options.acls()) == consumer
        both = AddOptions(
            consumer=True,
            producer=True,
            topic=["a"],
            group=["g"],
            transactional_id=["t"],
            allow_principal=["User:x"],
        )
        assert texts(both.acls()) == {
            *consumer,
            *(f"Allow User:x {one} from * on Topic:LITERAL:a" for one in ("Write", "Create")),
            *(f"Allow User:x {one} from * on TransactionalId:LITERAL:t" for one in ("Write", "Describe")),
        }

    def test_removing_chooses_what_adding_adds_or_without_a_principal_everything(self) -> None:
        (one,) = RemoveOptions(topic=["a"], deny_principal=["User:x"], resource_pattern_type="match").filters()
        assert (one.type, one.name, one.pattern) == (AclResourceType.TOPIC, "a", PatternType.MATCH)
        assert (one.principal, one.host, one.operation.title, one.permission) == (
            "User:x",
            "*",
            "All",
            AclPermission.DENY,
        )
        assert RemoveOptions(topic=["a"], resource_pattern_type="any").filters() == [
            AclFilter(AclResourceType.TOPIC, "a", PatternType.ANY)
        ]

    def test_listing_chooses_by_resource_and_principal(self) -> None:
        assert ListOptions().filters() == [AclFilter()]
        assert ListOptions(resource_pattern_type="prefixed").filters() == [AclFilter(pattern=PatternType.PREFIXED)]
        topic = AclFilter(AclResourceType.TOPIC, "a", PatternType.LITERAL)
        assert ListOptions(topic=["a"], principal=["User:x", "User:y"]).filters() == [
            topic._replace(principal="User:x"),
            topic._replace(principal="User:y"),
        ]

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["add", *ALICE], "name a resource: --topic, --group"),
            (["remove"], "name a resource: --topic, --group"),
            (["add", "--topic", "a"], "give --allow-principal or --deny-principal"),
            (
                ["add", *ALICE, "--group", "g", "--operation", "Write"],
                "the operations on a Group are All, Read, Delete",
            ),
            (["add", *ALICE, "--cluster", "--operation", "Read"], "the operations on a Cluster are All, Create, Alter"),
            (["add", *ALICE, "--topic", "a", "--operation", "Any"], "--operation Any: the operations on a Topic are"),
            (["add", *ALICE, "--topic", "a", "--operation", "Raed"], "--operation: 'Raed' is none of Any, All, Read"),
            (["add", *ALICE, "--topic", "a", "--resource-pattern-type", "match"], "ACLs are literal or prefixed"),
            (["add", *ALICE, "--topic", "a", "--resource-pattern-type", "x"], "'x' is none of Any, Match, Literal"),
            (["list", "--resource-pattern-type", "unknown"], "'unknown' is none of Any, Match, Literal, Prefixed"),
            (["add", *ALICE, "--cluster", "--resource-pattern-type", "prefixed"], "--cluster goes with"),
            (["add", "--allow-principal", "alice", "--topic", "a"], "--allow-principal alice: expected TYPE:NAME"),
            (["list", "--principal", "User:"], "--principal User:: expected TYPE:NAME"),
            (["add", *ALICE, "--deny-host", "192.0.2.1", "--topic", "a"], "--deny-host goes with --deny-principal"),
            (["add", *ALICE, "--idempotent", "--topic", "a"], "--idempotent goes with --producer"),
            (["add", *ALICE, "--producer", "--transactional-id", "t"], "--producer needs --topic"),
            (["add", *ALICE, "--consumer", "--topic", "a"], "--consumer needs --topic and --group"),
            (
                ["add", *ALICE, "--consumer", "--topic", "a", "--group", "g", "--transactional-id", "t"],
                "--transactional-id does not go with --consumer",
            ),
            (
                ["add", *ALICE, "--producer", "--topic", "a", "--operation", "Read"],
                "--operation does not go with --producer",
            ),
            (
                ["add", "--producer", "--topic", "a", "--deny-principal", "User:x"],
                "--deny-principal does not go with --producer",
            ),
            (["remove", "--topic", "a", "--operation", "Read"], "--operation needs a principal"),
            (["remove", "--topic", "a", "--producer"], "--producer needs a principal"),
        ],
    )
    def test_what_is_wrong_is_said_before_a_broker_is_asked(self, words: list[str], said: str) -> None:
        assert said in error_of("acls", *words, *NOBODY, status=2)


class TestBroker:
    def test_they_are_added_listed_and_removed(self, at: tuple[str, str], topic: str, group: str) -> None:
        named = (*ALICE, "--consumer", "--topic", topic, "--group", group)
        lines = answer_of("acls", "add", *named, *at).splitlines()
        assert lines[0] == "Added 3 ACLs:"
        assert lines[1].split() == [
            *("RESOURCE-TYPE", "NAME", "PATTERN-TYPE", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION-TYPE")
        ]
        assert lines[2].split() == ["TOPIC", topic, "LITERAL", "User:alice", "*", "READ", "ALLOW"]
        assert len(lines) == 5

        again = acls(at, *named, "--producer", command="add")
        assert [one["operation"] for one in again if one["added"]] == ["WRITE", "CREATE"]
        assert len(again) == 5

        assert shown(acls(at, "--group", group)) == ["ALLOW User:alice READ *"]
        assert len(acls(at, "--topic", topic, "--group", group)) == 5
        assert acls(at, "--topic", topic, "--principal", "User:bob") == []

        removed = acls(at, *named, "--force", command="remove")
        assert [one["operation"] for one in removed] == ["READ", "DESCRIBE", "READ"]
        assert shown(acls(at, "--topic", topic)) == ["ALLOW User:alice WRITE *", "ALLOW User:alice CREATE *"]
        assert answer_of("acls", "remove", "--topic", topic, "--force", *at).startswith("Removed 2 ACLs:\n")
        assert answer_of("acls", "list", "--topic", topic, *at) == ""

    def test_a_pattern_type_chooses_patterns(self, at: tuple[str, str], topic: str) -> None:
        prefix = topic[:-1]
        for name, kind in ((topic, "literal"), (prefix, "prefixed"), (prefix, "literal")):
            answer_of("acls", "add", *ALICE, "--topic", name, "--resource-pattern-type", kind, *at)

        def patterns(name: str, *kind: str) -> list[tuple[str, str]]:
            wanted = ("--resource-pattern-type", *kind) if kind else ()
            return [(one["name"], one["patternType"]) for one in acls(at, "--topic", name, *wanted)]

        assert patterns(topic) == [(topic, "LITERAL")]
        assert patterns(topic, "any") == [(topic, "LITERAL")]
        assert patterns(topic, "match") == [(prefix, "PREFIXED"), (topic, "LITERAL")]
        assert patterns(prefix, "any") == [(prefix, "LITERAL"), (prefix, "PREFIXED")]
        assert patterns(prefix, "prefixed") == [(prefix, "PREFIXED")]
        everything = ("--topic", topic, "--topic", prefix, "--resource-pattern-type", "match", "--force")
        assert len(acls(at, *everything, command="remove")) == 3

    def test_removing_asks_first(self, at: tuple[str, str], topic: str) -> None:
        answer_of("acls", "add", *ALICE, "--operation", "Read", "--topic", topic, *at)
        for answer in (b"n\n", b""):
            refused = error_of("acls", "remove", "--topic", topic, *at, stdin=answer)
            assert f"Allow User:alice Read from * on Topic:LITERAL:{topic}\nRemove 1 ACL? [y/N]" in refused
        assert len(acls(at, "--topic", topic)) == 1
        assert len(acls(at, "--topic", topic, command="remove", stdin=b"y\n")) == 1
        assert acls(at, "--topic", topic, command="remove") == [], "nothing is left to ask about"

    def test_whoever_lacks_the_right_is_told(self, guarded: Guarded, topic: str, tmp_path: Path) -> None:
        file = tmp_path / "alice.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in guarded.alice.items()))
        named = ("--topic", topic, "--config", str(file))
        for words in (["list"], ["add", *ALICE], ["remove", "--force"]):
            assert "CLUSTER_AUTHORIZATION_FAILED" in error_of("acls", *words, *named).upper()


@pytest.mark.usefixtures("own_broker")
def test_a_broker_without_an_authorizer_says_what_to_set(broker: Kafka) -> None:
    said = error_of("acls", "list", "-b", broker.bootstrap)
    assert "set authorizer.class.name" in said
