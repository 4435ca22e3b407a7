"""Groups: coordinators, members that are not there or do not fit, offsets, descriptions, and their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking, versions

ON_DEMAND_ID = 4
"""First JoinGroup that has a member without an id ask again with one."""


def ask_all(asking: Asking) -> None:
    topic = f"{asking.prefix}g"
    asking.create(topic, 2)
    _coordinators(asking)
    _commits(asking, topic)
    _fetches(asking, topic)
    _joins(asking)
    _strangers(asking)
    _life(asking, topic)
    _offset_deletes(asking, topic)


def _coordinators(asking: Asking) -> None:
    def pick(answer: Any) -> Any:
        for one in (answer, *answer.get("coordinators", ())):
            one.pop("host", None)
            one.pop("port", None)
        return answer

    for name, key, kind in (("group", "g", 0), ("transaction", "t", 1), ("empty", "", 0), ("type 9", "g", 9)):
        body = {"key": key, "key_type": kind, "coordinator_keys": [key]}
        asking.ask_all(f"FindCoordinator {name}", ApiKey.FIND_COORDINATOR, body, pick)
    none: Mapping[str, Any] = {"key_type": 0, "coordinator_keys": []}
    asking.ask("FindCoordinator none", ApiKey.FIND_COORDINATOR, none, 4, pick)


def _commits(asking: Asking, topic: str) -> None:
    def ask(
        name: str,
        group: str,
        *offsets: tuple[str, int, int],
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
        metadata: str | None = "",
        in_versions: Sequence[int] = versions(ApiKey.OFFSET_COMMIT),
    ) -> None:
        topics = [
            {
                "name": of_topic,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "commit_timestamp": -1,
                        "committed_metadata": metadata,
                    }
                ],
            }
            for of_topic, index, offset in offsets
        ]
        body = {
            "group_id": group.replace("@", asking.prefix),
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "group_instance_id": instance,
            "retention_time": -1,
            "topics": topics,
        }

        def pick(answer: Any) -> Any:
            return sorted(answer["topics"], key=lambda one: one["name"])

        asking.ask_all(f"OffsetCommit {name}", ApiKey.OFFSET_COMMIT, body, pick, in_versions)

    ask("ok", "@simple", (topic, 0, 5))
    ask("null metadata", "@simple", (topic, 1, 7), metadata=None)
    ask("unknown topic", "@simple", ("nope-y", 0, 5))
    ask("bad name", "@simple", ("a/b", 0, 5))
    ask("unknown part", "@simple", (topic, 9, 5))
    ask("one of two", "@simple", (topic, 0, 6), ("nope-y", 0, 6))
    last = versions(ApiKey.OFFSET_COMMIT)[-1:]
    ask("empty group", "", (topic, 0, 5), in_versions=last)
    ask("generation of no group", "@none", (topic, 0, 5), generation=1, member="m", in_versions=last)
    ask("member of no group", "@none2", (topic, 0, 5), member="m", in_versions=last)
    ask("generation of simple", "@simple", (topic, 0, 5), generation=3, in_versions=last)
    ask("long metadata", "@simple", (topic, 0, 5), metadata="x" * 4097, in_versions=last)
    ask("negative offset", "@neg", (topic, 0, -7), in_versions=last)
    ask("nothing", "@nothing", in_versions=last)
    ask("instance of no group", "@none3", (topic, 0, 5), generation=1, member="m", instance="i", in_versions=last)


def _fetches(asking: Asking, topic: str) -> None:
    first = versions(ApiKey.OFFSET_FETCH)

    def ask(name: str, group: str, topics: Sequence[tuple[str, Sequence[int]]] | None) -> None:
        group = group.replace("@", asking.prefix)
        asked = None if topics is None else [{"name": one, "partition_indexes": indexes} for one, indexes in topics]
        body = {
            "group_id": group,
            "topics": asked,
            "require_stable": False,
            "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": asked}],
        }

        def pick(answer: Any) -> Any:
            for one in (answer, *answer.get("groups", ())):
                for found in one.get("topics") or ():
                    found["partitions"].sort(key=lambda partition: partition["partition_index"])
            return answer

        for version in first if topics is not None else first[2 - first[0] :]:
            asking.ask(f"OffsetFetch {name}", ApiKey.OFFSET_FETCH, body, version, pick)

    ask("ok", "@simple", [(topic, [0, 1])])
    ask("unknown part", "@simple", [(topic, [9])])
    ask("unknown topic", "@simple", [("nope-y", [0])])
    ask("unknown group", "@none", [(topic, [0])])
    ask("all", "@simple", None)
    ask("all of unknown", "@none", None)
    ask("empty group", "", [(topic, [0])])


def _join_body(group: str, **given: Any) -> Mapping[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 60_000,  # members are there as long as the area is asked
        "rebalance_timeout": 60_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
        "reason": None,
        **given,
    }


def _with_ids_hidden(answer: Any) -> Any:
    """Member ids begin with the client's, on both; what follows is random."""
    for key in ("member_id", "leader"):
        if answer.get(key):
            answer[key] = "given"
    for member in answer.get("members", ()):
        if member.get("member_id"):
            member["member_id"] = "given"
    return answer


