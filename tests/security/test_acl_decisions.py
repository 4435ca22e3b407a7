"""Decisions by ACLs: the rules of Kafka's AclAuthorizer by name, and any ACLs against an oracle that reads them all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.security.acl_decisions import AclSnapshot
from broker.security.acl_types import (
    SUPPORTED_OPERATIONS,
    AccessControlEntry,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)

ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
O = AclOperation  # noqa: E741 - as short as in the table of Kafka's documentation
ALICE, BOB, HERE, THERE = "User:alice", "User:bob", "10.0.0.1", "10.0.0.2"

Acl = tuple[ResourcePattern, AccessControlEntry]


def acl(
    operation: AclOperation,
    name: str = "t",
    permission: AclPermission = ALLOW,
    *,
    prefix: bool = False,
    type: AclResourceType = TOPIC,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    pattern = ResourcePattern(type, name, PREFIXED if prefix else LITERAL)
    return pattern, AccessControlEntry(principal, operation, permission, host)


def snapshot(*acls: Acl, allow_if_none: bool = False) -> AclSnapshot:
    by_pattern: dict[ResourcePattern, list[AccessControlEntry]] = {}
    for pattern, entry in acls:
        by_pattern.setdefault(pattern, []).append(entry)
    return AclSnapshot(by_pattern, allow_if_none=allow_if_none)


def allows(acls: AclSnapshot, operation: AclOperation, name: str = "t", principal: str = ALICE) -> bool:
    return acls.allows(principal, HERE, operation, TOPIC, name)


# --- the rules, by name


def test_without_acls_nothing_is_allowed_unless_everyone_is() -> None:
    assert not allows(snapshot(), O.READ)
    assert allows(snapshot(allow_if_none=True), O.READ)


def test_an_acl_for_somebody_else_ends_that_everyone_may_use_the_resource() -> None:
    acls = snapshot(acl(O.READ, principal=BOB), allow_if_none=True)
    assert not allows(acls, O.READ)
    assert not allows(acls, O.WRITE, principal=BOB)
    assert allows(acls, O.READ, "other")


def test_an_acl_for_a_prefix_or_for_all_ends_that_everyone_may_too() -> None:
    assert not allows(snapshot(acl(O.READ, "t", principal=BOB, prefix=True), allow_if_none=True), O.READ, "t-1")
    assert not allows(snapshot(acl(O.READ, "*", principal=BOB), allow_if_none=True), O.READ)
    assert allows(snapshot(acl(O.READ, "*", principal=BOB, type=GROUP), allow_if_none=True), O.READ)


@pytest.mark.parametrize("denying", [O.READ, O.ALL])
def test_a_denial_wins_whatever_else_allows(denying: AclOperation) -> None:
    allowing = [acl(O.READ), acl(O.ALL), acl(O.READ, "*"), acl(O.READ, "t", prefix=True)]
    assert allows(snapshot(*allowing), O.READ)
    for denial in (
        acl(denying, "t", DENY),
        acl(denying, "*", DENY),
        acl(denying, "t", DENY, prefix=True),
        acl(denying, "t", DENY, principal="User:*"),
        acl(denying, "t", DENY, host=HERE),
    ):
        assert not allows(snapshot(*allowing, denial), O.READ), denial
        assert not allows(snapshot(denial, *allowing, allow_if_none=True), O.READ), denial


def test_a_denial_for_others_or_from_elsewhere_denies_nothing_here() -> None:
    for denial in (
        acl(O.READ, "t", DENY, principal=BOB),
        acl(O.READ, "t", DENY, host=THERE),
        acl(O.READ, "t2", DENY),
        acl(O.READ, "tt", DENY, prefix=True),
        acl(O.WRITE, "t", DENY),
        acl(O.READ, "t", DENY, type=GROUP),
    ):
        assert allows(snapshot(acl(O.READ), denial), O.READ), denial


IMPLIED = {O.DESCRIBE: {O.READ, O.WRITE, O.DELETE, O.ALTER}, O.DESCRIBE_CONFIGS: {O.ALTER_CONFIGS}}


@pytest.mark.parametrize("given_one", SUPPORTED_OPERATIONS[TOPIC], ids=lambda one: one.title)
def test_what_an_allowed_operation_implies(given_one: AclOperation) -> None:
    acls = snapshot(acl(given_one))
    allowed = {one for one in SUPPORTED_OPERATIONS[TOPIC] if allows(acls, one)}
    assert allowed == {given_one} | {one for one, by in IMPLIED.items() if given_one in by}


@pytest.mark.parametrize("denied_one", SUPPORTED_OPERATIONS[TOPIC], ids=lambda one: one.title)
def test_a_denied_operation_implies_nothing(denied_one: AclOperation) -> None:
    acls = snapshot(acl(O.ALL), acl(denied_one, permission=DENY))
    assert {one for one in SUPPORTED_OPERATIONS[TOPIC] if not allows(acls, one)} == {denied_one}


def test_a_denied_description_does_not_stop_what_implies_it() -> None:
    acls = snapshot(acl(O.READ), acl(O.DESCRIBE, permission=DENY))
    assert allows(acls, O.READ)
    assert not allows(acls, O.DESCRIBE)


def test_all_allows_every_operation() -> None:
    assert all(allows(snapshot(acl(O.ALL)), one) for one in O if one > O.ALL)


def test_a_prefix_is_for_every_name_that_begins_so() -> None:
    acls = snapshot(acl(O.READ, "team-", prefix=True))
    assert [allows(acls, O.READ, name) for name in ("team-", "team-a", "team", "Team-a", "a-team-", "")] == [
        *(True, True),
        *(False, False, False, False),
    ]


def test_a_star_is_all_names_only_as_a_literal_pattern() -> None:
    assert allows(snapshot(acl(O.READ, "*")), O.READ, "t")
    assert not allows(snapshot(acl(O.READ, "*", prefix=True)), O.READ, "t")
    assert allows(snapshot(acl(O.READ, "*", prefix=True)), O.READ, "*t")
    assert not allows(snapshot(acl(O.READ, "t*")), O.READ, "t1")


def test_wildcards_of_principals_and_hosts_stand_alone() -> None:
    assert allows(snapshot(acl(O.READ, principal="User:*")), O.READ)
    assert not allows(snapshot(acl(O.READ, principal="User:a*")), O.READ)
    assert not allows(snapshot(acl(O.READ, principal="*")), O.READ)
    assert not allows(snapshot(acl(O.READ, principal="Group:*")), O.READ)
    assert not allows(snapshot(acl(O.READ, host="10.0.0.*")), O.READ)
    assert allows(snapshot(acl(O.READ, host=HERE)), O.READ)


def test_a_user_whose_name_is_a_star_is_not_everybody_else() -> None:
    assert not allows(snapshot(acl(O.READ)), O.READ, principal="User:*")


def test_changed_replaces_patterns_and_forgets_those_without_entries() -> None:
    before = snapshot(acl(O.READ), acl(O.READ, "p", prefix=True), allow_if_none=True)
    pattern, entry = acl(O.WRITE)
    after = before.changed({pattern: [entry], ResourcePattern(TOPIC, "p", PREFIXED): []})
    assert after.acls == {pattern: (entry,)}
    assert after.allow_if_none
    assert len(before) == 2, "a snapshot does not change"
    assert allows(after, O.READ, "p1")


# --- any resource of a type (KIP-679)


def allows_any(*acls: Acl, allow_if_none: bool = False) -> bool:
    return snapshot(*acls, allow_if_none=allow_if_none).allows_any(ALICE, HERE, O.WRITE, TOPIC)


def test_a_host_is_compared_as_an_address() -> None:
    """Kafka's tools write IPv6 as Java does."""
    denied = snapshot(acl(O.READ), acl(O.READ, permission=DENY, host="0:0:0:0:0:0:0:1"))
    assert not denied.allows(ALICE, "::1", O.READ, TOPIC, "t")
    assert denied.allows(ALICE, "::2", O.READ, TOPIC, "t")
    assert not denied.allows_any(ALICE, "::1", O.READ, TOPIC)
    assert [entry.host for entry in denied.acls[ResourcePattern(TOPIC, "t")]] == ["*", "0:0:0:0:0:0:0:1"]


