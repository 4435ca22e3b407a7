"""Produce 13, OffsetCommit 10 and OffsetFetch 10, which call topics by ids: known, unknown, deleted, made again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking
from tests.compat.kafka_answers.produce_requests import batch
from tests.support.raw_requests import NO_ID, Requests
from tests.support.waiting import eventually

UNKNOWN = uuid.UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)
Wanted = Sequence[tuple[uuid.UUID, int]]


def ask_all(asking: Asking) -> None:
    name, group = f"{asking.prefix}i", f"{asking.prefix}ids"
    topic_id = asking.create(name, 2)
    cases: dict[str, Wanted] = {
        "known": [(topic_id, 0)],
        "unknown": [(UNKNOWN, 0)],
        "of zeros": [(NO_ID, 0)],
        "unknown partition": [(topic_id, 7)],
        "known and unknown": [(topic_id, 1), (UNKNOWN, 0)],
    }
    for what, wanted in cases.items():
        _ask(asking, what, group, wanted)
    _ask(asking, "no topics", group, [])
    _fetch(asking, "all", group, None)
    _acks_0(asking, topic_id)
    asking.requests.delete(name)
    eventually(lambda: int(asking.requests.metadata(name, version=12).topics[0].error_code) != 0)
    _ask(asking, "deleted", group, [(topic_id, 0)])
    new = asking.create(name, 2)
    _ask(asking, "deleted and made again", group, [(topic_id, 0)])
    _ask(asking, "new", group, [(new, 0)])


def _ask(asking: Asking, what: str, group: str, wanted: Wanted) -> None:
    rows = [{"topic_id": id_, "partition_data": [{"index": i, "records": batch(b"v")}]} for id_, i in wanted]
    body = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": rows}

    def produced(answer: Any) -> Any:
        for topic in answer["responses"]:
            topic["partition_responses"].sort(key=lambda one: one["index"])
        answer["responses"].sort(key=lambda topic: topic["partition_responses"][0]["error_code"])
        return answer

    asking.ask(f"Produce {what}", ApiKey.PRODUCE, body, 13, produced)
    place = {"committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": ""}
    commits = [{"topic_id": id_, "partitions": [{"partition_index": index, **place}]} for id_, index in wanted]
    whose = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}

    def committed(answer: Any) -> Any:
        return sorted(answer["topics"], key=lambda topic: topic["partitions"][0]["error_code"])

    asking.ask(f"OffsetCommit {what}", ApiKey.OFFSET_COMMIT, {**whose, "topics": commits}, 10, committed)
    _fetch(asking, what, group, wanted)


def _fetch(asking: Asking, what: str, group: str, wanted: Wanted | None) -> None:
    topics = None if wanted is None else [{"topic_id": id_, "partition_indexes": [index]} for id_, index in wanted]
    groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}]

    def pick(answer: Any) -> Any:
        for one in answer["groups"]:
            for topic in one["topics"]:
                topic["partitions"].sort(key=lambda row: row["partition_index"])
            one["topics"].sort(key=lambda topic: topic["partitions"][0]["error_code"])
        return answer

    asking.ask(f"OffsetFetch {what}", ApiKey.OFFSET_FETCH, {"groups": groups, "require_stable": False}, 10, pick)


def _acks_0(asking: Asking, topic_id: uuid.UUID) -> None:
    """There is no answer: what is written tells, and an error closes the connection."""
    for what, id_ in (("known", topic_id), ("unknown", UNKNOWN)):
        rows = [{"topic_id": id_, "partition_data": [{"index": 1, "records": batch(b"v")}]}]
        with Requests(asking.bootstrap, 10) as own:
            own.send(ApiKey.PRODUCE, {"transactional_id": None, "acks": 0, "timeout": 1_000, "topic_data": rows}, 13)
            if what == "known":
                own.metadata(version=12)
            asking.note(f"Produce acks 0 {what}", "goes on" if what == "known" else own.is_hung_up())
