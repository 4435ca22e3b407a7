"""Decisions by ACLs: each rule by an example, and all together against an oracle that looks at every ACL."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.acl_decisions import AclSnapshot
from broker.security.acl_types import (
    AccessControlEntry,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)

READ, WRITE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL
DESCRIBE, DESCRIBE_CONFIGS = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALICE, HERE = "User:alice", "10.0.0.1"

Acl = tuple[ResourcePattern, AccessControlEntry]


def snapshot(*acls: Acl, allow_if_none: bool = False) -> AclSnapshot:
    by_pattern = defaultdict(list)
    for pattern, entry in acls:
        by_pattern[pattern].append(entry)
    return AclSnapshot(by_pattern, allow_if_none=allow_if_none)


def acl(
    operation: AclOperation = READ,
    name: str = "t",
    kind: PatternType = LITERAL,
    permission: AclPermission = ALLOW,
    principal: str = ALICE,
    host: str = "*",
    type: AclResourceType = TOPIC,
) -> Acl:
    return ResourcePattern(type, name, kind), AccessControlEntry(principal, operation, permission, host)


def allows(acls: AclSnapshot, operation: AclOperation = READ, name: str = "t", host: str = HERE) -> bool:
    return acls.allows(ALICE, host, operation, TOPIC, name)


class TestRules:
    def test_without_an_acl_nobody_may(self) -> None:
        assert not allows(snapshot())

    def test_without_an_acl_everybody_may_if_it_is_set(self) -> None:
        open_to_all = snapshot(acl(WRITE, principal="User:bob"), allow_if_none=True)
        assert allows(open_to_all, name="other")
        assert not allows(open_to_all), "an ACL applies to this one"

    @pytest.mark.parametrize(
        "given_",
        [acl(), acl(ALL), acl(principal="User:*"), acl(host=HERE), acl(name="*"), acl(name="t", kind=PREFIXED)],
        ids=["named", "all operations", "all users", "its host", "all topics", "a prefix"],
    )
    def test_one_acl_is_enough(self, given_: Acl) -> None:
        assert allows(snapshot(given_))

    @pytest.mark.parametrize(
        "given_",
        [acl(WRITE), acl(principal="User:bob"), acl(host="10.0.0.2"), acl(name="u"), acl(name="tt", kind=PREFIXED)],
        ids=["another operation", "another user", "another host", "another topic", "a longer prefix"],
    )
    def test_an_acl_for_something_else_is_not(self, given_: Acl) -> None:
        assert not allows(snapshot(given_))

    def test_another_type_of_the_same_name_is_something_else(self) -> None:
        assert not allows(snapshot(acl(type=GROUP)))

    @pytest.mark.parametrize("name", ["t", "*", "te"])
    def test_a_denial_wins(self, name: str) -> None:
        denied = acl(permission=DENY, name=name, kind=PREFIXED if name == "te" else LITERAL)
        assert not allows(snapshot(acl(ALL, name="*"), acl(name="test"), denied), name="test" if name == "te" else "t")

    def test_a_denial_for_others_does_not_matter(self) -> None:
        assert allows(
            snapshot(acl(), acl(permission=DENY, principal="User:bob"), acl(permission=DENY, host="10.9.9.9"))
        )

    @pytest.mark.parametrize("operation", [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER])
    def test_what_implies_describing(self, operation: AclOperation) -> None:
        assert allows(snapshot(acl(operation)), DESCRIBE)
        assert not allows(snapshot(acl(operation)), DESCRIBE_CONFIGS)

    def test_altering_settings_implies_describing_them(self) -> None:
        assert allows(snapshot(acl(AclOperation.ALTER_CONFIGS)), DESCRIBE_CONFIGS)
        assert not allows(snapshot(acl(AclOperation.ALTER_CONFIGS)), DESCRIBE)

    def test_a_denial_implies_nothing(self) -> None:
        assert allows(snapshot(acl(DESCRIBE), acl(READ, permission=DENY)), DESCRIBE)


class TestAnyResource:
    """May a client write to some topic? (KIP-679)"""

    @pytest.mark.parametrize(
        ("acls", "expected"),
        [
            ([], False),
            ([acl()], True),
            ([acl(WRITE)], False),
            ([acl(name="*", permission=DENY), acl()], False),
            ([acl(permission=DENY), acl()], False),
            ([acl(permission=DENY), acl(), acl(name="u")], True),
            ([acl(name="te", kind=PREFIXED, permission=DENY), acl(name="test")], False),
            ([acl(name="te", kind=PREFIXED, permission=DENY), acl(name="test", kind=PREFIXED)], False),
            ([acl(name="test", kind=PREFIXED, permission=DENY), acl(name="te", kind=PREFIXED)], True),
            ([acl(permission=DENY), acl(name="t", kind=PREFIXED)], True),
            ([acl(permission=DENY), acl(name="*")], True),
        ],
    )
    def test_some_topic_is_left(self, acls: list[Acl], expected: bool) -> None:
        assert snapshot(*acls).allows_any(ALICE, HERE, READ, TOPIC) is expected

    def test_all_are_left_where_everybody_may_without_an_acl(self) -> None:
        assert snapshot(allow_if_none=True).allows_any(ALICE, HERE, READ, TOPIC)


names = st.text("ab", min_size=1, max_size=3)
acls = st.lists(
    st.builds(
        acl,
        st.sampled_from([READ, WRITE, ALL, DESCRIBE, AclOperation.ALTER_CONFIGS]),
        st.one_of(names, st.just("*")),
        st.sampled_from([LITERAL, PREFIXED]),
        st.sampled_from([ALLOW, DENY]),
        st.sampled_from([ALICE, "User:bob", "User:*"]),
        st.sampled_from([HERE, "10.0.0.2", "*"]),
        st.sampled_from([TOPIC, GROUP]),
    ),
    max_size=8,
)
operations = st.sampled_from([READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS])
IMPLYING = {
    DESCRIBE: {DESCRIBE, READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
    DESCRIBE_CONFIGS: {DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS},
}


def oracle(given_: list[Acl], operation: AclOperation, name: str, allow_if_none: bool) -> bool:
    applying = [
        entry
        for pattern, entry in given_
        if pattern.type is TOPIC
        and (name.startswith(pattern.name) if pattern.pattern is PREFIXED else pattern.name in (name, "*"))
    ]
    if not applying:
        return allow_if_none
    mine = [one for one in applying if one.principal in (ALICE, "User:*") and one.host in (HERE, "*")]
    if any(one.permission is DENY and one.operation in (operation, ALL) for one in mine):
        return False
    enough = IMPLYING.get(operation, {operation}) | {ALL}
    return any(one.permission is ALLOW and one.operation in enough for one in mine)


@given(acls, operations, names, st.booleans())
def test_decisions_are_those_of_a_look_at_every_acl(
    given_: list[Acl], operation: AclOperation, name: str, allow_if_none: bool
) -> None:
    assert allows(snapshot(*given_, allow_if_none=allow_if_none), operation, name) is oracle(
        given_, operation, name, allow_if_none
    )


@given(acls, st.booleans())
def test_who_may_write_to_a_topic_may_write_to_any(given_: list[Acl], allow_if_none: bool) -> None:
    """As far as KIP-679 looks: a topic that an ACL names, or that begins with a prefix."""
    found = snapshot(*given_, allow_if_none=allow_if_none)
    candidates = {pattern.name + suffix for pattern, _ in given_ for suffix in ("", "zz")} - {"*", "*zz"}
    if any(allows(found, WRITE, name) for name in candidates):
        assert found.allows_any(ALICE, HERE, WRITE, TOPIC)


@given(acls)
def test_changed_patterns_replace_those_before(given_: list[Acl]) -> None:
    half = len(given_) // 2
    before, after = snapshot(*given_[:half]), snapshot(*given_)
    news = {pattern: after.acls[pattern] for pattern, _ in given_[half:]}
    assert before.changed(news).acls == after.acls
    assert before.changed(dict.fromkeys(before.acls, ())).acls == {}


class TestFilters:
    ACLS = snapshot(acl(), acl(WRITE, name="te", kind=PREFIXED), acl(name="*"), acl(type=GROUP, principal="User:bob"))

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            (AclFilter(), 4),
            (AclFilter(TOPIC), 3),
            (AclFilter(TOPIC, "t"), 1),
            (AclFilter(TOPIC, "test"), 0),
            (AclFilter(TOPIC, "test", PatternType.MATCH), 2),
            (AclFilter(TOPIC, "t", PatternType.MATCH), 2),
            (AclFilter(TOPIC, pattern=PREFIXED), 1),
            (AclFilter(principal="User:bob"), 1),
            (AclFilter(operation=WRITE), 1),
            (AclFilter(permission=DENY), 0),
            (AclFilter(host=HERE), 0),
        ],
    )
    def test_what_they_choose(self, wanted: AclFilter, expected: int) -> None:
        assert sum(len(entries) for _, entries in self.ACLS.matching(wanted)) == expected