def _joins(asking: Asking) -> None:
    def ask(name: str, group: str, in_versions: Sequence[int] = (0, 3, 4, 5, 9), **given: Any) -> None:
        for version in in_versions:
            body = _join_body(group.replace("@", f"{asking.prefix}{version}"), **given)
            asking.ask(f"JoinGroup {name}", ApiKey.JOIN_GROUP, body, version, _with_ids_hidden)

    ask("new", "@j")
    ask("short session", "@s", session_timeout=1)
    ask("long session", "@l", session_timeout=2_000_000)
    ask("no protocols", "@p", protocols=[])
    ask("no protocol type", "@t", protocol_type="")
    ask("empty group", "")
    ask("unknown member", "@j", member_id="nobody")
    ask("member of no group", "@none", member_id="nobody")
    ask("new static", "@i", in_versions=(5, 9), group_instance_id="one")


def _strangers(asking: Asking) -> None:
    """Requests of members that no group has."""
    none, empty = f"{asking.prefix}none", f"{asking.prefix}simple"
    for name, group in (("unknown", none), ("of simple", empty), ("empty", "")):
        sync = {
            "group_id": group,
            "generation_id": 1,
            "member_id": "m",
            "group_instance_id": None,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": [],
        }
        asking.ask_all(f"SyncGroup {name}", ApiKey.SYNC_GROUP, sync)
        beat = {"group_id": group, "generation_id": 1, "member_id": "m", "group_instance_id": None}
        asking.ask_all(f"Heartbeat {name}", ApiKey.HEARTBEAT, beat)
        member = {"member_id": "m", "group_instance_id": None, "reason": None}
        leave = {"group_id": group, "member_id": "m", "members": [member]}
        asking.ask_all(f"LeaveGroup {name}", ApiKey.LEAVE_GROUP, leave)


def _describe(asking: Asking, name: str, *groups: str) -> None:
    def pick(answer: Any) -> Any:
        for group in answer["groups"]:
            for member in group["members"]:
                for key in ("member_id", "client_id", "client_host", "group_instance_id"):
                    member.pop(key, None)
        return answer["groups"]

    body = {"groups": groups, "include_authorized_operations": True}
    asking.ask_all(f"DescribeGroups {name}", ApiKey.DESCRIBE_GROUPS, body, pick)


def _list(asking: Asking, name: str, **given: Any) -> None:
    def pick(answer: Any) -> Any:
        ours = [one for one in answer["groups"] if one["group_id"].startswith("U")]
        return {**answer, "groups": sorted(ours, key=lambda one: one["group_id"])}

    body = {"states_filter": [], "types_filter": [], **given}
    asking.ask_all(f"ListGroups {name}", ApiKey.LIST_GROUPS, body, pick)


