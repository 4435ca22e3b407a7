"""How a member of a consumer group (KIP-848) goes from what it has to what it shall have. Pure.

    Stable ──the target takes something──▶ Unrevoked ──the member says it gave that up──┐
      │                                                                                 ▼
      └──the target takes nothing──────────────────────────▶ its epoch is the target's: Stable,
                                                             or Unreleased until others have given up the rest

A member gets a partition only when nobody else has it or may still have it. The rules are those of Kafka's
`CurrentAssignmentBuilder`.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from broker.coordinator.modern_group_members import ConsumerMembership, Member
from broker.coordinator.modern_group_messages import Partitions
from broker.coordinator.modern_group_records import CurrentAssignment, MemberState
from broker.errors import BrokerError, ErrorCode


class Report(NamedTuple):
    """What a member's request says: the partitions it has (None: as before), and whether its subscription is new."""

    owned: Partitions | None
    subscription_changed: bool
    topic_ids: frozenset[UUID]
    """The topics that it subscribes to."""

    def may_own(self, partitions: AbstractSet[object]) -> bool:
        return self.owned is None or not self.owned.isdisjoint(partitions)


def next_assignment(member: Member, group: ConsumerMembership, report: Report) -> CurrentAssignment:
    """Where the member is after its request. Raises FENCED_MEMBER_EPOCH if it must begin again."""
    current: CurrentAssignment = member.current
    if current.state is MemberState.UNKNOWN:
        if report.owned is None or report.owned:
            message = (
                "The member is in a state that this broker does not know. It must give up all partitions and rejoin."
            )
            raise BrokerError(ErrorCode.fenced_member_epoch, message)
        return _advance(member, group, report, group.target_epoch.epoch)
    is_waiting = current.state is MemberState.UNREVOKED and report.may_own(current.revoking.keys())
    if is_waiting or group.is_settled(member):
        return _without_unsubscribed(current, report) if report.subscription_changed else current
    return _advance(member, group, report, current.epoch)


def must_wait(member: Member, group: ConsumerMembership, owned: Partitions | None) -> bool:
    """Whether a request of a member that is not settled changes nothing, seen without a closer look."""
    current: CurrentAssignment = member.current
    if current.state is MemberState.UNREVOKED:
        return owned is None
    if current.state is not MemberState.UNRELEASED or current.epoch != group.target_epoch.epoch:
        return False
    return all(partition in group.owners for partition in member.target.difference(current.assigned))


def _without_unsubscribed(current: CurrentAssignment, report: Report) -> CurrentAssignment:
    """Take partitions of topics that it no longer subscribes to, before there is a new target."""
    kept = {tp: epoch for tp, epoch in current.assigned.items() if tp.topic_id in report.topic_ids}
    if len(kept) == len(current.assigned):
        return current
    revoking = {**current.revoking, **{tp: epoch for tp, epoch in current.assigned.items() if tp not in kept}}
    if not report.may_own(revoking.keys()):
        return replace(current, assigned=kept)
    return replace(current, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)


def _advance(member: Member, group: ConsumerMembership, report: Report, epoch: int) -> CurrentAssignment:
    current = member.current
    target = {tp for tp in member.target if tp.topic_id in report.topic_ids}
    kept = {tp: since for tp, since in current.assigned.items() if tp in target}
    revoking = {tp: since for tp, since in current.assigned.items() if tp not in target}
    if revoking and report.may_own(revoking.keys()):
        state = MemberState.UNREVOKED
    else:
        revoking, epoch = {}, group.target_epoch.epoch
        missing = [tp for tp in target if tp not in kept]
        free = [tp for tp in missing if group.owners.get(tp, member.member_id) == member.member_id]
        state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
        kept.update(dict.fromkeys(free, epoch))
    # The epoch before stays valid until there is a newer one: the answer with the present one may have been lost.
    previous = current.previous_epoch if epoch == current.epoch else current.epoch
    return CurrentAssignment(epoch, previous, state, kept, revoking)
