"""Makes, alters and deletes the share states of a group's partitions, which are with the share coordinator (KIP-932).

The group coordinator first notes what is to be done, and last that it is done; between the two, the persister does it.
So nothing is forgotten if this broker dies: a state that is being made is made again, under the same epoch and before
anybody reads it, and a group whose states are being deleted still has them in its list. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from broker.background_tasks import BackgroundTasks
from broker.coordinator.group import Effects, Now, Waiter
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.coordinator.share_group_records import TopicShares
from broker.coordinator.share_group_state import ShareGroup, StatesReply
from broker.errors import BrokerError, raise_for
from broker.share.persister import Persister, SharePartitionKey, ShareState

T = TypeVar("T")

ASKED_AT_ONCE = 500
"""Partitions that the persister is asked about together: a topic may have 10,000."""

Event = Callable[[ShareGroup, Waiter, Now], Effects]


class ShareGroupStates:
    """The states of the share groups that this broker coordinates."""

    def __init__(self, groups: GroupCoordinator, persister: Persister) -> None:
        self._groups = groups
        self._persister = persister
        self._tasks = BackgroundTasks()
        self._making: dict[str, asyncio.Future[None]] = {}
        """Group id → the work that makes its missing states, one at a time."""

    async def close(self) -> None:
        await self._tasks.close()

    async def make(self, group_id: str, wait_s: float) -> bool:
        """Make the states that the group misses. Returns whether some were made in at most `wait_s`."""
        group = self._groups.share_group(group_id)
        if not group.states.initializing:
            return False
        if group_id not in self._making:
            work = self._tasks.begin(f"making share states of group {group_id}", self._make(group))
            self._making[group_id] = work
            work.add_done_callback(lambda done: self._making.pop(group_id, None))
        done, _ = await asyncio.wait([self._making[group_id]], timeout=wait_s)
        return bool(done)

    async def _make(self, group: ShareGroup) -> None:
        epoch, states = group.epoch, group.states
        wanted, known = _partitions(states.initializing), _partitions(states.initialized)
        # Whoever altered the offsets of one that is known has died in the middle: it has a state, old or new, which to
        # make again would lose.
        results = await self._each(group.group_id, wanted - known, partial(self._initialize, epoch, {}))
        made = (wanted & known) | {one for one, result in results.items() if result is None}
        if made:
            await self._change(
                group.group_id, lambda group, waiter, now: group.initialized(frozenset(made), waiter, now)
            )

    async def alter(
        self, group_id: str, offsets: Mapping[TopicIdPartition, int], names: Mapping[UUID, str]
    ) -> dict[TopicIdPartition, BrokerError | None]:
        """Begin anew at these offsets; `names` are of the topics. Makes the group if there is none.

        Raises BrokerError: `non_empty_group`, `group_id_not_found` for another kind of group.
        """
        topics = {
            topic_id: TopicShares(name, frozenset(number for of, number in offsets if of == topic_id))
            for topic_id, name in names.items()
        }
        begun = await self._change(
            group_id, lambda group, waiter, now: group.reinitialize(topics, waiter, now), may_create=True
        )
        results = await self._each(group_id, offsets, partial(self._initialize, begun.epoch, offsets))
        made = frozenset(one for one, result in results.items() if result is None)
        await self._change(group_id, lambda group, waiter, now: group.initialized(made, waiter, now))
        return results

    async def delete(self, group_id: str, topic_ids: Iterable[UUID] | None = None) -> dict[UUID, BrokerError | None]:
        """Delete the states of these topics, or of all; those the group has none of are not in the result.

        Raises BrokerError: `non_empty_group`, `group_id_not_found`.
        """
        states = self._groups.share_group(group_id).states
        known: dict[UUID, frozenset[int]] = dict.fromkeys(states.deleting, frozenset())
        for topics in (states.initializing, states.initialized):
            for topic_id, shares in topics.items():
                known[topic_id] = known.get(topic_id, frozenset()) | shares.partitions
        wanted = frozenset(known if topic_ids is None else known.keys() & set(topic_ids))
        await self._change(group_id, lambda group, waiter, now: group.forget(wanted, waiter, now, deleted=False))
        partitions = [TopicIdPartition(one, number) for one in wanted for number in known[one]]
        results = await self._each(group_id, partitions, self._persister.delete)
        failed = {one.topic_id: result for one, result in results.items() if result is not None}
        gone = wanted - failed.keys()
        await self._change(group_id, lambda group, waiter, now: group.forget(gone, waiter, now, deleted=True))
        return {one: failed.get(one) for one in wanted}

    async def summaries(
        self, group_id: str, partitions: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, ShareState | BrokerError]:
        """How far the group is in each of the partitions."""
        return await self._each(group_id, partitions, self._persister.summary)

    def _initialize(
        self, epoch: int, offsets: Mapping[TopicIdPartition, int], key: SharePartitionKey
    ) -> Awaitable[None]:
        return self._persister.initialize(key, epoch, offsets.get(TopicIdPartition(key.topic_id, key.partition), -1))

    async def _each(
        self, group_id: str, partitions: Iterable[TopicIdPartition], ask: Callable[[SharePartitionKey], Awaitable[T]]
    ) -> dict[TopicIdPartition, T | BrokerError]:
        """The persister's answer for each, or its refusal."""

        turns = asyncio.Semaphore(ASKED_AT_ONCE)

        async def answer(one: TopicIdPartition) -> T | BrokerError:
            async with turns:
                try:
                    return await ask(SharePartitionKey(group_id, *one))
                except BrokerError as error:
                    return error

        asked = list(partitions)
        return dict(zip(asked, await asyncio.gather(*map(answer, asked)), strict=True))

    async def _change(self, group_id: str, event: Event, **options: Any) -> StatesReply:
        """Raises BrokerError if the change is refused."""
        reply: StatesReply = await self._groups.change_share_group(group_id, event, **options)
        raise_for(reply.error, reply.error_message)
        return reply


def _partitions(topics: Mapping[UUID, TopicShares]) -> set[TopicIdPartition]:
    return {TopicIdPartition(topic_id, number) for topic_id, shares in topics.items() for number in shares.partitions}
