"""Who should lead each partition: what the controller writes, decided from what is. Pure.

The controller calls `next_state` for every partition that an event may concern, and for all of them when it is elected.
It compares what ZooKeeper says with what should be, so an event that was missed or came twice does no harm. A broker
that stops or starts calls `state_without` or `state_at_start` for its own partitions. Whoever writes a state does it by
compare-and-set on its znode, and every new leader begins a new leader epoch (promise P4). Rules of Kafka's
`PartitionStateMachine`, `ReplicaStateMachine` and KIP-455:

- A partition that was restored from the archive gets its first live replica, which has no log yet.
- A partition without a live leader gets the first live replica, in the order of its assignment, that is in the ISR.
- Without one it has no leader, and keeps its ISR: those are the replicas that have all committed records (P1). A topic
  with `unclean.leader.election.enable` gets the first live replica all the same. Records may be lost then (P5). The
  only replica is not elected without its log.
- A broker that is not alive, or that is no replica, leaves every ISR that has another live member.
- A broker that is suspected to be dead (failure_detector.py) loses leadership to a live in-sync replica. That is all,
  because it may live: no partition stays without a leader, and no election is unclean, because of a suspicion. As a
  follower it leaves an ISR when the partition's leader suspects it, too, or when a new leader is elected.
- A reassignment adds replicas first. When all new ones are in the ISR, the others leave, and the partition gets another
  leader if its leader leaves.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_LEADER, NO_STATE, PartitionInfo

_FIRST_EPOCH_AFTER_CREATION = 1
"""A new partition's leader epoch is 0. It is 1 when its leader has started without a log, and so has given it up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Election:
    """The state that a partition should have, and why."""

    after: PartitionInfo
    reason: str
    unclean: bool = False
    """Whether the new leader was not in the ISR."""

    def __str__(self) -> str:
        now = self.after
        leader = "no leader" if now.leader == NO_LEADER else f"leader {now.leader}"
        return f"{leader}, leader epoch {now.leader_epoch}, ISR {list(now.isr)}: {self.reason}"


def next_state(
    now: PartitionInfo,
    live: Collection[int],
    *,
    suspected: Collection[int] = (),
    unclean_allowed: bool = False,
    prefer: bool = False,
) -> Election | None:
    """The state to write for a partition, or None if it is as it should be.

    `live`: the registered brokers. `suspected`: those of them that seem to be dead. `prefer`: the preferred replica,
    which is the first of the assignment, shall lead if it is alive and in the ISR.
    """
    reachable = [broker for broker in live if broker not in suspected] if suspected else live
    if now.version == NO_STATE:
        return _first_state(now, reachable)
    if is_restored(now):
        return _begun(now, reachable)
    if now.version == 1 and now.isr and not _members(now, now.replicas):
        return _repaired(now, reachable)
    if _is_reassigned(now, reachable):
        return _completed(now)
    if now.leader in reachable and now.leader in now.replicas:
        preferred = now.replicas[0]
        isr = _members(now, live)
        if prefer and now.leader != preferred and preferred in isr and preferred in reachable:
            return Election(_led_by(now, preferred, isr), f"broker {preferred} is the preferred leader")
        gone = [replica for replica in now.isr if replica not in isr]
        if gone and isr:
            return Election(dataclasses.replace(now, isr=isr), f"{_brokers(gone)} not alive or no replica")
        return None
    return _elected(now, live, reachable, unclean_allowed)


def state_without(now: PartitionInfo, broker: int, live: Collection[int]) -> Election | None:
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


