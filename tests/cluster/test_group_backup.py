"""Groups with many offsets are asked for in answers of a bounded size, and each once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from broker.cluster.group_backup import GroupBackup
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition


class Peer:
    """A broker that coordinates groups: name → how many offsets it has."""

    def __init__(self, groups: dict[str, int]) -> None:
        self.groups = groups
        self.sizes: list[int] = []

    async def request(self, api: ApiKey, version: int, fields: Any) -> Any:
        if api is ApiKey.LIST_GROUPS:
            return SimpleNamespace(error_code=ErrorCode.none, groups=[SimpleNamespace(group_id=g) for g in self.groups])
        asked = [one["group_id"] for one in fields["groups"]]
        self.sizes.append(sum(self.groups[name] for name in asked))
        answers = [
            SimpleNamespace(group_id=name, error_code=ErrorCode.none, topics=_topics(self.groups[name]))
            for name in asked
        ]
        return SimpleNamespace(groups=answers)

    def close(self) -> None:
        pass


def _topics(count: int) -> list[Any]:
    partitions = [
        SimpleNamespace(partition_index=index, committed_offset=index, committed_leader_epoch=-1, metadata="")
        for index in range(count)
    ]
    return [SimpleNamespace(name="t", partitions=partitions)]


def read(groups: dict[str, int]) -> tuple[Any, Peer]:
    peer = Peer(groups)
    topics: Any = SimpleNamespace(metadata=SimpleNamespace(brokers={1: SimpleNamespace(broker_id=1)}))
    backup = GroupBackup(topics, lambda _: cast(Any, peer), {})
    return asyncio.run(backup.read()), peer


def test_small_groups_are_asked_for_together() -> None:
    found, peer = read({f"g{n}": 1 for n in range(1000)})
    assert len(found) == 1000
    assert len(peer.sizes) < 20


def test_an_answer_is_bounded() -> None:
    found, peer = read({f"g{n:02}": 1500 for n in range(30)})
    assert {len(offsets) for offsets in found.values()} == {1500}
    assert found["g07"][TopicPartition("t", 9)].offset == 9
    assert max(peer.sizes) <= 3000