def test_some_resource_is_allowed_by_any_pattern_that_is_not_denied() -> None:
    assert not allows_any()
    assert allows_any(acl(O.WRITE, "t"))
    assert allows_any(acl(O.WRITE, "t", prefix=True))
    assert allows_any(acl(O.ALL, "*"))
    assert not allows_any(acl(O.READ, "t"))
    assert not allows_any(acl(O.WRITE, "t", type=GROUP))
    assert not allows_any(acl(O.WRITE, "t", principal=BOB))
    assert not allows_any(acl(O.WRITE, "t", host=THERE))


def test_a_denial_of_all_resources_leaves_none() -> None:
    assert not allows_any(acl(O.WRITE), acl(O.WRITE, "*", DENY))
    assert not allows_any(acl(O.ALL, "*"), acl(O.ALL, "*", DENY), allow_if_none=True)
    assert not allows_any(acl(O.WRITE, "*", DENY), allow_if_none=True)


def test_where_everyone_may_there_is_some_resource_without_an_acl() -> None:
    assert allows_any(allow_if_none=True)
    assert allows_any(acl(O.WRITE, "t", DENY), acl(O.WRITE, "t", DENY, prefix=True), allow_if_none=True)


def test_a_pattern_below_a_denied_prefix_is_dominated() -> None:
    denied = acl(O.WRITE, "te", DENY, prefix=True)
    assert not allows_any(acl(O.WRITE, "te"), denied)
    assert not allows_any(acl(O.WRITE, "test"), denied)
    assert not allows_any(acl(O.WRITE, "te", prefix=True), denied)
    assert not allows_any(acl(O.WRITE, "test", prefix=True), denied)
    assert allows_any(acl(O.WRITE, "t", prefix=True), denied), "there is tx"
    assert allows_any(acl(O.WRITE, "*"), denied)
    assert allows_any(acl(O.WRITE, "test"), acl(O.WRITE, "tx"), denied)


