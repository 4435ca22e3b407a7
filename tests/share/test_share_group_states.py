"""Making and altering the share states of a group: what an interrupted change leaves, and how much goes on at once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from broker.config.setting_groups import GroupSettings
from broker.coordinator.group import Effects, Now, Waiter
from broker.coordinator.modern_group_messages import HeartbeatRequest, TopicIdPartition
from broker.coordinator.share_group_state import ShareGroup
from broker.errors import BrokerError, ErrorCode
from broker.replica.cluster_metadata import PartitionInfo, Topic
from broker.share.persister import SharePartitionKey
from broker.share.share_group_states import ASKED_AT_ONCE, ShareGroupStates

A = uuid.UUID(int=1)
NOW = Now(0.0, 1)


class Groups:
    """A group coordinator of one share group, whose appends end at once."""

    def __init__(self) -> None:
        self.group = ShareGroup("g", GroupSettings())

    def share_group(self, group_id: str) -> ShareGroup:
        return self.group

    async def change_share_group(
        self, group_id: str, event: Callable[[ShareGroup, Waiter, Now], Effects], *, may_create: bool = False
    ) -> Any:
        waiter = object()
        effects = event(self.group, waiter, NOW)
        while effects.stores:
            (store,) = effects.stores
            effects = self.group.stored(store, ErrorCode.none, NOW)
        return next(answer for one, answer in effects.replies if one is waiter)


class Persister:
    """Notes what is initialized, or fails."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int, int]] = []
        self.fails = False
        self.asked = self.most_asked = 0

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        self.asked += 1
        self.most_asked = max(self.most_asked, self.asked)
        await asyncio.sleep(0)
        self.asked -= 1
        if self.fails:
            raise BrokerError(ErrorCode.coordinator_not_available)
        self.begun.append((key.partition, state_epoch, start_offset))


class World:
    def __init__(self, partitions: int) -> None:
        self.groups, self.persister = Groups(), Persister()
        self.states = ShareGroupStates(self.groups, self.persister)  # type: ignore[arg-type]
        self.topics = {"a": Topic("a", A, dict.fromkeys(range(partitions), PartitionInfo(0, 0, (0,), (0,))))}

    async def beat(self, epoch: int) -> None:
        request = HeartbeatRequest("g", "m", epoch, topic_names=frozenset(["a"]))
        await self.groups.change_share_group("g", lambda group, w, now: group.heartbeat(request, self.topics, w, now))


@pytest.mark.parametrize("fails", [True, False])
async def test_an_interrupted_alteration_does_not_begin_anew_at_the_reset(*, fails: bool) -> None:
    """Neither one that the share coordinator refused, nor one that it has and whose group coordinator died."""
    world = World(2)
    await world.beat(0)
    assert await world.states.make("g", 1)
    await world.beat(-1)
    world.persister.fails = fails
    if fails:
        results = await world.states.alter("g", {TopicIdPartition(A, 0): 7}, {A: "a"})
        assert [str(error) for error in results.values() if error is not None]
    else:
        group = world.groups.group
        shares = group.states.initialized[A]._replace(partitions=frozenset([0]))
        await world.groups.change_share_group("g", lambda group, w, now: group.reinitialize({A: shares}, w, now))
    world.persister.fails = False
    world.persister.begun.clear()
    await world.beat(0)
    assert await world.states.make("g", 1)
    assert world.persister.begun == []
    assert world.groups.group.states.initializing == {}
    assert world.groups.group.states.initialized[A].partitions == {0, 1}


async def test_many_states_are_made_in_turn() -> None:
    world = World(2 * ASKED_AT_ONCE + 1)
    await world.beat(0)
    assert await world.states.make("g", 10)
    assert len(world.persister.begun) == 2 * ASKED_AT_ONCE + 1
    assert world.persister.most_asked == ASKED_AT_ONCE
