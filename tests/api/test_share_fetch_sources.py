"""Which partitions of its session one ShareFetch reads, while others are not loaded, and how long it waits."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.share_fetch import _ShareFetch
from broker.config.group_config import GroupConfig
from broker.errors import BrokerError, ErrorCode
from broker.share.persister import SharePartitionKey
from broker.share.share_sessions import Asked, SessionKey, ShareSessions

ID = uuid.UUID(int=1)
TOPIC = SimpleNamespace(name="t", partitions=dict.fromkeys(range(4)))


def share_of(key: SharePartitionKey) -> Any:
    return SimpleNamespace(key=key, waiters=set(), partition=SimpleNamespace(waiters=set()))


class Partitions:
    """Partition 0 is loaded, 1 loads soon, 2 cannot be loaded, and the coordinator of 3 is silent."""

    def loaded(self, key: SharePartitionKey) -> Any:
        return share_of(key) if key.partition == 0 else None

    async def get(self, key: SharePartitionKey) -> Any:
        await asyncio.sleep(0)
        if key.partition == 2:
            raise BrokerError(ErrorCode.coordinator_not_available)
        if key.partition == 3:
            await asyncio.Event().wait()
        return share_of(key)


def fetch_of(*numbers: int, max_wait: int = 0) -> _ShareFetch:
    partitions: Any = Partitions()
    sessions = ShareSessions(partitions)
    session = sessions.open(SessionKey("g", "m"), {}, 1)
    asked: list[Asked] = [(ID, number) for number in numbers]
    sessions.update(session, asked, ())
    metadata = SimpleNamespace(topic_names={ID: "t"}, topic_by_id=lambda one: TOPIC, partition=lambda tp: tp)
    context: Any = SimpleNamespace(
        share=SimpleNamespace(partitions=partitions, sessions=sessions),
        group_configs=SimpleNamespace(of=lambda group_id: GroupConfig()),
        topics=SimpleNamespace(metadata=metadata),
        check=lambda *asked: None,
        allows=lambda *asked: True,
    )
    request: Any = SimpleNamespace(body=SimpleNamespace(share_session_epoch=0, max_wait=max_wait, min_bytes=1))
    return _ShareFetch(context, request, SimpleNamespace(), session)  # type: ignore[arg-type]


async def test_a_silent_coordinator_keeps_a_member_from_no_other_partition() -> None:
    fetch = fetch_of(3, 2, 1, 0)
    async with asyncio.timeout(5):
        shares = await fetch._shares()
    assert sorted(one.key.partition for one in shares) == [0, 1]
    assert {one[1]: result.code for one, result in fetch._errors.items()} == {2: ErrorCode.coordinator_not_available}


async def test_the_wait_for_records_begins_with_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when its acknowledgements are stored, which may take long."""
    loop = asyncio.get_running_loop()
    fetch, began = fetch_of(0, max_wait=1), loop.time()
    while loop.time() <= began + 0.001:
        await asyncio.sleep(0)
    reads: list[object] = []
    monkeypatch.setattr(fetch, "_read", reads.append)
    await fetch.read()
    assert len(reads) == 1