def test_a_denied_name_dominates_only_itself() -> None:
    denied = acl(O.WRITE, "t", DENY)
    assert not allows_any(acl(O.WRITE, "t"), denied)
    assert allows_any(acl(O.WRITE, "t", prefix=True), denied)
    assert allows_any(acl(O.WRITE, "t1"), denied)


# --- filters


ALL_PATTERNS = {
    "all": ResourcePattern(TOPIC, "*"),
    "team-a": ResourcePattern(TOPIC, "team-a"),
    "team-b": ResourcePattern(TOPIC, "team-b"),
    "team-*": ResourcePattern(TOPIC, "team-", PREFIXED),
    "team-a*": ResourcePattern(TOPIC, "team-a", PREFIXED),
    "group": ResourcePattern(GROUP, "team-a"),
}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), set(ALL_PATTERNS)),
        (AclFilter(GROUP), {"group"}),
        (AclFilter(name="team-a"), {"team-a", "team-a*", "group"}),
        (AclFilter(TOPIC, "team-a", PatternType.MATCH), {"all", "team-a", "team-*", "team-a*"}),
        (AclFilter(TOPIC, "team-abc", PatternType.MATCH), {"all", "team-*", "team-a*"}),
        (AclFilter(TOPIC, "other", PatternType.MATCH), {"all"}),
        (AclFilter(TOPIC, "*", PatternType.MATCH), {"all"}),
        (AclFilter(TOPIC, None, PatternType.MATCH), set(ALL_PATTERNS) - {"group"}),
        (AclFilter(TOPIC, "team-a", LITERAL), {"team-a"}),
        (AclFilter(TOPIC, "team-a", PREFIXED), {"team-a*"}),
        (AclFilter(TOPIC, "team-", LITERAL), set()),
        (AclFilter(TOPIC, None, PREFIXED), {"team-*", "team-a*"}),
        (AclFilter(TOPIC, "*", LITERAL), {"all"}),
    ],
)
def test_a_filter_chooses_patterns_as_kafkas_does(wanted: AclFilter, found: set[str]) -> None:
    entry = AccessControlEntry(ALICE, O.READ)
    acls = AclSnapshot({pattern: [entry] for pattern in ALL_PATTERNS.values()})
    chosen = [pattern for pattern, _ in acls.matching(wanted)]
    assert set(chosen) == {ALL_PATTERNS[one] for one in found}
    assert all(pattern in chosen for pattern in wanted.named_patterns if pattern in acls.acls)


