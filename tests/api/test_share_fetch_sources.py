"""Which partitions of its session one ShareFetch reads, while others are not loaded."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

from broker.api.share_fetch import _ShareFetch
from broker.config.group_config import GroupConfig
from broker.errors import BrokerError, ErrorCode
from broker.share.persister import SharePartitionKey
from broker.share.share_sessions import Asked, SessionKey, ShareSessions

ID = uuid.UUID(int=1)
TOPIC = SimpleNamespace(name="t", partitions=dict.fromkeys(range(4)))


class Partitions:
    """Partition 0 is loaded, 1 loads soon, 2 cannot be loaded, and the coordinator of 3 is silent."""

    def __init__(self) -> None:
        self.share = SimpleNamespace(is_fenced=False)

    def loaded(self, key: SharePartitionKey) -> Any:
        return self.share if key.partition == 0 else None

    async def get(self, key: SharePartitionKey) -> Any:
        await asyncio.sleep(0)
        if key.partition == 2:
            raise BrokerError(ErrorCode.coordinator_not_available)
        if key.partition == 3:
            await asyncio.Event().wait()
        return self.share


async def test_a_silent_coordinator_keeps_a_member_from_no_other_partition() -> None:
    partitions: Any = Partitions()
    sessions = ShareSessions(partitions)
    session = sessions.open(SessionKey("g", "m"), {}, 1)
    asked: list[Asked] = [(ID, number) for number in (3, 2, 1, 0)]
    sessions.update(session, asked, ())
    context: Any = SimpleNamespace(
        share=SimpleNamespace(partitions=partitions, sessions=sessions),
        group_configs=SimpleNamespace(of=lambda group_id: GroupConfig()),
        topics=SimpleNamespace(
            metadata=SimpleNamespace(topic_names={ID: "t"}, topic_by_id=lambda one: TOPIC, partition=lambda tp: tp),
            partition=lambda tp: tp,
        ),
        check=lambda *asked: None,
        allows=lambda *asked: True,
    )
    request: Any = SimpleNamespace(body=SimpleNamespace(share_session_epoch=0))
    fetch = _ShareFetch(context, request, SimpleNamespace(), session, {})  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        sources = await fetch._sources()
    assert sorted(one.asked[1] for one in sources) == [0, 1]
    assert {one[1]: result.error for one, result in fetch._errors.items()} == {2: ErrorCode.coordinator_not_available}
