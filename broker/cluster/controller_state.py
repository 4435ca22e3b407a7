"""Who should lead each partition: what the controller writes, decided from what is. Pure.

The controller calls `next_state` for every partition that an event may concern, and for all of them when it is elected.
It compares what ZooKeeper says with what should be, so an event that was missed or came twice does no harm. A broker
that stops or starts calls `state_without` or `state_at_start` for its own partitions. Whoever writes a state does it by
compare-and-set on its znode, and every new leader begins a new leader epoch. Rules of Kafka's
`PartitionStateMachine` and KIP-455:

- A partition without a live leader gets the first live replica, in the order of its assignment, that is in the ISR.
- Without one it has no leader, and keeps its ISR: those are the replicas that have all committed records. A topic with
  `unclean.leader.election.enable` gets the first live replica all the same. Records may be lost then.
- A broker that is not alive leaves every ISR that has another live member.
- A reassignment adds replicas first. When all new ones are in the ISR, the others leave, and the partition gets another
  leader if its leader leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

__all__ = ["NO_LEADER", "Election", "PartitionView", "next_state", "state_at_start", "state_without"]

NO_LEADER = -1


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as ZooKeeper has it. `leader_epoch` is -1 while it has no state."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment that is in progress."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


@dataclasses.dataclass(frozen=True, slots=True)
class Election:
    """The state that a partition should have, and why."""

    view: PartitionView
    reason: str
    unclean: bool = False
    """Whether the new leader was not in the ISR."""


def next_state(
    now: PartitionView, live: Collection[int], *, unclean_allowed: bool = False, prefer: bool = False
) -> Election | None:
    """The state to write for a partition, or None if it is as it should be.

    `live`: brokers that are registered and not suspected to be dead. `prefer`: the preferred replica, which is the
    first of the assignment, shall lead if it is alive and in the ISR.
    """
    if now.leader_epoch < 0:
        return _first_state(now, live)
    if _is_reassigned(now, live):
        return _completed(now, live)
    isr = tuple(replica for replica in now.isr if replica in live)
    if now.leader in live and now.leader in now.replicas:
        preferred = now.target[0]
        if prefer and now.leader != preferred and preferred in isr:
            return Election(_led_by(now, preferred, isr), f"broker {preferred} is the preferred leader")
        gone = [replica for replica in now.isr if replica not in live]
        if gone:
            return Election(dataclasses.replace(now, isr=isr), f"{_brokers(gone)} not alive")
        return None
    return _elected(now, live, isr, unclean_allowed)


def state_without(now: PartitionView, broker: int, live: Collection[int]) -> Election | None:
    """The state to write before `broker` stops; None where it plays no part, or nobody can take its place.

    It leaves the ISR if that has another live member. If it leads, the first of those leads after it.
    """
    if broker not in now.isr:
        return None
    rest = tuple(replica for replica in now.isr if replica != broker)
    leader = next((replica for replica in now.replicas if replica in rest and replica in live), NO_LEADER)
    if leader == NO_LEADER:
        return None
    if now.leader != broker:
        return Election(dataclasses.replace(now, isr=rest), f"broker {broker} stops")
    return Election(_led_by(now, leader, rest), f"broker {broker} stops")


def state_at_start(now: PartitionView, broker: int, *, may_have_lost: bool) -> Election | None:
    """The state to write before `broker` registers, or None where nothing changes.

    `may_have_lost`: its machine went down without a clean stop, so the end of its logs may be gone with the page cache.
    Then it leaves each ISR that has another member, alive or not: that one has all committed records. Where it is no
    member, the same state is written again: the leader must not let it join by a position from before. The only member
    of an ISR has to lead all the same. A leader that starts begins a new leader epoch, by which clients notice what was
    lost (KIP-320).
    """
    if broker not in now.isr:
        if not may_have_lost or broker not in now.replicas:
            return None
        return Election(now, f"broker {broker} starts and may have lost records")
    rest = tuple(replica for replica in now.isr if replica != broker)
    if may_have_lost and rest:
        reason = f"broker {broker} starts and may have lost records"
        if now.leader != broker:
            return Election(dataclasses.replace(now, isr=rest), reason)
        return Election(_led_by(now, NO_LEADER, rest), reason)
    if now.leader != broker and rest:
        return None
    return Election(_led_by(now, broker, now.isr), f"its leader, broker {broker}, starts")


def _first_state(now: PartitionView, live: Collection[int]) -> Election | None:
    alive = tuple(replica for replica in now.replicas if replica in live)
    if not alive:
        return None
    state = dataclasses.replace(now, leader=alive[0], leader_epoch=0, isr=alive)
    return Election(state, "the partition is new")


def _elected(now: PartitionView, live: Collection[int], isr: tuple[int, ...], unclean_allowed: bool) -> Election | None:
    why = f"broker {now.leader} is not alive" if now.leader != NO_LEADER else "it has no leader"
    leader = next((replica for replica in now.replicas if replica in isr), NO_LEADER)
    if leader != NO_LEADER:
        return Election(_led_by(now, leader, isr), why)
    if unclean_allowed:
        leader = next((replica for replica in now.replicas if replica in live), NO_LEADER)
        if leader != NO_LEADER:
            text = f"{why}, and no in-sync replica is: an unclean election, records may be lost"
            return Election(_led_by(now, leader, (leader,)), text, unclean=True)
    if now.leader == NO_LEADER:
        return None
    return Election(_led_by(now, NO_LEADER, now.isr), f"{why}, and no in-sync replica is")


def _is_reassigned(now: PartitionView, live: Collection[int]) -> bool:
    if not now.adding and not now.removing:
        return False
    return all(replica in now.isr and replica in live for replica in now.target)


def _completed(now: PartitionView, live: Collection[int]) -> Election | None:
    target = now.target
    isr = tuple(replica for replica in now.isr if replica in target and replica in live)
    leader = now.leader if now.leader in target and now.leader in live else target[0]
    view = PartitionView(target, leader, now.leader_epoch + 1, isr)
    return Election(view, f"its reassignment to brokers {list(target)} is complete")


def _led_by(now: PartitionView, leader: int, isr: tuple[int, ...]) -> PartitionView:
    return dataclasses.replace(now, leader=leader, leader_epoch=now.leader_epoch + 1, isr=isr)


def _brokers(ids: Sequence[int]) -> str:
    return f"broker {ids[0]} is" if len(ids) == 1 else f"brokers {', '.join(map(str, ids))} are"