def test_a_filter_names_its_patterns_where_it_can_choose_no_others() -> None:
    assert AclFilter(TOPIC, "t", LITERAL).named_patterns == (ResourcePattern(TOPIC, "t"),)
    assert AclFilter(TOPIC, "t").named_patterns == (
        *(ResourcePattern(TOPIC, "t"), ResourcePattern(TOPIC, "t", PREFIXED)),
    )
    for broad in (AclFilter(), AclFilter(TOPIC), AclFilter(name="t"), AclFilter(TOPIC, "t", PatternType.MATCH)):
        assert broad.named_patterns == ()


def test_a_filter_chooses_entries_by_each_of_their_fields() -> None:
    entries = [
        AccessControlEntry(principal, operation, permission, host)
        for principal in (ALICE, "User:*")
        for operation in (O.READ, O.ALL)
        for permission in (ALLOW, DENY)
        for host in (HERE, "*")
    ]
    acls = AclSnapshot({ResourcePattern(TOPIC, "t"): entries})

    def chosen(wanted: AclFilter) -> list[AccessControlEntry]:
        return [entry for _, found in acls.matching(wanted) for entry in found]

    assert chosen(AclFilter()) == entries
    assert chosen(AclFilter(principal=ALICE)) == [one for one in entries if one.principal == ALICE]
    assert chosen(AclFilter(host="*")) == [one for one in entries if one.host == "*"]
    assert chosen(AclFilter(operation=O.ALL)) == [one for one in entries if one.operation is O.ALL]
    assert chosen(AclFilter(permission=DENY)) == [one for one in entries if one.permission is DENY]
    assert chosen(AclFilter(TOPIC, "t", LITERAL, ALICE, HERE, O.READ, DENY)) == [
        AccessControlEntry(ALICE, O.READ, DENY, HERE)
    ]
    assert list(acls.matching(AclFilter(principal=BOB))) == []


# --- the oracle: every ACL is looked at, one after the other, as the documentation says


NAMES = st.sampled_from(["", "*", "a", "ab", "abc", "b", "a*", "x"])
PRINCIPALS = st.sampled_from([ALICE, BOB, "User:*", "Group:alice"])
HOSTS = st.sampled_from([HERE, THERE, "*"])
OPERATIONS = st.sampled_from([O.READ, O.WRITE, O.DESCRIBE, O.ALTER, O.ALTER_CONFIGS, O.DESCRIBE_CONFIGS, O.ALL])
TYPES = st.sampled_from([TOPIC, TOPIC, TOPIC, GROUP])
PATTERNS = st.builds(ResourcePattern, TYPES, NAMES.filter(bool), st.sampled_from([LITERAL, PREFIXED]))
ENTRIES = st.builds(AccessControlEntry, PRINCIPALS, OPERATIONS, st.sampled_from([ALLOW, DENY]), HOSTS)
ACLS = st.lists(st.tuples(PATTERNS, ENTRIES), max_size=8)
ASKED = st.sampled_from([one for one in O if one > O.ALL])
REQUESTS = st.tuples(st.sampled_from([ALICE, BOB, "User:*"]), st.sampled_from([HERE, THERE]), ASKED, TYPES)


def is_about(pattern: ResourcePattern, type: AclResourceType, name: str) -> bool:
    if pattern.type is not type:
        return False
    if pattern.pattern is PREFIXED:
        return name[: len(pattern.name)] == pattern.name
    return pattern.name in ("*", name)


def is_from(entry: AccessControlEntry, principal: str, host: str) -> bool:
    return (entry.principal == "User:*" or entry.principal == principal) and (entry.host == "*" or entry.host == host)