def _life(asking: Asking, topic: str) -> None:
    """A group of one member, from its join to its end."""
    group = f"{asking.prefix}life"
    joined = asking.ask("life: join", ApiKey.JOIN_GROUP, _join_body(group), 4, _with_ids_hidden)
    member = joined.member_id
    again = asking.ask(
        "life: join with id", ApiKey.JOIN_GROUP, _join_body(group, member_id=member), 5, _with_ids_hidden
    )
    generation = again.generation_id

    def sync(name: str, **given: Any) -> None:
        body = {
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member, "assignment": b"a"}],
            **given,
        }
        asking.ask(f"life: sync {name}", ApiKey.SYNC_GROUP, body, 5)

    def beat(name: str, **given: Any) -> None:
        body = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None}
        asking.ask(f"life: heartbeat {name}", ApiKey.HEARTBEAT, {**body, **given}, 4)

    beat("before sync")
    sync("other protocol", protocol_name="other")
    sync("other type", protocol_type="connect")
    sync("other generation", generation_id=generation + 1)
    sync("unknown member", member_id="nobody")
    sync("ok")
    beat("ok")
    beat("other generation", generation_id=generation + 1)
    beat("unknown member", member_id="nobody")
    beat("unknown instance", group_instance_id="nobody")
    _describe(asking, "stable", group)
    other = _join_body(group, protocol_type="connect")
    asking.ask("life: join other type", ApiKey.JOIN_GROUP, other, 4, _with_ids_hidden)
    strange = _join_body(group, protocols=[{"name": "roundrobin", "metadata": b""}])
    asking.ask("life: join other protocol", ApiKey.JOIN_GROUP, strange, 4, _with_ids_hidden)
    _delete(asking, "life: not empty", group)
    _commit_of(asking, "life: commit of another generation", group, topic, member, generation + 1)
    _commit_of(asking, "life: commit of nobody", group, topic, "nobody", generation)
    _commit_of(asking, "life: commit without member", group, topic, "", -1)
    _commit_of(asking, "life: commit", group, topic, member, generation)
    _list(asking, "of stable", states_filter=["Stable"])
    _list(asking, "of a state there is not", states_filter=["foo"])
    _list(asking, "of a type there is not", types_filter=["foo"])
    _list(asking, "of classic", types_filter=["classic"])
    leave = {"group_id": group, "members": [{"member_id": member, "group_instance_id": None, "reason": None}]}
    asking.ask(
        "life: leave",
        ApiKey.LEAVE_GROUP,
        leave,
        5,
        lambda answer: [answer["error_code"], [one["error_code"] for one in answer["members"]]],
    )
    beat("after leaving")
    _describe(asking, "empty", group)
    _describe(asking, "unknown", f"{asking.prefix}none")
    _describe(asking, "without name", "")
    _describe(asking, "none")
    _describe(asking, "twice", group, group)
    _list(asking, "all")
    _delete(asking, "ok", group)
    _describe(asking, "deleted", group)
    _delete(asking, "again", group)
    _delete(asking, "without name", "")
    _delete(asking, "twice", f"{asking.prefix}simple", f"{asking.prefix}simple")


def _commit_of(asking: Asking, name: str, group: str, topic: str, member: str, generation: int) -> None:
    partition = {
        "partition_index": 0,
        "committed_offset": 3,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [partition]}],
    }
    asking.ask(name, ApiKey.OFFSET_COMMIT, body, 8)


def _delete(asking: Asking, name: str, *groups: str) -> None:
    asking.ask(f"DeleteGroups {name}", ApiKey.DELETE_GROUPS, {"groups_names": groups}, 2)


def _offset_deletes(asking: Asking, topic: str) -> None:
    """The last offset of a group without members takes the group along."""
    group = f"{asking.prefix}offsets"
    for index in (0, 1):
        partition = {
            "partition_index": index,
            "committed_offset": 3,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        asking.ask(f"offsets: commit {index}", ApiKey.OFFSET_COMMIT, body, 8)
    for name, named, of_topic, index in (
        ("unknown group", f"{asking.prefix}none", topic, 0),
        ("without name", "", topic, 0),
        ("unknown topic", group, "nope-y", 0),
        ("unknown part", group, topic, 9),
        ("first", group, topic, 0),
        ("again", group, topic, 0),
        ("last", group, topic, 1),
    ):
        topics = [{"name": of_topic, "partitions": [{"partition_index": index}]}]
        asking.ask(f"OffsetDelete {name}", ApiKey.OFFSET_DELETE, {"group_id": named, "topics": topics}, 0)
    _describe(asking, "without offsets", group)
    _list(asking, "after the last offset")
