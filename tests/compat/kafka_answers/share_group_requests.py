"""Share groups (KIP-932): heartbeats and descriptions, sessions of fetches, records that are acquired, accepted,
released, rejected and renewed, and the offsets of a group, read, set and deleted by an administrator.

A topic of these requests has three batches, of 2, 3 and 1 records. A member that joins waits for its
partitions: Kafka assigns them only when their state is made.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking
from tests.compat.kafka_answers.consumer_group_requests import GROUP_CONFIG, commit_body, counted, join_body
from tests.support.waiting import eventually

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
ONE, TWO, NOBODY = (f"AAAAAAAAAAAAAAAAAAAA{end}" for end in ("AQ", "Ag", "Aw"))
"""Members: a share fetch takes no id that is not a UUID in Kafka's base64."""
Batches = Sequence[tuple[int, int, Sequence[int]]]
"""(first offset, last offset, acknowledge types)"""


def ask_all(asking: Asking) -> None:
    topic = f"{asking.prefix}s"
    topic_id = asking.create(topic, 2)
    _heartbeats(asking, topic)
    _descriptions(asking, topic, topic_id)
    _sessions(asking)
    _acknowledgements(asking)
    _deliveries(asking)
    _offsets(asking, topic)


def _filled(asking: Asking, name: str) -> uuid.UUID:
    """A topic of one partition with 2, 3 and 1 records."""
    topic_id = asking.create(f"{asking.prefix}{name}")
    for values in ((b"a", b"b"), (b"c", b"d", b"e"), (b"f",)):
        asking.requests.put(f"{asking.prefix}{name}", *values)
    return topic_id


def heartbeat_body(group: str, member: str, epoch: int, *topics: str, **given: Any) -> dict[str, Any]:
    names = list(topics) if epoch == 0 else None
    asked = {"group_id": group, "member_id": member, "member_epoch": epoch, "rack_id": None}
    return {**asked, "subscribed_topic_names": names, **given}


def _heartbeat(asking: Asking, name: str, body: Mapping[str, Any]) -> Any:
    return asking.ask(f"ShareGroupHeartbeat {name}", ApiKey.SHARE_GROUP_HEARTBEAT, body, 1, counted)


def _joined(asking: Asking, name: str, group: str, member: str, *topics: str) -> int:
    """A member joins, and has partitions; gives its epoch."""
    answers: list[Any] = []

    def is_assigned() -> bool:
        body = heartbeat_body(group, member, answers[-1].member_epoch if answers else 0, *topics)
        answers.append(asking.requests.ask(ApiKey.SHARE_GROUP_HEARTBEAT, body, 1))
        assignment = answers[-1].assignment
        return assignment is not None and bool(assignment.topic_partitions)

    eventually(is_assigned)
    asking.note(f"ShareGroupHeartbeat {name}", counted(asking.neutral(answers[-1])), 1)
    return int(answers[-1].member_epoch)


