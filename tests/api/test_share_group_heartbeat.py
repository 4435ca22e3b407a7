"""ShareGroupHeartbeat: the answer of a member whose share states are made meanwhile."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.share_group_heartbeat import handle
from broker.coordinator.modern_group_messages import HeartbeatReply, TopicIdPartition
from broker.errors import ErrorCode

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
    answer = await handle(context, request, SimpleNamespace(host="h"))  # type: ignore[arg-type]
    assert answer["member_epoch"] == 5
    topics = answer["assignment"]["topic_partitions"]
    assert [number for one in topics for number in one["partitions"]] == ([] if told is None else [told])