def expected(
    acls: Iterable[Acl],
    principal: str,
    host: str,
    operation: AclOperation,
    of: tuple[AclResourceType, str],
    if_none: bool,
) -> bool:
    decision = None
    for pattern, entry in acls:
        if not is_about(pattern, *of):
            continue
        if decision is None:
            decision = False
        if not is_from(entry, principal, host):
            continue
        if entry.permission is DENY and entry.operation in (operation, O.ALL):
            return False
        if entry.permission is ALLOW:
            decision |= entry.operation in (operation, O.ALL) or entry.operation in IMPLIED.get(operation, ())
    return if_none if decision is None else decision


@given(ACLS, REQUESTS, NAMES, st.booleans())
@example([acl(O.READ), acl(O.DESCRIBE, permission=DENY)], (ALICE, HERE, O.READ, TOPIC), "t", False)
def test_decisions_are_those_of_an_oracle(
    acls: list[Acl], request: tuple[str, str, AclOperation, AclResourceType], name: str, if_none: bool
) -> None:
    principal, host, operation, type = request
    found = snapshot(*acls, allow_if_none=if_none).allows(principal, host, operation, type, name)
    assert found is expected(acls, principal, host, operation, (type, name), if_none)


@given(ACLS, REQUESTS, st.booleans())
def test_there_is_some_resource_exactly_when_the_oracle_finds_one(
    acls: list[Acl], request: tuple[str, str, AclOperation, AclResourceType], if_none: bool
) -> None:
    """Of the operations that nothing implies: Kafka asks for no other one (KIP-679).

    It is asked about every name that the patterns can tell apart: their own, and longer ones. As in Kafka, denials of
    single names leave something of a prefix, and a denied prefix leaves something of all names.
    """
    principal, host, operation, type = request
    if operation in IMPLIED:
        return
    names = {pattern.name for pattern, _ in acls} | {"zz"}
    candidates = (names | {f"{name}{more}" for name in names for more in "~zcb"}) - {"*"}
    found = snapshot(*acls, allow_if_none=if_none).allows_any(principal, host, operation, type)
    wanted = any(expected(acls, principal, host, operation, (type, name), if_none) for name in candidates)
    if if_none and found and not wanted:
        return  # Kafka does not look whether an ACL of somebody else has taken all resources
    assert found is wanted


@given(st.lists(PATTERNS), TYPES, NAMES)
def test_a_match_filter_chooses_exactly_the_patterns_that_apply(
    patterns: list[ResourcePattern], type: AclResourceType, name: str
) -> None:
    wanted = AclFilter(type, name, PatternType.MATCH)
    assert [p for p in patterns if wanted.matches_pattern(p)] == [p for p in patterns if is_about(p, type, name)]


def decisions(acls: AclSnapshot) -> list[bool]:
    asked = [(who, host, O.READ, type) for who in (ALICE, BOB) for host in (HERE, THERE) for type in (TOPIC, GROUP)]
    names = ("a", "ab", "abc", "*", "x")
    return [acls.allows(*one, name) for one in asked for name in names] + [acls.allows_any(*one) for one in asked]


@given(ACLS, st.lists(st.dictionaries(PATTERNS, st.lists(ENTRIES, max_size=3), max_size=3), max_size=3))
def test_changing_patterns_is_making_the_snapshot_anew(
    before: list[Acl], changes: list[dict[ResourcePattern, list[AccessControlEntry]]]
) -> None:
    acls = snapshot(*before)
    for news in changes:
        old, decided = dict(acls.acls), decisions(acls)
        changed = acls.changed(news)
        anew = AclSnapshot({pattern: entries for pattern, entries in changed.acls.items() if entries})
        assert changed.acls == {p: tuple(e) for p, e in {**old, **news}.items() if e}
        assert decisions(changed) == decisions(anew)
        assert (acls.acls, decisions(acls)) == (old, decided)
        acls = changed
    gone = acls.changed(dict.fromkeys(acls.acls, ()))
    assert vars(gone) == vars(AclSnapshot())