def state_at_start(
    now: PartitionInfo,
    broker: int,
    *,
    may_have_lost: bool,
    has_log: bool = True,
    is_offline: bool = False,
    never_had_log: bool = False,
    loss_is_accepted: bool = False,
) -> Election | None:
    """The state to write before `broker` registers, or None where nothing changes.

    `may_have_lost`: its machine went down without a clean stop, so the end of its logs may be gone with the page cache.
    Then it leaves each ISR that has another member, alive or not: that one has all committed records. Where it is no
    member, the same state is written again: the leader must not let it join by a position from before. The only member
    of an ISR has to lead all the same. A leader that starts begins a new leader epoch (P6), by which clients notice
    what was lost (KIP-320).

    Without `has_log` nothing is left. Then the only member of an ISR must not lead, if there are other replicas: these
    would drop what they have, which may be all that was acknowledged (P1). An unclean election may let one lead.

    With `never_had_log` it leads all the same, if the partition has had no second leader: all brokers were killed when
    the topic had just been created, before this one made its log. As a member of the ISR it had to have every record
    before that was acknowledged, so none was.

    `is_offline` says that a log which was not found may be in a directory that is offline. The only replica of a
    partition leads with its log. Without one it leads if it never had one, or if somebody has accepted the loss
    (`loss_is_accepted`). Otherwise the partition has no leader and an empty ISR, until a start finds the log.
    """
    if is_restored(now):
        return None  # the controller elects its first leader
    is_first = now.is_restored or now.leader_epoch <= _FIRST_EPOCH_AFTER_CREATION
    if now.replicas == (broker,) and (broker in now.isr or not now.isr):
        is_new = never_had_log and bool(now.isr) and is_first
        if has_log or (not is_offline and (is_new or loss_is_accepted)):
            after = dataclasses.replace(_led_by(now, broker, now.replicas), is_restored=now.is_restored and not has_log)
            return Election(after, f"its only replica, broker {broker}, starts")
        if now.leader == NO_LEADER and not now.isr:
            return None
        return Election(_led_by(now, NO_LEADER, ()), f"broker {broker}, its only replica, has no log of it")
    if broker not in now.isr:
        if not may_have_lost or broker not in now.replicas:
            return None
        return Election(now, f"broker {broker} starts and may have lost records")
    rest = tuple(replica for replica in now.isr if replica != broker)
    is_new = never_had_log and is_first
    if not (has_log or is_offline or rest or is_new):
        return Election(_led_by(now, NO_LEADER, ()), f"broker {broker}, its last in-sync replica, has lost its log")
    if may_have_lost and rest:
        reason = f"broker {broker} starts and may have lost records"
        if now.leader != broker:
            return Election(dataclasses.replace(now, isr=rest), reason)
        return Election(_led_by(now, NO_LEADER, rest), reason)
    if now.leader != broker and rest:
        return None
    return Election(_led_by(now, broker, now.isr), f"its leader, broker {broker}, starts")


def state_reassigned(
    now: PartitionInfo, target: Sequence[int] | None, live: Collection[int] = (), *, min_isr: int = 1
) -> Election | None:
    """The state to write when a reassignment to the replicas `target` begins, replaces another one or, with None, is
    cancelled (KIP-455).

    It is complete at once if all replicas of the target are alive and in the ISR, as when replicas only leave or change
    their order. None if too few in-sync replicas would stay: when the partition loses replicas that a reassignment was
    adding, at least `min_isr` (`min.insync.replicas`) others have to be in the ISR, since these delete their logs (P1).
    The new leader epoch fences them.
    """
    origin = tuple(replica for replica in now.replicas if replica not in now.adding)
    wanted = origin if target is None else tuple(target)
    replicas = tuple(dict.fromkeys((*wanted, *origin)))
    isr = tuple(replica for replica in now.isr if replica in replicas)
    if len(isr) < min(len(now.isr), max(min_isr, 1), len(replicas)):
        return None
    adding = tuple(replica for replica in replicas if replica not in origin)
    removing = tuple(replica for replica in replicas if replica not in wanted)
    leader = now.leader
    if leader != NO_LEADER and leader not in replicas:
        leader = next((replica for replica in replicas if replica in isr), NO_LEADER)
    after = PartitionInfo(leader, now.leader_epoch + 1, replicas, isr, now.version, adding, removing)
    if target is None:
        return Election(after, f"its reassignment is cancelled, it stays on brokers {list(wanted)}")
    if _is_reassigned(after, live):
        done = _completed(after)
        return dataclasses.replace(done, after=dataclasses.replace(done.after, leader_epoch=after.leader_epoch))
    return Election(after, f"it is reassigned to brokers {list(wanted)}")


def imbalanced_partitions(
    partitions: Iterable[tuple[TopicPartition, PartitionInfo]], live: Collection[int], percentage: int
) -> list[TopicPartition]:
    """The partitions whose preferred leader should lead again, by `leader.imbalance.per.broker.percentage`.

    A broker counts when it is alive and others lead more than that share of the partitions that prefer it. Partitions
    whose preferred leader is not in the ISR, or that are being reassigned, stay as they are (KafkaController's
    checkAndTriggerAutoLeaderRebalance).
    """
    preferring: dict[int, int] = defaultdict(int)
    led_by_others: dict[int, list[tuple[TopicPartition, PartitionInfo]]] = defaultdict(list)
    for tp, now in partitions:
        if now.replicas and now.replicas[0] in live:
            preferring[now.replicas[0]] += 1
            if now.leader != now.replicas[0]:
                led_by_others[now.replicas[0]].append((tp, now))
    return [
        tp
        for preferred, others in led_by_others.items()
        if len(others) * 100 > preferring[preferred] * percentage
        for tp, now in others
        if preferred in now.isr and not now.adding and not now.removing
    ]