def _heartbeats(asking: Asking, topic: str) -> None:
    group, other = f"{asking.prefix}beats", f"{asking.prefix}other"
    _heartbeat(asking, "of no group", heartbeat_body("", ONE, 0, topic))
    _heartbeat(asking, "of a blank group", heartbeat_body(" ", ONE, 0, topic))
    _heartbeat(asking, "without a member id", heartbeat_body(group, "", 0, topic))
    _heartbeat(asking, "of a short member id", heartbeat_body(f"{group}-short", "m", 0, topic))
    _heartbeat(asking, "of a long member id", heartbeat_body(group, "m" * 37, 0, topic))
    _heartbeat(asking, "epoch -2", heartbeat_body(group, ONE, -2))
    _heartbeat(asking, "an empty rack", heartbeat_body(group, ONE, 0, topic, rack_id=""))
    _heartbeat(asking, "without topics", heartbeat_body(group, ONE, 0, subscribed_topic_names=None))
    _heartbeat(asking, "of no topics", heartbeat_body(f"{group}-none", ONE, 0))
    _heartbeat(asking, "of a group that is not there", heartbeat_body(group, ONE, 4))
    _heartbeat(asking, "leaving a group that is not there", heartbeat_body(group, ONE, -1))
    _heartbeat(asking, "of a topic that is not there", heartbeat_body(f"{group}-no", ONE, 0, f"{asking.prefix}none"))
    epoch = _joined(asking, "one joins", group, ONE, topic)
    _heartbeat(asking, "one again", heartbeat_body(group, ONE, epoch))
    _heartbeat(asking, "one joins again", heartbeat_body(group, ONE, 0, topic))
    _heartbeat(asking, "of a later epoch", heartbeat_body(group, ONE, epoch + 5))
    _heartbeat(asking, "of an unknown member", heartbeat_body(group, NOBODY, epoch))
    _heartbeat(asking, "leaving of an unknown member", heartbeat_body(group, NOBODY, -1))
    _joined(asking, "two joins", group, TWO, topic)
    _heartbeat(asking, "one after two has joined", heartbeat_body(group, ONE, epoch))
    _heartbeat(asking, "one of the epoch before", heartbeat_body(group, ONE, epoch))
    _heartbeat(asking, "one leaves", heartbeat_body(group, ONE, -1))
    _heartbeat(asking, "one after it has left", heartbeat_body(group, ONE, epoch))
    asking.ask("DeleteGroups of a member", ApiKey.DELETE_GROUPS, {"groups_names": [group]}, 2)
    asking.ask(
        "ConsumerGroupHeartbeat in a share group",
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        join_body(group, ONE, topic),
        1,
        counted,
    )
    asking.ask(
        "ConsumerGroupHeartbeat other", ApiKey.CONSUMER_GROUP_HEARTBEAT, join_body(other, ONE, topic), 1, counted
    )
    _heartbeat(asking, "in a consumer group", heartbeat_body(other, TWO, 0, topic))
    asking.ask("OffsetCommit to a share group", ApiKey.OFFSET_COMMIT, commit_body(group, topic, uuid.uuid4()), 9)
    body = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    asking.ask("JoinGroup in a share group", ApiKey.JOIN_GROUP, body, 3)
    fetched = {"groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}]}
    asking.ask("OffsetFetch of a share group", ApiKey.OFFSET_FETCH, {**fetched, "require_stable": False}, 9)
    partitions = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    asking.ask("OffsetDelete of a share group", ApiKey.OFFSET_DELETE, {"group_id": group, "topics": partitions}, 0)
    _joined(asking, "one joins anew", group, ONE, topic)
    asking.ask("OffsetDelete of a member", ApiKey.OFFSET_DELETE, {"group_id": group, "topics": partitions}, 0)
    _heartbeat(asking, "one leaves anew", heartbeat_body(group, ONE, -1))


def _descriptions(asking: Asking, topic: str, topic_id: uuid.UUID) -> None:
    group = f"{asking.prefix}told"
    _joined(asking, "told: one joins", group, ONE, topic)

    def pick(answer: Any) -> Any:
        answer["groups"].sort(key=lambda one: str(one["group_id"]))
        for one in answer["groups"]:
            one["members"].sort(key=lambda member: str(member["member_id"]))
            for member in one["members"]:
                member["assignment"] = sorted(len(of["partitions"]) for of in member["assignment"]["topic_partitions"])
        return answer

    def ask(name: str, *groups: str) -> None:
        body = {"group_ids": groups, "include_authorized_operations": True}
        asking.ask(f"ShareGroupDescribe {name}", ApiKey.SHARE_GROUP_DESCRIBE, body, 1, pick)

    ask("of one", group)
    ask("of nothing", f"{asking.prefix}nothing")
    ask("without a name", "")
    ask("of a consumer group", f"{asking.prefix}other")
    ask("of two", group, f"{asking.prefix}nothing")
    for kinds in ([], ["share"], ["Consumer"]):

        def listed(answer: Any) -> Any:
            return {**answer, "groups": [one for one in answer["groups"] if one["group_id"] == "Utold"]}

        wanted = {"states_filter": [], "types_filter": kinds}
        asking.ask(f"ListGroups with a share group, {kinds}", ApiKey.LIST_GROUPS, wanted, 5, listed)
    classic = {"groups": [group], "include_authorized_operations": False}
    asking.ask_all("DescribeGroups of a share group", ApiKey.DESCRIBE_GROUPS, classic, in_versions=(5, 6))
    _heartbeat(asking, "told: one leaves", heartbeat_body(group, ONE, -1))
    ask("of one without members", group)
    asking.ask("DeleteGroups without members", ApiKey.DELETE_GROUPS, {"groups_names": [group]}, 2)
    ask("of one that was deleted", group)


def fetch_body(
    group: str | None,
    member: str | None,
    epoch: int,
    *topics: tuple[uuid.UUID, int, Batches],
    forget: Sequence[tuple[uuid.UUID, int]] = (),
    **given: Any,
) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "share_session_epoch": epoch,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": _rows(topics),
        "forgotten_topics_data": [{"topic_id": topic_id, "partitions": [index]} for topic_id, index in forget],
        **given,
    }


