"""The assignors by name, with what each has members say when they join.

Called by group.py. The names are those that members of a group agree on in JoinGroup, and the values of
`partition.assignment.strategy`. The formats are those of Kafka's assignors, so that a group may be mixed.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from broker.client.assignors import Assignment, Member, assign_range, assign_round_robin
from broker.client.sticky_assignor import assign_cooperative_sticky, assign_sticky
from broker.protocol.consumer_protocol import Subscription
from broker.protocol.topic_partition import TopicPartition

__all__ = ["ASSIGNORS", "Assignor", "is_cooperative", "member_of"]

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Assignor(NamedTuple):
    """How to share out, and what to send along as user data: (partitions had, generation) → bytes."""

    assign: Callable[[Sequence[Member], Mapping[str, int]], Assignment]
    user_data: Callable[[Sequence[TopicPartition], int], bytes | None] = lambda had, generation: None
    cooperative: bool = False
    """Members keep what they have while they rebalance (KIP-429)."""


def member_of(
    member_id: str, subscription: Subscription, group_instance_id: str | None = None, *, had_in_user_data: bool
) -> Member:
    """What an assignor needs to know of a member; with `had_in_user_data`, Kafka's format of "sticky" is looked for."""
    owned, generation = subscription.owned, subscription.generation_id
    data = subscription.user_data
    if had_in_user_data and data:
        owned, generation = _read_sticky(data)
    elif generation < 0 and data and len(data) == _INT32.size:
        generation = _INT32.unpack(data)[0]
    return Member(member_id, subscription.topics, group_instance_id, owned, generation)


def is_cooperative(strategies: Iterable[str]) -> bool:
    """Whether a member with these strategies keeps its partitions while rebalancing: only when every one allows."""
    return all(ASSIGNORS[name].cooperative for name in strategies)


def _write_sticky(had: Sequence[TopicPartition], generation: int) -> bytes | None:
    """`StickyAssignorUserData` version 1, which has no version in front: [topic [partition]] generation."""
    if not had:
        return None
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in sorted(had):
        topics[tp.topic].append(tp.partition)
    parts = [_INT32.pack(len(topics))]
    for topic, indexes in topics.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)]
    return b"".join((*parts, _INT32.pack(generation)))


def _read_sticky(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Version 1, or version 0 without a generation. What cannot be read is nothing: the member then had nothing."""
    had: list[TopicPartition] = []
    try:
        (topics,), at = _INT32.unpack_from(data), _INT32.size
        for _ in range(topics):
            length = _INT16.unpack_from(data, at)[0]
            at += _INT16.size
            topic = str(data[at : at + length], "utf-8")
            count = _INT32.unpack_from(data, at + length)[0]
            at += length + _INT32.size
            if length < 0 or not 0 <= count <= (len(data) - at) // _INT32.size:
                return (), -1
            had += (TopicPartition(topic, index) for index in struct.unpack_from(f">{count}i", data, at))
            at += count * _INT32.size
        generation = _INT32.unpack_from(data, at)[0] if at < len(data) else -1
    except (struct.error, UnicodeDecodeError):
        return (), -1
    return tuple(had), generation


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": Assignor(assign_range),
    "roundrobin": Assignor(assign_round_robin),
    "sticky": Assignor(assign_sticky, _write_sticky),
    "cooperative-sticky": Assignor(
        assign_cooperative_sticky, lambda had, generation: _INT32.pack(generation), cooperative=True
    ),
}