def _first_state(now: PartitionInfo, live: Collection[int]) -> Election | None:
    alive = tuple(replica for replica in now.replicas if replica in live)
    if not alive:
        return None
    return Election(dataclasses.replace(now, leader=alive[0], leader_epoch=0, isr=alive), "the partition is new")


def is_restored(now: PartitionInfo) -> bool:
    """Whether it was restored from the archive and had no leader since."""
    return now.is_restored and now.leader == NO_LEADER and not now.isr


def _begun(now: PartitionInfo, live: Collection[int]) -> Election | None:
    """The first live replica begins where the archive ends. The others have no log either, and follow it."""
    leader = next((replica for replica in now.replicas if replica in live), None)
    if leader is None:
        return None
    after = dataclasses.replace(now, leader=leader, leader_epoch=now.leader_epoch + 1, isr=(leader,))
    return Election(after, "it was restored from the archive")


def _repaired(now: PartitionInfo, live: Collection[int]) -> Election | None:
    """No replica is in the ISR. This state is of an earlier topic of that name: the controller wrote it when the topic
    had just been deleted and created again, so that the version fitted. The partition is new. (With version 0 the state
    was created with its topic, and it is the assignment that is old.)"""
    first = _first_state(now, live)
    if first is None:
        return None
    after = dataclasses.replace(first.after, leader_epoch=now.leader_epoch + 1)
    return Election(after, "its state was of a deleted topic of that name")


def _elected(
    now: PartitionInfo, live: Collection[int], reachable: Collection[int], unclean_allowed: bool
) -> Election | None:
    """The first reachable in-sync replica leads, or none. An in-sync replica that is only suspected may come back."""
    if now.leader == NO_LEADER:
        why = "it has no leader"
    elif now.leader in reachable:
        why = f"broker {now.leader} cannot lead"
    else:
        why = f"broker {now.leader} {'does not answer' if now.leader in live else 'is not alive'}"
    isr = _members(now, reachable)
    leader = next((replica for replica in now.replicas if replica in isr), NO_LEADER)
    if leader != NO_LEADER:
        return Election(_led_by(now, leader, isr), why)
    if now.leader in live and now.leader in now.replicas:
        return None
    is_lost = len(now.replicas) == 1 and not now.isr  # its broker has no log of it (`state_at_start`)
    if unclean_allowed and not _members(now, live) and not is_lost:
        leader = next((replica for replica in now.replicas if replica in reachable), NO_LEADER)
        if leader != NO_LEADER:
            text = f"{why}, and no in-sync replica is alive: an unclean election, records may be lost"
            return Election(_led_by(now, leader, (leader,)), text, unclean=True)
    if now.leader == NO_LEADER:
        return None
    return Election(_led_by(now, NO_LEADER, now.isr), f"{why}, and no in-sync replica is alive")


def _members(now: PartitionInfo, brokers: Collection[int]) -> tuple[int, ...]:
    return tuple(replica for replica in now.isr if replica in brokers and replica in now.replicas)


def _is_reassigned(now: PartitionInfo, live: Collection[int]) -> bool:
    if not now.adding and not now.removing:
        return False
    target = now.target
    return bool(target) and all(replica in now.isr and replica in live for replica in target)


def _completed(now: PartitionInfo) -> Election:
    """All replicas of the target are alive and in the ISR."""
    target = now.target
    leader = now.leader if now.leader in target else target[0]
    after = PartitionInfo(leader, now.leader_epoch + 1, target, target, now.version)
    return Election(after, f"its reassignment to brokers {list(target)} is complete")


def _led_by(now: PartitionInfo, leader: int, isr: tuple[int, ...]) -> PartitionInfo:
    return dataclasses.replace(now, leader=leader, leader_epoch=now.leader_epoch + 1, isr=isr, is_restored=False)


def _brokers(ids: Sequence[int]) -> str:
    return f"broker {ids[0]} is" if len(ids) == 1 else f"brokers {', '.join(map(str, ids))} are"