def _rows(topics: Sequence[tuple[uuid.UUID, int, Batches]]) -> list[dict[str, Any]]:
    rows = []
    for topic_id, index, batches in topics:
        found = [{"first_offset": a, "last_offset": b, "acknowledge_types": list(types)} for a, b, types in batches]
        partition = {"partition_index": index, "acknowledgement_batches": found}
        rows.append({"topic_id": topic_id, "partitions": [partition]})
    return rows


class _Session:
    """A share session of a member, whose epoch rises by one with each request."""

    def __init__(self, asking: Asking, group: str, member: str, *topics: str) -> None:
        self.asking, self.group, self.member, self.epoch = asking, group, member, 0
        _joined(asking, f"joins {group.removeprefix(asking.prefix)}", group, member, *topics)

    def fetch(self, name: str, *topics: tuple[uuid.UUID, int, Batches], version: int = 2, **given: Any) -> Any:
        body = fetch_body(self.group, self.member, self.epoch, *topics, **given)
        answer = self.asking.ask(f"ShareFetch {name}", ApiKey.SHARE_FETCH, body, version, _acquired)
        self._next(answer)
        return answer

    def acknowledge(self, name: str, *topics: tuple[uuid.UUID, int, Batches], version: int = 2, **given: Any) -> Any:
        whose = {"group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch}
        body = {**whose, "is_renew_ack": False, "topics": _rows(topics), **given}
        answer = self.asking.ask(f"ShareAcknowledge {name}", ApiKey.SHARE_ACKNOWLEDGE, body, version)
        self._next(answer)
        return answer

    def _next(self, answer: Any) -> None:
        if answer is not None and answer.error_code is ErrorCode.none:
            self.epoch += 1

    def get(self, topic_id: uuid.UUID, name: str) -> None:
        """Fetch until something is acquired: the first fetch of a partition may only begin to read its state."""

        def acquires() -> bool:
            body = fetch_body(self.group, self.member, self.epoch, (topic_id, 0, ()), max_wait=200)
            answer = self.asking.requests.ask(ApiKey.SHARE_FETCH, body, 2)
            self._next(answer)
            found = [one.acquired_records for topic in answer.responses for one in topic.partitions]
            if not any(found):
                return False
            self.asking.note(f"ShareFetch {name}", _acquired(self.asking.neutral(answer)), 2)
            return True

        eventually(acquires)


def _acquired(answer: Any) -> Any:
    """An answer without its records, whose bytes may be of more than what was acquired."""
    for topic in answer["responses"]:
        for one in topic["partitions"]:
            one["records"] = bool(one["records"]) and one["records"] != "0 bytes"
    return answer


def _set(asking: Asking, group: str, **configs: str) -> None:
    rows = [{"name": name.replace("_", "."), "config_operation": 0, "value": value} for name, value in configs.items()]
    resources = [{"resource_type": GROUP_CONFIG, "resource_name": group, "configs": rows}]
    answer = asking.requests.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": resources, "validate_only": False}, 1)
    assert answer.responses[0].error_code is ErrorCode.none, answer


def _sessions(asking: Asking) -> None:
    topic_id = _filled(asking, "sessions")
    group = f"{asking.prefix}sessions"
    _set(asking, group, share_auto_offset_reset="earliest")
    here: tuple[uuid.UUID, int, Batches] = (topic_id, 0, ())

    def ask(name: str, body: Mapping[str, Any], versions: Sequence[int] = (1, 2)) -> None:
        asking.ask_all(f"ShareFetch {name}", ApiKey.SHARE_FETCH, body, _acquired, versions)

    ask("without a group", fetch_body(None, ONE, 0, here))
    ask("of an empty group", fetch_body("", ONE, 0, here))
    ask("without a member", fetch_body(group, None, 0, here))
    ask("of an empty member", fetch_body(group, "", 0, here))
    ask("of a session that is not there", fetch_body(group, ONE, 3, here))
    ask("closing a session that is not there", fetch_body(group, ONE, -1, here))
    ask("epoch -2", fetch_body(group, ONE, -2, here))
    ask("opening with acknowledgements", fetch_body(group, NOBODY, 0, (topic_id, 0, [(0, 1, [ACCEPT])])))
    one = _Session(asking, group, ONE, f"{asking.prefix}sessions")
    one.get(topic_id, "sessions: first records")
    one.fetch("sessions: nothing more")
    ask("of a member that has not joined", fetch_body(group, NOBODY, 0, here), [2])
    one.fetch("sessions: an unknown partition", (topic_id, 7, ()))
    one.fetch("sessions: forget both", forget=[(topic_id, 7), (topic_id, 0)])
    one.fetch("sessions: what was forgotten again", here)
    ask("of an epoch too high", fetch_body(group, ONE, one.epoch + 3, here), [2])
    ask("of an epoch before", fetch_body(group, ONE, max(one.epoch - 1, 1), here), [2])
    whose = {"group_id": group, "member_id": ONE, "is_renew_ack": False}
    rows = _rows([(topic_id, 0, [(0, 1, [ACCEPT])])])
    for name, given in (
        ("without a group", {"group_id": None, "share_session_epoch": one.epoch}),
        ("without a member", {"member_id": None, "share_session_epoch": one.epoch}),
        ("opening a session", {"share_session_epoch": 0}),
        ("of an epoch too high", {"share_session_epoch": one.epoch + 3}),
        ("of a session that is not there", {"member_id": TWO, "share_session_epoch": 1}),
    ):
        body = {**whose, "topics": rows, **given}
        asking.ask_all(f"ShareAcknowledge {name}", ApiKey.SHARE_ACKNOWLEDGE, body, in_versions=(1, 2))
    one.fetch("sessions: min bytes with a renewal", here, is_renew_ack=True, min_bytes=1)
    ask("sessions: closes", fetch_body(group, ONE, -1), [2])
    ask("sessions: after it is closed", fetch_body(group, ONE, one.epoch, here), [2])
    ask("sessions: an unknown id", fetch_body(group, ONE, 0, (uuid.uuid4(), 0, ())), [2])


def _acknowledgements(asking: Asking) -> None:
    topic_id = _filled(asking, "acks")
    group = f"{asking.prefix}acks"
    _set(asking, group, share_auto_offset_reset="earliest")
    one = _Session(asking, group, ONE, f"{asking.prefix}acks")
    one.get(topic_id, "acks: first records")

    def ack(name: str, *batches: tuple[int, int, Sequence[int]], **given: Any) -> None:
        one.acknowledge(f"acks: {name}", (topic_id, 0, batches), **given)

    ack("type 5", (0, 1, [5]))
    ack("type -1", (0, 1, [-1]))
    ack("no types", (0, 1, []))
    ack("more types than offsets", (0, 1, [ACCEPT] * 3))
    ack("fewer types than offsets", (2, 4, [ACCEPT, ACCEPT]))
    ack("first after last", (1, 0, [ACCEPT]))
    ack("a negative offset", (-1, 0, [ACCEPT]))
    ack("overlapping batches", (0, 1, [ACCEPT]), (1, 2, [ACCEPT]))
    ack("batches out of order", (2, 2, [ACCEPT]), (0, 0, [ACCEPT]))
    ack("offsets that it does not have", (6, 9, [ACCEPT]))
    ack("renewal without the flag", (0, 1, [RENEW]))
    ack("the flag without a renewal", (0, 1, [ACCEPT]), is_renew_ack=True)
    ack("renewal in version 1", (0, 1, [RENEW]), version=1)
    ack("renewal", (0, 1, [RENEW]), is_renew_ack=True)
    ack("accept", (0, 1, [ACCEPT]))
    ack("accept again", (0, 1, [ACCEPT]))
    ack("one of each", (2, 4, [ACCEPT, RELEASE, REJECT]))
    ack("what was rejected", (4, 4, [ACCEPT]))
    ack("what was released", (3, 3, [ACCEPT]))
    ack("a gap", (5, 5, [GAP]))
    one.acknowledge("acks: of an unknown id", (uuid.uuid4(), 0, [(0, 0, [ACCEPT])]))
    one.acknowledge("acks: of an unknown partition", (topic_id, 7, [(0, 0, [ACCEPT])]))
    one.fetch("acks: what was released comes again")
    one.fetch("acks: accept with a fetch", (topic_id, 0, [(3, 3, [ACCEPT])]))
    one.fetch("acks: a bad type with a fetch", (topic_id, 0, [(5, 5, [9])]))
    one.acknowledge("acks: nothing")
    one.epoch = -1
    one.acknowledge("acks: closes")
    _told_offsets(asking, "acks: at the end", group, f"{asking.prefix}acks")


def _deliveries(asking: Asking) -> None:
    topic_id = _filled(asking, "deliveries")
    group = f"{asking.prefix}deliveries"
    _set(asking, group, share_auto_offset_reset="earliest")
    one, two = (_Session(asking, group, member, f"{asking.prefix}deliveries") for member in (ONE, TWO))
    one.get(topic_id, "deliveries: one has all")
    two.fetch("deliveries: two gets nothing", (topic_id, 0, ()))
    two.acknowledge("deliveries: two accepts what one has", (topic_id, 0, [(0, 1, [ACCEPT])]))
    one.acknowledge("deliveries: one releases", (topic_id, 0, [(0, 5, [RELEASE])]))
    for name, given in (("batches", {}), ("exactly", {"share_acquire_mode": 1}), ("in ones", {"batch_size": 1})):
        most = {"max_records": 1, "batch_size": 1, **given}
        if name == "in ones":
            most["max_records"] = 500
        answer = two.fetch(f"deliveries: at most one record, {name}", **most)
        two.acknowledge(f"deliveries: {name}, released", (topic_id, 0, _got(answer, RELEASE)))
    _release_always(asking, two, topic_id)
    asking.requests.put(f"{asking.prefix}deliveries", b"g", b"h")
    two.fetch("deliveries: what is new", max_wait=5_000, min_bytes=1)
    two.epoch = -1
    two.fetch("deliveries: closes and releases")
    one.fetch("deliveries: one gets what two held", max_wait=5_000, min_bytes=1)
    _told_offsets(asking, "deliveries: at the end", group, f"{asking.prefix}deliveries")


def _got(answer: Any, kind: int) -> Batches:
    """An acknowledgement of all that an answer acquired."""
    if answer is None:
        return []
    rows = [row for topic in answer.responses for one in topic.partitions for row in one.acquired_records]
    return [(row.first_offset, row.last_offset, [kind]) for row in rows]


def _release_always(asking: Asking, session: _Session, topic_id: uuid.UUID) -> None:
    """How many times each record is delivered at most. Kafka gives what was released often in ever smaller pieces."""
    counts: dict[str, int] = {}
    quiet = 0
    while quiet < 3:
        body = fetch_body(session.group, session.member, session.epoch, max_wait=50)
        answer = asking.requests.ask(ApiKey.SHARE_FETCH, body, 2)
        rows = [row for topic in answer.responses for one in topic.partitions for row in one.acquired_records]
        for row in rows:
            for offset in range(row.first_offset, row.last_offset + 1):
                counts[str(offset)] = row.delivery_count
        quiet = 0 if rows else quiet + 1
        session.epoch += 1
        whose = {"group_id": session.group, "member_id": session.member, "share_session_epoch": session.epoch}
        rows = _rows([(topic_id, 0, _got(answer, RELEASE))])
        asking.requests.ask(ApiKey.SHARE_ACKNOWLEDGE, {**whose, "is_renew_ack": False, "topics": rows}, 2)
        session.epoch += 1
    asking.note("deliveries: counts of what is always released", dict(sorted(counts.items())))


def _told_offsets(asking: Asking, name: str, group: str, topic: str | None) -> None:
    """Of partition 0. (A partition that is not there takes Kafka half a minute.)"""
    topics = None if topic is None else [{"topic_name": topic, "partitions": [0]}]
    body = {"groups": [{"group_id": group, "topics": topics}]}
    asking.ask_all(f"DescribeShareGroupOffsets {name}", ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, body, in_versions=(0, 1))


def _offsets(asking: Asking, topic: str) -> None:
    group, topic_id = f"{asking.prefix}offsets", _filled(asking, "offsets")
    name = f"{asking.prefix}offsets"
    other = f"{asking.prefix}other"

    def alter(what: str, of: str, of_topic: str, index: int, offset: int) -> None:
        row = {"partition_index": index, "start_offset": offset}
        body = {"group_id": of, "topics": [{"topic_name": of_topic, "partitions": [row]}]}
        asking.ask(f"AlterShareGroupOffsets {what}", ApiKey.ALTER_SHARE_GROUP_OFFSETS, body, 0)

    def delete(what: str, of: str, *topics: str) -> None:
        body = {"group_id": of, "topics": [{"topic_name": one} for one in topics]}
        asking.ask(f"DeleteShareGroupOffsets {what}", ApiKey.DELETE_SHARE_GROUP_OFFSETS, body, 0, ordered)

    def ordered(answer: Any) -> Any:
        answer["responses"].sort(key=lambda one: str(one["topic_name"]))
        return answer

    _told_offsets(asking, "of a group that is not there", group, name)
    _told_offsets(asking, "without a group", "", name)
    _told_offsets(asking, "of a consumer group", other, name)
    alter("of a group that is not there", f"{group}-made", name, 0, 3)
    alter("without a group", "", name, 0, 3)
    alter("of a consumer group", other, name, 0, 3)
    delete("of a group that is not there", f"{group}-none", name)
    delete("of a consumer group", other, name)
    _set(asking, group, share_auto_offset_reset="earliest")
    one = _Session(asking, group, ONE, name)
    one.get(topic_id, "offsets: first records")
    one.acknowledge("offsets: accepts two", (topic_id, 0, [(0, 1, [ACCEPT])]))
    _told_offsets(asking, "of one partition", group, name)
    _told_offsets(asking, "of all topics", group, None)
    _told_offsets(asking, "of an unknown topic", group, "nope-y")
    _told_offsets(asking, "of a topic that it does not read", group, topic)
    alter("of members", group, name, 0, 3)
    delete("of members", group, name)
    _heartbeat(asking, "offsets: leaves", heartbeat_body(group, ONE, -1))
    alter("without members", group, name, 0, 3)
    _told_offsets(asking, "that was set", group, name)
    alter("of an unknown partition", group, name, 7, 3)
    alter("of an unknown topic", group, "nope-y", 0, 3)
    alter("of another topic", group, topic, 0, 0)
    alter("behind the end", group, name, 0, 99)
    _told_offsets(asking, "that was set behind the end", group, name)
    alter("negative", group, name, 0, -1)
    delete("of an unknown topic", group, "nope-y")
    delete("of both topics", group, name, topic)
    delete("again", group, name)
    _told_offsets(asking, "that was deleted", group, name)
