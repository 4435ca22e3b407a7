"""What ACLs decide; which can be created, and which a filter finds and deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.protocol.api_keys import ApiKey
from broker.security.acl_types import AclOperation, AclPermission, AclResourceType, PatternType
from tests.compat.kafka_answers.guarded_asking import GuardedAsking
from tests.support.permission_cases import ANONYMOUS
from tests.support.waiting import eventually

_Op, R = AclOperation, AclResourceType
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
CLUSTER = "kafka-cluster"

Acl = dict[str, Any]
"""The fields of a creation."""


def ask_all(asking: GuardedAsking) -> None:
    _decisions(asking)
    asking.world.set_acls([])
    _creations(asking)
    asking.world.set_acls([])
    _filters(asking)
    asking.world.set_acls([])


def acl(
    operation: int,
    name: str = CLUSTER,
    resource: int = R.TOPIC,
    *,
    pattern: int = LITERAL,
    principal: str = ANONYMOUS,
    host: str = "*",
    permission: int = ALLOW,
) -> Acl:
    """With the fields in the order of `World.acls`."""
    return {
        "resource_type": resource,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": principal,
        "host": host,
        "operation": operation,
        "permission_type": permission,
    }


# --- decisions


def _decisions(asking: GuardedAsking) -> None:
    """A topic, a group and the cluster tell which operations are authorized."""
    world = asking.world
    for name, acls in _of_a_topic(world.topic).items():
        world.set_acls(acls)
        _ask_topic(asking, f"Operations on a topic: {name}", world.topic)
    for name, acls in _of_a_group(world.group).items():
        world.set_acls(acls)
        body = {"groups": [world.group], "include_authorized_operations": True}
        asking.ask(f"Operations on a group: {name}", ApiKey.DESCRIBE_GROUPS, body, 5, _operations("groups"))
    for name, acls in _of_the_cluster().items():
        world.set_acls(acls)
        body = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
        asking.ask(f"Operations on the cluster: {name}", ApiKey.DESCRIBE_CLUSTER, body, 1, _operations(None))


def _ask_topic(asking: GuardedAsking, name: str, topic: str) -> None:
    body = {
        "topics": [{"name": topic}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
    }
    asking.ask(name, ApiKey.METADATA, body, 12, _operations("topics"))


def _operations(rows: str | None) -> Any:
    def pick(answer: Any) -> Any:
        (row,) = [answer] if rows is None else answer[rows]
        (bits,) = [value for key, value in row.items() if key.endswith("authorized_operations")]
        named = [one.name for one in _Op if bits >= 0 and bits >> one & 1]
        return {"error_code": row["error_code"], "operations": named if bits >= 0 else bits}

    return pick


def _of_a_topic(topic: str) -> dict[str, Sequence[Acl]]:
    operations = (_Op.READ, _Op.WRITE, _Op.CREATE, _Op.DELETE, _Op.ALTER, _Op.DESCRIBE)
    each = {
        f"{permission.name} {operation.name}": [acl(_Op.ALL, topic)] * (permission is DENY)
        + [acl(operation, topic, permission=permission)]
        for permission in (ALLOW, DENY)
        for operation in (*operations, _Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS)
    }
    everything, start = acl(_Op.ALL, topic), topic[:-3]
    return {
        "none": [],
        **each,
        "ALLOW ALL": [everything],
        "DENY ALL": [everything, acl(_Op.ALL, topic, permission=DENY)],
        "DENY DESCRIBE of who reads": [acl(_Op.READ, topic), acl(_Op.DESCRIBE, topic, permission=DENY)],
        "DENY READ by a prefix": [everything, acl(_Op.READ, start, pattern=PREFIXED, permission=DENY)],
        "DENY READ by the wildcard": [everything, acl(_Op.READ, "*", permission=DENY)],
        "DENY READ of another topic": [everything, acl(_Op.READ, f"{topic}x", permission=DENY)],
        "a prefix": [acl(_Op.READ, start, pattern=PREFIXED)],
        "a prefix that is the name": [acl(_Op.READ, topic, pattern=PREFIXED)],
        "a prefix that is longer": [acl(_Op.READ, f"{topic}x", pattern=PREFIXED)],
        "a prefix in other letters": [acl(_Op.READ, start.upper(), pattern=PREFIXED)],
        "the wildcard": [acl(_Op.READ, "*")],
        "a star as a prefix": [acl(_Op.READ, "*", pattern=PREFIXED)],
        "a name with a star": [acl(_Op.READ, f"{start}*")],
        "of a group": [acl(_Op.READ, topic, R.GROUP)],
        "of the cluster": [acl(_Op.ALL, CLUSTER, R.CLUSTER)],
        "every principal": [acl(_Op.READ, topic, principal="User:*")],
        "DENY READ to every principal": [everything, acl(_Op.READ, topic, principal="User:*", permission=DENY)],
        "a principal in other letters": [acl(_Op.READ, topic, principal="User:anonymous")],
        "a principal of another type": [acl(_Op.READ, topic, principal="Group:ANONYMOUS")],
        "another principal": [acl(_Op.READ, topic, principal="User:somebody")],
        "the host": [acl(_Op.READ, topic, host="127.0.0.1")],
        "another host": [acl(_Op.READ, topic, host="127.0.0.2")],
        "DENY READ from the host": [everything, acl(_Op.READ, topic, host="127.0.0.1", permission=DENY)],
        "DENY READ from another host": [everything, acl(_Op.READ, topic, host="127.0.0.2", permission=DENY)],
        "a host that is a name": [acl(_Op.READ, topic, host="localhost")],
    }


def _of_a_group(group: str) -> dict[str, Sequence[Acl]]:
    return {
        "none": [],
        **{one.name: [acl(one, group, R.GROUP)] for one in (_Op.READ, _Op.DELETE, _Op.DESCRIBE, _Op.ALL)},
        "DENY DELETE": [acl(_Op.ALL, group, R.GROUP), acl(_Op.DELETE, group, R.GROUP, permission=DENY)],
    }


def _of_the_cluster() -> dict[str, Sequence[Acl]]:
    operations = (_Op.CREATE, _Op.ALTER, _Op.DESCRIBE, _Op.CLUSTER_ACTION, _Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS)
    return {
        "none": [],
        **{one.name: [acl(one, CLUSTER, R.CLUSTER)] for one in (*operations, _Op.IDEMPOTENT_WRITE, _Op.ALL)},
    }


# --- creations


def _creations(asking: GuardedAsking) -> None:
    name = f"{asking.prefix}a"
    fine = acl(_Op.READ, name)
    for version in (1, 2, 3):
        _create(asking, "fine", [fine], version)
    changes: dict[str, dict[str, Any]] = {
        **{f"resource type {one}": {"resource_type": one} for one in (0, 1, 6, 7, 8, 99)},
        **{f"pattern type {one}": {"resource_pattern_type": one} for one in (0, 1, 2, 5)},
        **{f"permission {one}": {"permission_type": one} for one in (0, 1, 4)},
        **{f"principal {one!r}": {"principal": one} for one in PRINCIPALS},
        **{f"host {one!r}": {"host": one} for one in HOSTS},
        **{f"name {one[:9]!r}": {"resource_name": one} for one in ("", "a/b", "a b", ".", "x" * 250, "é", "a\nb")},
    }
    for what, changed in changes.items():
        _create(asking, what, [{**fine, **changed}])
    names = {R.CLUSTER: CLUSTER}
    for resource in (R.TOPIC, R.GROUP, R.CLUSTER, R.TRANSACTIONAL_ID, R.DELEGATION_TOKEN, R.USER):
        for operation in range(16):
            what = f"operation {operation} on {resource.name}"
            _create(asking, what, [acl(operation, names.get(resource, name), resource)])
    _create(asking, "another cluster", [acl(_Op.READ, name, R.CLUSTER)])
    _create(asking, "a prefix of the cluster", [acl(_Op.ALTER, CLUSTER, R.CLUSTER, pattern=PREFIXED)])
    _create(asking, "a shorter prefix of the cluster", [acl(_Op.ALTER, "kafka", R.CLUSTER, pattern=PREFIXED)])
    _create(asking, "the wildcard of the cluster", [acl(_Op.ALTER, "*", R.CLUSTER)])
    _create(asking, "none", [])
    _create(asking, "twice the same", [fine, fine])
    _create(asking, "one of two", [{**fine, "host": ""}, acl(_Op.WRITE, name)])


PRINCIPALS = ("", "x", "User", "User:", ":x", "user:x", "User:a:b", "User: a", "Group:g", "User:*", "*")
HOSTS = ("", "127.0.0.1", "::1", "not a host", "localhost", "10.0.0.0/8")


def _create(asking: GuardedAsking, name: str, acls: Sequence[Acl], version: int = 3) -> None:
    asking.as_admin(f"CreateAcls {name}", ApiKey.CREATE_ACLS, {"creations": acls}, version)


# --- filters


def _filters(asking: GuardedAsking) -> None:
    asking.world.set_acls(_planted(asking.prefix))
    filters = _filters_of(asking.prefix)
    for what, fields in filters.items():
        for version in (1, 3) if what in ("any", "a name") else (3,):
            asking.as_admin(f"DescribeAcls {what}", ApiKey.DESCRIBE_ACLS, {**ANY, **fields}, version, found)
    for what, fields in filters.items():
        asking.world.set_acls(_planted(asking.prefix))
        _delete(asking, what, [{**ANY, **fields}])
    asking.world.set_acls(_planted(asking.prefix))
    one = {**ANY, "operation": _Op.WRITE}
    _delete(asking, "none", [])
    _delete(asking, "the same twice", [one, one])
    _delete(
        asking, "one that is wrong and one that is not", [{**ANY, "operation": 0}, {**ANY, "operation": _Op.DELETE}]
    )
    last = acl(_Op.READ, f"{asking.prefix}last")
    asking.as_admin("CreateAcls the last", ApiKey.CREATE_ACLS, {"creations": [last]})
    eventually(lambda: tuple(last.values()) in asking.world.acls())
    asking.as_admin("DescribeAcls after them", ApiKey.DESCRIBE_ACLS, ANY, 3, found)


ANY: Mapping[str, Any] = {
    "resource_type_filter": R.ANY,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": _Op.ANY,
    "permission_type": AclPermission.ANY,
}


def _planted(prefix: str) -> list[Acl]:
    return [
        acl(_Op.READ, f"{prefix}a"),
        acl(_Op.WRITE, f"{prefix}a", host="127.0.0.1"),
        acl(_Op.READ, f"{prefix}ab"),
        acl(_Op.READ, prefix, pattern=PREFIXED),
        acl(_Op.ALL, f"{prefix}a", pattern=PREFIXED, principal="User:x", permission=DENY),
        acl(_Op.DESCRIBE, "*"),
        acl(_Op.READ, f"{prefix}a", R.GROUP),
        acl(_Op.DELETE, "*", R.GROUP, principal="User:*"),
        acl(_Op.ALTER, CLUSTER, R.CLUSTER),
    ]


def _filters_of(prefix: str) -> dict[str, dict[str, Any]]:
    name = f"{prefix}a"
    patterns = {0: "unknown", 1: "any", 2: "match", 3: "literal", 4: "prefixed", 9: "9"}
    named = {
        f"{'a name' if one == name else repr(one.replace(prefix, 'U'))}, {title}": {
            "resource_name_filter": one,
            "pattern_type_filter": pattern,
        }
        for one in (name, f"{name}c", prefix, "*", "")
        for pattern, title in patterns.items()
    }
    return {
        "any": {},
        "a name": {"resource_name_filter": name, "pattern_type_filter": LITERAL},
        **named,
        **{f"any name, {patterns[one]}": {"pattern_type_filter": one} for one in (0, 2, 3, 4)},
        **{f"resource type {one}": {"resource_type_filter": one} for one in (0, 2, 3, 4, 5, 99)},
        **{f"operation {one}": {"operation": one} for one in (0, 2, 3, 99)},
        **{f"permission {one}": {"permission_type": one} for one in (0, 2, 3, 99)},
        **{f"principal {one!r}": {"principal_filter": one} for one in ("User:x", "User:*", "User:nobody", "x", "")},
        **{f"host {one!r}": {"host_filter": one} for one in ("*", "127.0.0.1", "10.0.0.1", "")},
    }


def _delete(asking: GuardedAsking, name: str, filters: Sequence[Mapping[str, Any]]) -> None:
    def deleted(answer: Any) -> Any:
        results = answer["filter_results"]
        return [{**one, "matching_acls": sorted(one["matching_acls"], key=repr)} for one in results]

    asking.as_admin(f"DeleteAcls {name}", ApiKey.DELETE_ACLS, {"filters": filters}, 3, deleted)


def found(answer: Any) -> Any:
    """A neutral answer of DescribeAcls, sorted."""
    resources = [{**one, "acls": sorted(one["acls"], key=repr)} for one in answer["resources"]]
    return {**answer, "resources": sorted(resources, key=repr)}
