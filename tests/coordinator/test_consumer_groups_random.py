"""Random events of a running coordinator of consumer groups: lost answers, slow and failed appends, hand-overs, topics
that grow, members that leave and time out. No partition ever has two owners, and every group that is left alone becomes
stable."""

from __future__ import annotations

import asyncio
import random

import pytest

from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.modern_group_messages import HeartbeatReply, HeartbeatRequest, Partitions
from broker.errors import BrokerError, ErrorCode
from tests.coordinator.test_consumer_groups import topic
from tests.support.consumer_groups import snapshot
from tests.support.coordinators import Groups, settle
from tests.support.randomness import seeded

STARTS_AGAIN = {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found}
RETRIES = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
}


class RandomMember:
    """A client: it sends everything again after an answer that it did not get."""

    def __init__(self, groups: Groups, number: int, dice: random.Random) -> None:
        self.groups, self.member_id, self._dice = groups, f"m{number}", dice
        self.is_busy = False
        self.begin_again()

    def begin_again(self) -> None:
        self.epoch = 0
        self.owned: Partitions = frozenset()
        self.is_full = True
        self._names = frozenset(self._dice.choice((["t"], ["t", "u"])))

    async def beat(self, *, may_lose: bool = True) -> None:
        request = HeartbeatRequest("g", self.member_id, self.epoch, owned=self.owned)
        if self.is_full:
            request = HeartbeatRequest(
                "g",
                self.member_id,
                self.epoch,
                rebalance_timeout_ms=10_000,
                topic_names=self._names,
                owned=self.owned,
            )
        self.is_busy = True
        try:
            reply = await self.groups.coordinator.consumer_heartbeat(request)
        finally:
            self.is_busy = False
        self._take(reply, is_lost=may_lose and self._dice.random() < 0.1)

    def _take(self, reply: HeartbeatReply, *, is_lost: bool) -> None:
        if is_lost or reply.error in RETRIES:
            self.is_full = True
        elif reply.error in STARTS_AGAIN:
            self.begin_again()
        else:
            assert reply.error is ErrorCode.none, reply
            self.epoch, self.is_full = reply.member_epoch, False
            self.owned = self.owned if reply.assignment is None else reply.assignment

    async def leave(self) -> None:
        epoch, member_id = self.epoch, self.member_id
        self.begin_again()
        if epoch > 0:
            await self.groups.coordinator.consumer_heartbeat(HeartbeatRequest("g", member_id, -1))


def check_owners(groups: Groups) -> None:
    for group in groups.coordinator.all_groups():
        assert isinstance(group, ConsumerGroup)
        members = [one.current for one in group.membership.members.values()]
        owned = [tp for one in members for tp in (*one.assigned, *one.revoking)]
        assert len(owned) == len(set(owned))


async def something_happens(
    groups: Groups, members: list[RandomMember], dice: random.Random, running: list[asyncio.Future[None]]
) -> None:
    idle = [member for member in members if not member.is_busy]
    store, coordinator = groups.store, groups.coordinator
    match dice.choices(range(7), [60, 10, 18, 3, 3, 3, 3])[0]:
        case 0 if idle:
            running.append(asyncio.ensure_future(dice.choice(idle).beat()))
        case 1:
            store.gate.clear()
        case 2:
            store.gate.set()
            store.fail_with = BrokerError(ErrorCode.not_enough_replicas) if dice.random() < 0.1 else None
        case 3:
            groups.topics["t"] = topic("t", len(groups.topics["t"].partitions) + 1)
            coordinator.topics_changed(["t"])
        case 4:
            groups.advance(dice.choice((1_000, 12_000)))
        case 5:
            coordinator.unload(coordinator.partition_for("g"))
            store.gate.set()
            await settle()
            await coordinator.load(coordinator.partition_for("g"))
        case 6 if idle:
            running.append(asyncio.ensure_future(dice.choice(idle).leave()))
    for _ in range(dice.randrange(5)):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
async def test_no_partition_has_two_owners_and_a_quiet_group_becomes_stable(seed: int) -> None:
    dice = seeded(seed)
    groups = Groups(topics={"t": topic("t", dice.randint(1, 7)), "u": topic("u", 2)})
    await groups.load()
    members = [RandomMember(groups, number, dice) for number in range(5)]
    running: list[asyncio.Future[None]] = []
    for _ in range(120):
        await something_happens(groups, members, dice, running)
        check_owners(groups)
    groups.store.gate.set()
    groups.store.fail_with = None
    await asyncio.gather(*running)
    coordinator = groups.coordinator
    for _ in range(60):
        await settle()
        for member in members:
            await member.beat(may_lose=False)
        found = coordinator.consumer_group("g")
        if found.state_name == "Stable" and found.member_count == len(members):
            break
    assert found.state_name == "Stable"
    owned = [tp for member in members for tp in member.owned]
    assert len(owned) == len(set(owned)), "clients that agree with the coordinator"
    coordinator.unload(coordinator.partition_for("g"))
    await settle()
    await coordinator.load(coordinator.partition_for("g"))
    assert snapshot(coordinator.consumer_group("g")) == snapshot(found)
    await coordinator.close()
