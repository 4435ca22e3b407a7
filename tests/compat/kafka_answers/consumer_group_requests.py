"""Groups of the consumer protocol (KIP-848): heartbeats that do not fit, members that share, commits by member epochs,
static members, patterns, what is told of groups, and their settings; and the way from and to classic groups.

Which partitions a member gets is an assignor's free choice, so the answers keep only how many they are; the next
heartbeat owns what its member was given.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking
from tests.support.waiting import eventually

PARTITIONS = 4
GROUP_CONFIG = 32
Owned = dict[uuid.UUID, list[int]]


def ask_all(asking: Asking) -> None:
    topic = f"{asking.prefix}c"
    topic_id = asking.create(topic, PARTITIONS)
    asking.create(f"{asking.prefix}d", 2)
    _refused_heartbeats(asking, topic, topic_id)
    _shared(asking, topic)
    _commits(asking, topic, topic_id)
    _static(asking, topic)
    _patterns(asking)
    _end(asking, topic)
    _settings(asking)


def ask_migrations(asking: Asking) -> None:
    """Another area: the way from and to classic groups."""
    topic = f"{asking.prefix}c"
    asking.create(topic, PARTITIONS)
    _from_classic(asking, topic)
    _to_classic(asking, topic)


def heartbeat_body(group: str, member: str, epoch: int, **given: Any) -> dict[str, Any]:
    """One in which nothing has changed."""
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None,
        **given,
    }


def join_body(group: str, member: str, *topics: str, **given: Any) -> dict[str, Any]:
    first = {"rebalance_timeout": 60_000, "subscribed_topic_names": list(topics), "topic_partitions": []}
    return heartbeat_body(group, member, 0, **{**first, **given})


def counted(answer: Any) -> Any:
    """An answer to a heartbeat, with the number of partitions of each topic."""
    assignment = answer.get("assignment")
    if assignment is not None:
        answer["assignment"] = sorted(len(one["partitions"]) for one in assignment["topic_partitions"])
    return answer


def partitions_of(answer: Any) -> Owned:
    return {one.topic_id: list(one.partitions) for one in answer.assignment.topic_partitions}


@dataclasses.dataclass(eq=False)
class Member:
    """A consumer: it sends what a client would send, as far as it is not told otherwise."""

    asking: Asking
    group: str
    name: str
    topics: Sequence[str]
    epoch: int = 0
    owned: Owned = dataclasses.field(default_factory=dict)
    given: Owned = dataclasses.field(default_factory=dict)
    """What the last assignment had."""

    def join(self, note: str, **given: Any) -> Any:
        return self._ask(note, join_body(self.group, self.name, *self.topics, **given))

    def beat(self, note: str, **given: Any) -> Any:
        return self._ask(note, heartbeat_body(self.group, self.name, self.epoch, **given))

    def own(self, note: str, **given: Any) -> Any:
        """It has what it was given."""
        self.owned = self.given
        return self.beat(note, topic_partitions=_rows(self.owned), **given)

    def leave(self, note: str, epoch: int = -1, **given: Any) -> Any:
        return self._ask(note, heartbeat_body(self.group, self.name, epoch, **given))

    def _ask(self, note: str, body: Mapping[str, Any]) -> Any:
        name = f"ConsumerGroupHeartbeat {note}"
        answer = self.asking.ask(name, ApiKey.CONSUMER_GROUP_HEARTBEAT, body, 1, counted)
        if answer is not None and answer.error_code is ErrorCode.none:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.given = partitions_of(answer)
        return answer


def _rows(owned: Owned) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in owned.items()]


def _refused_heartbeats(asking: Asking, topic: str, topic_id: uuid.UUID) -> None:
    group = f"{asking.prefix}refused"

    def hidden(answer: Any) -> Any:
        """A member id that the coordinator made."""
        answer = counted(answer)
        if answer["member_id"] not in ("m", "n", "", None):
            answer["member_id"] = "an id"
        return answer

    def ask(name: str, body: Mapping[str, Any], versions: Sequence[int] = (0, 1)) -> None:
        asking.ask_all(f"ConsumerGroupHeartbeat {name}", ApiKey.CONSUMER_GROUP_HEARTBEAT, body, hidden, versions)

    owned = _rows({topic_id: [0]})
    ask("of no group", join_body("", "m", topic))
    ask("of a blank group", join_body("  ", "m", topic))
    ask("without a member id", join_body(group, "", topic), [1])
    ask("without a member id, later", heartbeat_body(group, "", 1))
    ask("epoch -3", heartbeat_body(group, "m", -3))
    ask("without a rebalance time-out", join_body(group, "m", topic, rebalance_timeout=-1))
    ask("without a subscription", join_body(group, "m", subscribed_topic_names=None))
    ask("joining with partitions", join_body(group, "m", topic, topic_partitions=owned))
    ask("joining with null partitions", join_body(group, "m", topic, topic_partitions=None))
    ask("an empty instance id", join_body(group, "m", topic, instance_id=""))
    ask("an empty rack", join_body(group, "m", topic, rack_id=""))
    ask("-2 without an instance id", heartbeat_body(group, "m", -2))
    ask("an unknown assignor", join_body(group, "m", topic, server_assignor="nope"))
    ask("an empty assignor", join_body(group, "m", topic, server_assignor=""))
    ask("a bad pattern", join_body(group, "m", subscribed_topic_names=None, subscribed_topic_regex="[a"), [1])
    ask("a pattern that looks ahead", join_body(group, "m", subscribed_topic_regex="a(?=b)"), [1])
    ask("of a group that is not there", heartbeat_body(group, "m", 3))
    ask("leaving a group that is not there", heartbeat_body(group, "m", -1))
    ask("made an id", join_body(f"{group}-v0", "", topic), [0])
    ask("of an unknown member, epoch 0", join_body(group, "m", topic), [1])
    ask("of an unknown member, epoch 1", heartbeat_body(group, "n", 1))
    ask("of a later epoch", heartbeat_body(group, "m", 9))
    ask("of an earlier epoch", heartbeat_body(group, "m", 0, rebalance_timeout=60_000))
    ask("leaving of an unknown member", heartbeat_body(group, "n", -1))
    ask("an unknown assignor, later", heartbeat_body(group, "m", 1, server_assignor="nope"))
    ask("a bad pattern, later", heartbeat_body(group, "m", 1, subscribed_topic_regex="[a"), [1])
    ask("partitions that it never had", heartbeat_body(group, "m", 1, topic_partitions=owned), [1])
    ask("leaving", heartbeat_body(group, "m", -1), [1])
    ask("of a topic that is not there", join_body(f"{group}-none", "m", f"{asking.prefix}none"), [1])
    ask("of no topics", join_body(f"{group}-empty", "m"), [1])
    ask("of an empty pattern", join_body(f"{group}-empty", "n", subscribed_topic_regex=""), [1])


def _shared(asking: Asking, topic: str) -> None:
    """Two members share; one changes its mind; answers get lost."""
    group = f"{asking.prefix}shared"
    one, two = (Member(asking, group, name, [topic]) for name in ("one", "two"))
    one.join("one: join")
    _tell(asking, "with one member", group)
    one.own("one: owns")
    one.beat("one: nothing new")
    two.join("two: join")
    _tell(asking, "while one revokes", group)
    two.own("two: owns nothing")
    one.beat("one: is to revoke")
    one.beat("one: is to revoke, has not yet")
    before, lost = dict(one.owned), one.epoch
    one.own("one: has revoked")
    two.beat("two: gets the rest")
    two.own("two: owns")
    _tell(asking, "of two members", group)
    now, one.epoch = one.epoch, lost
    one.beat("one: the epoch before, without partitions")
    one.beat("one: the epoch before, with what it has", topic_partitions=_rows(one.owned))
    one.epoch = lost
    one.beat("one: the epoch before, with what it had", topic_partitions=_rows(before))
    one.epoch = now
    one.join("one: joins again")
    one.own("one: owns again")
    one.beat("one: the same subscription", subscribed_topic_names=[topic])
    one.beat("one: another rack", rack_id="elsewhere")
    one.beat("one: the assignor range", server_assignor="range")
    two.beat("two: after the assignor")
    one.own("one: both topics", subscribed_topic_names=[topic, f"{asking.prefix}d"])
    one.own("one: owns both")
    two.beat("two: after both topics")
    _tell(asking, "of different topics", group)
    one.beat("one: no topics", subscribed_topic_names=[])
    one.own("one: has nothing")
    two.beat("two: gets all")
    two.own("two: owns all")
    _tell(asking, "in which one has nothing", group)
    two.leave("two: leaves")
    two.beat("two: after leaving")
    one.beat("one: after two has left")
    one.leave("one: leaves")
    _tell(asking, "without members", group)


def _tell(asking: Asking, note: str, *groups: str) -> None:
    """All that is told of groups."""

    def members(answer: Any) -> Any:
        answer["groups"].sort(key=lambda group: str(group["group_id"]))
        for group in answer["groups"]:
            group["members"].sort(key=lambda member: str(member["member_id"]))
            for member in group["members"]:
                member["subscribed_topic_names"].sort()
                for name in ("assignment", "target_assignment"):
                    member[name] = sorted(len(one["partitions"]) for one in member[name]["topic_partitions"])
        return answer

    def listed(answer: Any) -> Any:
        ours = [
            one
            for one in answer["groups"]
            if one["group_id"] in {group.replace(asking.prefix, "U") for group in groups}
        ]
        return {**answer, "groups": sorted(ours, key=lambda one: str(one["group_id"]))}

    body = {"group_ids": groups, "include_authorized_operations": True}
    asking.ask_all(f"ConsumerGroupDescribe {note}", ApiKey.CONSUMER_GROUP_DESCRIBE, body, members, (0, 1))
    for kinds in ([], ["consumer"], ["classic"], ["Share"]):
        wanted = {"states_filter": [], "types_filter": kinds}
        asking.ask(f"ListGroups {note}, {kinds}", ApiKey.LIST_GROUPS, wanted, 5, listed)

    def described(answer: Any) -> Any:
        answer["groups"].sort(key=lambda group: str(group["group_id"]))
        for group in answer["groups"]:
            group["members"] = len(group["members"])
        return answer

    classic = {"groups": groups, "include_authorized_operations": False}
    asking.ask_all(f"DescribeGroups {note}", ApiKey.DESCRIBE_GROUPS, classic, described, (5, 6))


def commit_body(
    group: str, topic: str, topic_id: uuid.UUID, member: str = "", epoch: int = -1, partition: int = 0, **given: Any
) -> dict[str, Any]:
    row = {"partition_index": partition, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": topic, "topic_id": topic_id, "partitions": [row]}]
    whose = {"generation_id_or_member_epoch": epoch, "member_id": member, "group_instance_id": None}
    return {"group_id": group, **whose, "topics": topics, **given}


def _commits(asking: Asking, topic: str, topic_id: uuid.UUID) -> None:
    group = f"{asking.prefix}commits"
    one, two = (Member(asking, group, name, [topic]) for name in ("one", "two"))

    def commit(name: str, member: str, epoch: int, versions: Sequence[int] = (8, 9, 10), **given: Any) -> None:
        body = commit_body(group, topic, topic_id, member, epoch, **given)
        asking.ask_all(f"OffsetCommit {name}", ApiKey.OFFSET_COMMIT, body, in_versions=versions)

    def fetch(name: str, member: str | None, epoch: int, versions: Sequence[int] = (8, 9, 10)) -> None:
        topics = [{"name": topic, "topic_id": topic_id, "partition_indexes": [0]}]
        groups = [{"group_id": group, "member_id": member, "member_epoch": epoch, "topics": topics}]
        body = {"groups": groups, "require_stable": True}
        asking.ask_all(f"OffsetFetch {name}", ApiKey.OFFSET_FETCH, body, in_versions=versions)

    commit("of no group, epoch 1", "m", 1)
    fetch("of no group, epoch 1", "m", 1)
    one.join("commits: one joins")
    one.own("commits: one owns")
    commit("of a member", "one", one.epoch)
    commit("of a later epoch", "one", one.epoch + 1)
    commit("of nobody", "nobody", one.epoch)
    commit("without member", "", -1)
    commit("of a member without epoch", "one", -1)
    commit("of an epoch without member", "", one.epoch)
    fetch("of a member", "one", one.epoch)
    fetch("of a later epoch", "one", one.epoch + 1)
    fetch("of nobody", "nobody", one.epoch)
    fetch("without member", None, -1)
    fetch("of an empty member", "", -1)
    fetch("of a member without epoch", "one", -1)
    first = one.epoch
    two.join("commits: two joins")
    one.beat("commits: one is to revoke")
    commit("while it revokes", "one", one.epoch)
    fetch("while it revokes", "one", one.epoch)
    one.own("commits: one has revoked")
    kept = next(iter(one.owned.values()), [0])
    lost = next(index for index in range(PARTITIONS) if index not in kept)
    commit("of the epoch before, kept", "one", first, partition=kept[0])
    commit("of the epoch before, revoked", "one", first, partition=lost)
    commit("of this epoch, kept", "one", one.epoch, partition=kept[0])
    commit("of this epoch, not its own", "one", one.epoch, partition=lost)
    fetch("of the epoch before", "one", first)
    two.own("commits: two gets the rest")
    two.own("commits: two owns")
    commit("of what it just got", "two", two.epoch, partition=lost)
    commit("of what it just got, epoch before", "two", first, partition=lost)
    rows = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    asking.ask("OffsetDelete of a subscribed topic", ApiKey.OFFSET_DELETE, {"group_id": group, "topics": rows}, 0)
    transactional = {"transactional_id": f"{asking.prefix}tx", "producer_id": 4_711, "producer_epoch": 0}
    body = {**commit_body(group, topic, topic_id, "one", one.epoch), **transactional, "generation_id": one.epoch}
    asking.ask_all("TxnOffsetCommit of a producer of nobody", ApiKey.TXN_OFFSET_COMMIT, body, in_versions=(3, 4))
    for name, member, versions in (("of a member", "one", (0, 4)), ("of nobody", "nobody", (4,))):
        beat = {"group_id": group, "generation_id": one.epoch, "member_id": member, "group_instance_id": None}
        asking.ask_all(f"classic Heartbeat {name}", ApiKey.HEARTBEAT, beat, in_versions=versions)
        leave = {"group_id": group, "members": [{"member_id": member, "group_instance_id": None, "reason": None}]}
        if member == "nobody":
            asking.ask(f"classic LeaveGroup {name}", ApiKey.LEAVE_GROUP, leave, 5)
    one.leave("commits: one leaves")
    two.leave("commits: two leaves")
    commit("without members", "", -1)
    commit("of one that has left", "one", one.epoch)
    fetch("of one that has left", "one", one.epoch)
    fetch("without members", None, -1)


def _static(asking: Asking, topic: str) -> None:
    group = f"{asking.prefix}static"
    one, again, third = (Member(asking, group, name, [topic]) for name in ("one", "again", "third"))
    one.join("static: join", instance_id="i")
    one.own("static: owns")
    again.join("static: join while it lives", instance_id="i")
    one.beat("static: another instance id", instance_id="j")
    one.beat("static: its instance id", instance_id="i")
    third.beat("static: another member with its instance id", instance_id="i")
    one.leave("static: gone for a while", -2, instance_id="i")
    one.beat("static: after it has gone")
    _tell(asking, "whose static member is away", group)
    again.join("static: comes back", instance_id="i")
    again.own("static: comes back and owns")
    one.beat("static: the former member", instance_id="i")
    one.leave("static: the former member leaves", -1, instance_id="i")
    _tell(asking, "whose static member is back", group)
    again.leave("static: -2 of an unknown instance id", -2, instance_id="k")
    again.leave("static: leaves for good", -1, instance_id="i")
    _tell(asking, "whose static member has left", group)


def _patterns(asking: Asking) -> None:
    group = f"{asking.prefix}patterns"
    one = Member(asking, group, "one", [])
    pattern = f"{asking.prefix}p-[ab]"
    for name in ("p-a", "p-b", "p-ab"):
        asking.create(f"{asking.prefix}{name}")
    joined = one.join("pattern: join", subscribed_topic_regex=pattern, subscribed_topic_names=[])
    if joined is None or joined.error_code is not ErrorCode.none:
        return

    def has_both() -> bool:
        body = heartbeat_body(group, "one", one.epoch, topic_partitions=_rows(one.owned))
        answer = asking.requests.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, body, 1)
        one.epoch = answer.member_epoch
        if answer.assignment is not None:
            one.owned = one.given = partitions_of(answer)
        return len(one.owned) == 2

    eventually(has_both)
    one.own("pattern: owns both topics")
    one.beat("pattern: the same again", subscribed_topic_regex=pattern)
    one.beat("pattern: none, and no topics", subscribed_topic_regex="")
    one.leave("pattern: leaves")


def _end(asking: Asking, topic: str) -> None:
    group = f"{asking.prefix}end"
    one = Member(asking, group, "one", [topic])
    one.join("end: join")
    asking.ask("DeleteGroups of members", ApiKey.DELETE_GROUPS, {"groups_names": [group]}, 2)
    one.leave("end: leave")
    asking.ask("DeleteGroups without members", ApiKey.DELETE_GROUPS, {"groups_names": [group]}, 2)
    _tell(asking, "that was deleted", group)
    _tell(asking, "without a name", "")
    _tell(asking, "of two", group, f"{asking.prefix}nothing")


def _classic_join(asking: Asking, name: str, group: str, member: str = "", **given: Any) -> Any:
    subscription = b"\0\1\0\0\0\1" + len(f"{asking.prefix}c").to_bytes(2, "big") + f"{asking.prefix}c".encode()
    body = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription + b"\xff\xff\xff\xff" + b"\0\0\0\0"}],
        **given,
    }

    def pick(answer: Any) -> Any:
        leads = answer["leader"] == answer["member_id"]
        return {**answer, "member_id": "an id", "leader": leads and "itself", "members": len(answer["members"])}

    return asking.ask(f"JoinGroup {name}", ApiKey.JOIN_GROUP, body, 4, pick)


def _classic_sync(asking: Asking, name: str, group: str, member: str, generation: int, *assigned: bytes) -> Any:
    rows = [{"member_id": member, "assignment": one} for one in assigned]
    body = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None}

    def pick(answer: Any) -> Any:
        return {**answer, "assignment": answer["assignment"] != "0 bytes"}

    return asking.ask(f"SyncGroup {name}", ApiKey.SYNC_GROUP, {**body, "assignments": rows}, 3, pick)


def _from_classic(asking: Asking, topic: str) -> None:
    """A consumer joins a group with a classic member; this one goes on, and is the last that stays."""
    group, other = f"{asking.prefix}upgraded", f"{asking.prefix}connect"
    member = _in_a_generation(asking, group)
    two = Member(asking, group, "two", [topic])
    two.join("upgrade: join")
    _tell(asking, "of both protocols", group)
    beat = {"group_id": group, "generation_id": 1, "member_id": member, "group_instance_id": None}
    asking.ask("classic Heartbeat in an upgraded group", ApiKey.HEARTBEAT, beat, 4)
    asking.ask("classic Heartbeat of another generation", ApiKey.HEARTBEAT, {**beat, "generation_id": 7}, 4)
    joined = _classic_join(asking, "of a member in an upgraded group", group, member)
    if joined is not None and joined.error_code is ErrorCode.none:
        _classic_sync(asking, "in an upgraded group, other generation", group, member, 77)
        _classic_sync(asking, "in an upgraded group", group, member, joined.generation_id)
        two.beat("upgrade: gets its part")
        two.own("upgrade: owns")
    _classic_join(asking, "of another protocol type", group, protocol_type="connect")
    _tell(asking, "of both protocols, stable", group)
    two.leave("upgrade: leaves")
    _tell(asking, "that is classic again", group)
    asking.ask("classic Heartbeat in a downgraded group", ApiKey.HEARTBEAT, {**beat, "generation_id": 2}, 4)
    _in_a_generation(asking, other, protocol_type="connect", protocols=[{"name": "x", "metadata": b""}])
    Member(asking, other, "two", [topic]).join("of a group of another protocol type")
    broken = f"{asking.prefix}broken"
    _in_a_generation(asking, broken, protocols=[{"name": "range", "metadata": b"\0"}])
    Member(asking, broken, "two", [topic]).join("of a group whose subscriptions cannot be read")


def _in_a_generation(asking: Asking, group: str, **given: Any) -> str:
    """A classic group with one member that has all partitions of the topic; gives its id."""
    first = _classic_join(asking, "of the first member", group, **given)
    member = str(first.member_id)
    joined = _classic_join(asking, "of the first member, with its id", group, member, **given)
    name = f"{asking.prefix}c".encode()
    indexes = b"".join(index.to_bytes(4, "big") for index in range(PARTITIONS))
    rows = b"\0\0\0\1" + len(name).to_bytes(2, "big") + name + PARTITIONS.to_bytes(4, "big") + indexes
    _classic_sync(asking, "of the first", group, member, joined.generation_id, b"\0\1" + rows + b"\xff\xff\xff\xff")
    return member


def _to_classic(asking: Asking, topic: str) -> None:
    """A classic member comes to a group without members, and to one with."""
    group = f"{asking.prefix}downgraded"
    one = Member(asking, group, "one", [topic])
    one.join("downgrade: join")
    one.own("downgrade: owns")
    first = _classic_join(asking, "of a classic member in a consumer group", group)
    if first is not None and first.error_code in (ErrorCode.none, ErrorCode.member_id_required):
        _classic_join(asking, "of a classic member, with its id", group, first.member_id)
    one.leave("downgrade: leaves")
    _tell(asking, "that only a classic member is in", group)
    empty = f"{asking.prefix}emptied"
    last = Member(asking, empty, "last", [topic])
    last.join("emptied: join")
    last.leave("emptied: leave")
    first = _classic_join(asking, "in a consumer group without members", empty)
    _tell(asking, "that was emptied and is classic", empty)
    last.join("emptied: join after a classic one")


def _settings(asking: Asking) -> None:
    group = f"{asking.prefix}configured"

    def describe(name: str, of: str, keys: Sequence[str] | None = None) -> None:
        def pick(answer: Any) -> Any:
            for result in answer["results"]:
                result["configs"] = [one for one in result["configs"] if not LEFT_OUT.match(one["name"])]
                result["configs"].sort(key=lambda one: str(one["name"]))
            return answer

        resources = [{"resource_type": GROUP_CONFIG, "resource_name": of, "configuration_keys": keys}]
        body = {"resources": resources, "include_synonyms": True, "include_documentation": False}
        asking.ask(f"DescribeConfigs group {name}", ApiKey.DESCRIBE_CONFIGS, body, 4, pick)

    def alter(name: str, key: str, value: str | None, of: str = group, operation: int = 0) -> None:
        configs = [{"name": key, "config_operation": operation, "value": value}]
        resources = [{"resource_type": GROUP_CONFIG, "resource_name": of, "configs": configs}]
        body = {"resources": resources, "validate_only": False}
        asking.ask(f"AlterConfigs group {name}", ApiKey.INCREMENTAL_ALTER_CONFIGS, body, 1)

    describe("that is not there", group)
    describe("without a name", "")
    for key, values in SETTINGS_TRIED.items():
        for value in values:
            alter(f"{key}={value}", key, value)
    alter("of an unknown key", "nope", "1")
    alter("of a key of topics", "cleanup.policy", "delete")
    alter("without a name", "consumer.session.timeout.ms", "50000", "")
    alter("append", "consumer.session.timeout.ms", "50000", operation=2)
    alter("a null value", "consumer.session.timeout.ms", None)
    alter("session", "consumer.session.timeout.ms", "50000")
    alter("interval", "consumer.heartbeat.interval.ms", "6000")

    def is_known(test: Callable[[str | None], bool]) -> Callable[[], bool]:
        def known() -> bool:
            keys = ["consumer.heartbeat.interval.ms"]
            resources = [{"resource_type": GROUP_CONFIG, "resource_name": group, "configuration_keys": keys}]
            body = {"resources": resources, "include_synonyms": False, "include_documentation": False}
            found = asking.requests.ask(ApiKey.DESCRIBE_CONFIGS, body, 4).results[0].configs
            return bool(found) and test(found[0].value)

        return known

    described = asking.requests.ask(
        ApiKey.DESCRIBE_CONFIGS,
        {
            "resources": [{"resource_type": GROUP_CONFIG, "resource_name": group, "configuration_keys": None}],
            "include_synonyms": False,
            "include_documentation": False,
        },
        4,
    )
    if described.results[0].error_code is not ErrorCode.none:
        return
    eventually(is_known(lambda value: value == "6000"))
    describe("that was set", group, ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "nope"])
    Member(asking, group, "one", [f"{asking.prefix}c"]).join("with settings of its own")
    alter("deleted", "consumer.heartbeat.interval.ms", None, operation=1)
    alter("deleted again", "consumer.heartbeat.interval.ms", None, operation=1)
    eventually(is_known(lambda value: value != "6000"))
    describe("that was unset", group, ["consumer.heartbeat.interval.ms"])
    asking.ask("ListConfigResources group", ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": [GROUP_CONFIG]}, 1, _ours)


def _ours(answer: Any) -> Any:
    ours = [one for one in answer["config_resources"] if str(one["resource_name"]).startswith("U")]
    return {**answer, "config_resources": ours}


LEFT_OUT = re.compile(r"streams\.|.*\.(assignment\.interval\.ms|assignor\.offload\.enable)$")
"""Settings of groups that are not served, and of when and where Kafka assigns."""

SETTINGS_TRIED: Mapping[str, Sequence[str]] = {
    "consumer.session.timeout.ms": ("44999", "60001", "nope", "-1", ""),
    "consumer.heartbeat.interval.ms": ("4999", "15001", "0"),
    "share.session.timeout.ms": ("44999", "60001", "45000"),
    "share.heartbeat.interval.ms": ("4999", "15001", "5000"),
    "share.record.lock.duration.ms": ("14999", "60001", "30000"),
    "share.auto.offset.reset": ("nope", "none", "earliest", "by_duration:PT1H", "by_duration:-PT1H", "by_duration:x"),
    "share.isolation.level": ("nope", "read_committed", "READ_COMMITTED", "read_uncommitted"),
    "share.delivery.count.limit": ("1", "2", "5", "10", "11"),
    "share.partition.max.record.locks": ("99", "2000", "4000", "10001"),
    "share.renew.acknowledge.enable": ("true", "maybe"),
    "streams.session.timeout.ms": ("45000",),
}
