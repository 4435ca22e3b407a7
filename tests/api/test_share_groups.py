"""Share groups on the wire: heartbeats, descriptions, lists, offsets, deletions, settings."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.modern_groups import share_group_heartbeat
from broker.coordinator.modern_group_messages import HeartbeatReply, TopicIdPartition
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.described_config import ResourceType
from tests.api.test_group_offsets import await_coordinator
from tests.support.raw_requests import Requests
from tests.support.share_members import RELEASE, RENEW, ShareMember, configure
from tests.support.waiting import eventually

OK = ErrorCode.none


@pytest.fixture
def group(ask: Requests, topic: str) -> str:
    """A share group that begins at the first record of `topic`, which has two partitions."""
    ask.create(topic, 2)
    configure(ask, f"share-{topic}", share_auto_offset_reset="earliest")
    return f"share-{topic}"


@pytest.fixture
def member(ask: Requests, topic: str, group: str) -> ShareMember:
    return ShareMember(ask, group, topic).join()


def assigned(answer: Any) -> dict[uuid.UUID, list[int]]:
    return {one.topic_id: list(one.partitions) for one in answer.assignment.topic_partitions}


def offsets(ask: Requests, group: str, topic: str | None = None, partitions: tuple[int, ...] = (0, 1)) -> Any:
    """(start offset, lag) of each partition, or the error of the group."""
    topics = None if topic is None else [{"topic_name": topic, "partitions": partitions}]
    (found,) = ask.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": [{"group_id": group, "topics": topics}]}).groups
    if found.error_code is not OK:
        return found.error_code
    return {p.partition_index: (p.start_offset, p.lag) for one in found.topics for p in one.partitions}


def alter(ask: Requests, group: str, topic: str, new: dict[int, int]) -> Any:
    partitions = [{"partition_index": number, "start_offset": offset} for number, offset in new.items()]
    body = {"group_id": group, "topics": [{"topic_name": topic, "partitions": partitions}]}
    answer = ask.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, body)
    if answer.error_code is not OK:
        return answer.error_code
    return {p.partition_index: p.error_code for one in answer.responses for p in one.partitions}


def delete_offsets(ask: Requests, group: str, *topics: str) -> Any:
    body = {"group_id": group, "topics": [{"topic_name": name} for name in topics]}
    answer = ask.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, body)
    return answer.error_code if answer.error_code is not OK else [one.error_code for one in answer.responses]


def delete(ask: Requests, group: str) -> ErrorCode:
    return ErrorCode(ask.ask(ApiKey.DELETE_GROUPS, {"groups_names": [group]}).results[0].error_code)


def listed(ask: Requests, group: str, **filters: Any) -> list[tuple[str, str, str]]:
    answer = ask.ask(ApiKey.LIST_GROUPS, {"states_filter": (), "types_filter": (), **filters})
    return [(one.protocol_type, one.group_state, one.group_type) for one in answer.groups if one.group_id == group]


class TestHeartbeat:
    def test_the_first_answer_has_all_partitions(self, ask: Requests, topic: str, group: str) -> None:
        answer = ShareMember(ask, group, topic).join().heartbeat(epoch=0)
        assert assigned(answer) == {ask.named(topic)["topic_id"]: [0, 1]}
        assert answer.heartbeat_interval.total_seconds() == 5

    def test_members_come_and_go(self, ask: Requests, topic: str, group: str, member: ShareMember) -> None:
        other = ShareMember(ask, group, topic).join()
        one, two = (assigned(each.heartbeat(epoch=0))[member.topic_id] for each in (member, other))
        assert sorted(one + two) == [0, 1]
        assert other.heartbeat(epoch=-1).member_epoch == -1
        assert assigned(member.heartbeat()) == {member.topic_id: [0, 1]}
        assert other.heartbeat(epoch=5).error_code is ErrorCode.unknown_member_id

    def test_refusals(self, ask: Requests, topic: str, group: str, member: ShareMember) -> None:
        assert member.heartbeat(epoch=-2).error_code is ErrorCode.invalid_request
        assert member.heartbeat(epoch=0, topics=[]).error_code is ErrorCode.invalid_request
        assert member.heartbeat(epoch=77).error_code is ErrorCode.fenced_member_epoch
        stranger = ShareMember(ask, f"{group}-other", topic)
        assert stranger.heartbeat(epoch=3).error_code is ErrorCode.group_id_not_found
        stranger.member_id = "x" * 37
        refused = stranger.heartbeat()
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.invalid_request,
            "Invalid member id in the request.",
        )

    def test_the_name_of_a_group_of_another_kind_is_refused(self, ask: Requests, topic: str, group: str) -> None:
        ShareMember(ask, group, topic).join()
        commit = {
            "group_id": f"classic-{topic}",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{**ask.named(topic), "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
        }
        await_coordinator(ask, f"classic-{topic}")
        answer = ask.ask(ApiKey.OFFSET_COMMIT, commit)
        assert answer.topics[0].partitions[0].error_code is OK
        refused = ShareMember(ask, f"classic-{topic}", topic).heartbeat()
        assert refused.error_code is ErrorCode.group_id_not_found
        assert "is not a share group" in refused.error_message
        join = {
            "group_id": group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        assert ask.ask(ApiKey.JOIN_GROUP, join).error_code is ErrorCode.inconsistent_group_protocol


class TestDescriptions:
    def test_a_group_and_its_members(self, ask: Requests, topic: str, group: str, member: ShareMember) -> None:
        (found,) = ask.ask(
            ApiKey.SHARE_GROUP_DESCRIBE, {"group_ids": [group], "include_authorized_operations": False}
        ).groups
        assert (found.error_code, found.group_state, found.assignor_name) == (OK, "Stable", "simple")
        assert found.group_epoch == found.assignment_epoch == member.epoch
        (one,) = found.members
        assert (one.member_id, one.client_id, one.subscribed_topic_names) == (member.member_id, "tests", (topic,))
        assert [(t.topic_name, t.partitions) for t in one.assignment.topic_partitions] == [(topic, (0, 1))]
        assert listed(ask, group) == listed(ask, group, types_filter=["Share"]) == [("share", "Stable", "share")]
        assert listed(ask, group, types_filter=["classic"]) == []

    def test_what_is_no_share_group(self, ask: Requests, topic: str, group: str, member: ShareMember) -> None:
        (found,) = ask.ask(
            ApiKey.SHARE_GROUP_DESCRIBE, {"group_ids": [f"no-{group}"], "include_authorized_operations": False}
        ).groups
        assert (found.error_code, found.error_message) == (
            ErrorCode.group_id_not_found,
            f"Group no-{group} not found.",
        )


class TestOffsets:
    def test_are_described_altered_and_deleted(self, ask: Requests, topic: str, group: str) -> None:
        ask.put(topic, *(b"%d" % number for number in range(10)))
        member = ShareMember(ask, group, topic).join()
        assert offsets(ask, group) == {0: (-1, -1), 1: (-1, -1)}
        assert member.take(max_records=10) == [(0, 9, 1)]
        assert member.accept(0, 3) is OK
        assert offsets(ask, group) == offsets(ask, group, topic) == {0: (4, 6), 1: (-1, -1)}
        assert alter(ask, group, topic, {0: 2}) is ErrorCode.non_empty_group
        assert delete_offsets(ask, group, topic) is ErrorCode.non_empty_group
        assert delete(ask, group) is ErrorCode.non_empty_group
        member.fetch(epoch=-1)
        member.heartbeat(epoch=-1)
        assert alter(ask, group, topic, {0: 8, 7: 1}) == {0: OK, 7: ErrorCode.unknown_topic_or_partition}
        assert offsets(ask, group, topic)[0][0] == 8
        again = ShareMember(ask, group, topic).join()
        assert again.take() == [(8, 9, 1)]
        again.fetch(epoch=-1)
        again.heartbeat(epoch=-1)
        assert delete_offsets(ask, group, topic, f"no-{topic}") == [OK, ErrorCode.unknown_topic_or_partition]
        body = {"group_id": group, "topics": [{"topic_name": topic}, {"topic_name": f"no-{topic}"}]}
        said = [one.error_message for one in ask.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, body).responses]
        assert said == ["There is no offset information to delete.", f"there is no topic no-{topic}"]
        assert offsets(ask, group) == {}
        assert ShareMember(ask, group, topic).join().take() == [(0, 9, 1)]

    def test_of_a_group_that_is_made_for_them(self, ask: Requests, topic: str, group: str) -> None:
        ask.put(topic, *(b"%d" % number for number in range(10)))
        ShareMember(ask, group, topic).join()
        assert alter(ask, f"new-{group}", topic, {0: 7}) == {0: OK}
        assert ShareMember(ask, f"new-{group}", topic).join().take() == [(7, 9, 1)]
        assert offsets(ask, f"no-{group}") is ErrorCode.group_id_not_found
        assert offsets(ask, f"no-{group}", topic, (0,)) == {0: (-1, -1)}

    def test_an_offset_below_0_is_refused_and_changes_nothing(self, ask: Requests, topic: str, group: str) -> None:
        assert alter(ask, group, topic, {0: 7}) == {0: OK}
        assert alter(ask, group, topic, {0: -2, 1: -(2**63)}) == dict.fromkeys((0, 1), ErrorCode.invalid_request)
        assert ShareMember(ask, group, topic).join().heartbeat().error_code is OK
        assert offsets(ask, group) == {0: (7, 0), 1: (-1, -1)}

    def test_a_deleted_group_begins_anew(self, ask: Requests, topic: str, group: str) -> None:
        ask.put(topic, b"0", b"1")
        member = ShareMember(ask, group, topic).join()
        assert member.take() == [(0, 1, 1)]
        assert member.accept(0, 0) is OK
        member.fetch(epoch=-1)
        member.heartbeat(epoch=-1)
        assert delete(ask, group) is OK
        assert listed(ask, group) == []
        assert ShareMember(ask, group, topic).join().take() == [(0, 1, 1)]

    def test_of_deleted_topics_are_forgotten(self, ask: Requests, topic: str, group: str) -> None:
        member = ShareMember(ask, group, topic).join()
        assert offsets(ask, group) == {0: (-1, -1), 1: (-1, -1)}
        ask.delete(topic)
        eventually(lambda: offsets(ask, group) == {})
        ask.create(topic)
        ask.put(topic, b"new")
        again = ShareMember(ask, group, topic).join()
        assert again.topic_id != member.topic_id
        assert again.take() == [(0, 0, 1)]


class TestSettings:
    def test_a_changed_one_counts_at_once(self, ask: Requests, topic: str, group: str) -> None:
        ask.put(topic, b"0")
        member = ShareMember(ask, group, topic).join()
        assert member.take() == [(0, 0, 1)]
        assert member.accept(0, 0, RELEASE) is OK
        configure(ask, group, share_delivery_count_limit="2")
        assert member.take() == [(0, 0, 2)]
        assert member.accept(0, 0, RELEASE) is OK
        assert member.take() == []

    def test_of_a_group_count_for_its_members(self, ask: Requests, topic: str, group: str) -> None:
        configure(ask, group, share_heartbeat_interval_ms="6000", share_delivery_count_limit="2")
        configure(ask, group, share_record_lock_duration_ms="15000")
        ask.put(topic, b"0")
        member = ShareMember(ask, group, topic).join()
        assert member.heartbeat().heartbeat_interval.total_seconds() == 6
        answer = member.fetch()
        assert answer.acquisition_lock_timeout.total_seconds() == 15
        assert member.accept(0, 0, RELEASE) is OK
        assert member.take() == [(0, 0, 2)]
        assert member.accept(0, 0, RELEASE) is OK
        assert member.take() == [], "it was delivered twice"

    def test_renewals_can_be_refused(self, ask: Requests, topic: str, group: str) -> None:
        configure(ask, group, share_renew_acknowledge_enable="false")
        ask.put(topic, b"0")
        member = ShareMember(ask, group, topic).join()
        assert member.take() == [(0, 0, 1)]
        (found,) = member.acknowledge({0: [(0, 0, [RENEW])]}, is_renew_ack=True).responses[0].partitions
        assert ErrorCode(found.error_code) is ErrorCode.invalid_record_state
        assert "share.renew.acknowledge.enable" in found.error_message
        assert member.accept(0, 0) is OK

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("share.record.lock.duration.ms", "1000", "group.share.min.record.lock.duration.ms=15000"),
            ("share.delivery.count.limit", "11", "group.share.max.delivery.count.limit=10"),
            ("share.auto.offset.reset", "by_duration:1H", "must be latest, earliest, or by_duration"),
            ("share.isolation.level", "none", "read_committed, read_uncommitted"),
        ],
    )
    def test_a_bad_value_is_refused(self, ask: Requests, group: str, name: str, value: str, text: str) -> None:
        configs = [{"name": name, "config_operation": 0, "value": value}]
        resources = [{"resource_type": ResourceType.GROUP, "resource_name": group, "configs": configs}]
        (answer,) = ask.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": resources, "validate_only": False}
        ).responses
        assert answer.error_code is ErrorCode.invalid_config
        assert text in answer.error_message


OLD, NEW = (frozenset({TopicIdPartition(uuid.UUID(int=1), number)}) for number in range(2))


@pytest.mark.parametrize(("second", "told"), [(None, 0), (NEW, 1), (frozenset(), None)])
async def test_an_assignment_of_the_first_try_is_told(second: Any, told: int | None) -> None:
    """Else the member would never hear of it: the group believes that it has it."""
    replies = iter(
        HeartbeatReply(ErrorCode.none, None, "m", epoch, 1000, assigned) for epoch, assigned in ((4, OLD), (5, second))
    )

    async def change_share_group(group_id: str, event: Any, *, may_create: bool) -> HeartbeatReply:
        return next(replies)

    async def make(group_id: str, wait_s: float) -> bool:
        return True

    context: Any = SimpleNamespace(
        check=lambda *asked: None,
        topics=SimpleNamespace(metadata=SimpleNamespace(topics={})),
        groups=SimpleNamespace(change_share_group=change_share_group),
        share=SimpleNamespace(states=SimpleNamespace(make=make)),
    )
    body = SimpleNamespace(group_id="g", member_id="m", member_epoch=3, rack_id=None, subscribed_topic_names=None)
    request: Any = SimpleNamespace(body=body, client_id="c")
    answer = await share_group_heartbeat(context, request, SimpleNamespace(host="h"))  # type: ignore[arg-type]
    assert answer["member_epoch"] == 5
    topics = answer["assignment"]["topic_partitions"]
    assert [number for one in topics for number in one["partitions"]] == ([] if told is None else [told])
