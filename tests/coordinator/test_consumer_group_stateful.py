"""Random histories of one consumer group (KIP-848): members that behave, on a network that does not.

Answers are lost, requests repeat, appends are slow or fail, the coordinator moves, members freeze, leave and come back,
topics grow, vanish and are created again. Checked after every step: no partition has two owners, neither in the group
nor among the members that are in it; a request gets one answer; and a replay of the log gives the same group. At the
end of each history the network is good and everybody sends heartbeats: the group becomes stable, all partitions have an
owner, and each member has its target.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from broker.coordinator.modern_group_messages import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from broker.coordinator.modern_group_records import MemberState
from broker.errors import ErrorCode
from tests.support.consumer_groups import ConsumerGroupDriver, Player, partitions_of, player, settle, snapshot, topic
from tests.support.group_history import GroupHistory

NAMES = ["t", "u", "v"]
SUBSCRIPTIONS = [
    {"topic_names": frozenset({"t"}), "topic_regex": ""},
    {"topic_names": frozenset({"t", "u"}), "topic_regex": ""},
    {"topic_names": frozenset({"u", "v"}), "topic_regex": ""},
    {"topic_names": frozenset(), "topic_regex": "[tv]"},
    {"topic_names": frozenset({"u"}), "topic_regex": "v"},
]
MATCHES = {"[tv]": {"t", "v"}, "v": {"v"}}
WORST = [ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id]


class ConsumerGroupHistory(GroupHistory[ConsumerGroupDriver]):
    """`players` are the processes that run; those whose session has ended do not know it yet."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = ConsumerGroupDriver(topic("t", 4), topic("u", 2), session_timeout_ms=10_000, max_size=6)
        self.players: list[Player] = []
        self.created = 0
        self.generations = Counter[str]()

    def someone(self, data: st.DataObject) -> Player:
        return self.players[data.draw(st.integers(0, len(self.players) - 1))]

    # --- members

    @precondition(lambda self: len(self.players) < 6)
    @rule(
        says=st.sampled_from(SUBSCRIPTIONS),
        instance=st.sampled_from([None, None, "i", "j"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
    )
    def start(self, says: dict[str, object], instance: str | None, assignor: str | None) -> None:
        if instance is not None and any(p.says.get("instance_id") == instance for p in self.players):
            return
        self.created += 1
        static = {} if instance is None else {"instance_id": instance}
        new = player(self.driver, f"m{self.created}", **says, server_assignor=assignor, client="who", **static)
        new.says["rebalance_timeout_ms"] = 8_000
        self.players.append(new)
        new.beat()

    @precondition(lambda self: self.players)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self.someone(data).beat()

    @rule()
    def everybody_beats(self) -> None:
        for each in self.players:
            each.beat()

    @precondition(lambda self: self.players)
    @rule(data=st.data())
    def lose_an_answer(self, data: st.DataObject) -> None:
        who = self.someone(data)
        who.send()
        who.lose()

    @precondition(lambda self: self.players)
    @rule(data=st.data(), back=st.integers(0, 2), tells=st.booleans())
    def repeat_an_old_request(self, data: st.DataObject, back: int, tells: bool) -> None:
        """A request of an earlier epoch arrives late. Nobody reads its answer."""
        who = self.someone(data)
        epoch = max(1, who.epoch - back)
        self.driver.heartbeat(who.member_id, epoch, owned=who.owned if tells else None)

    @precondition(lambda self: self.players)
    @rule(data=st.data(), says=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, data: st.DataObject, says: dict[str, object]) -> None:
        self.someone(data).subscribe(**says)

    @precondition(lambda self: self.players)
    @rule(data=st.data(), for_a_while=st.booleans())
    def leave(self, data: st.DataObject, for_a_while: bool) -> None:
        who = self.someone(data)
        instance = who.says.get("instance_id")
        epoch = LEAVE_STATIC_EPOCH if for_a_while and instance else LEAVE_EPOCH
        self.driver.heartbeat(who.member_id, epoch, instance_id=instance)
        self.players.remove(who)

    @precondition(lambda self: self.players)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.players.remove(self.someone(data))

    # --- the world

    @rule(stored=st.one_of(st.just(0), st.integers(1, 12), st.just(None)))
    def move_the_coordinator(self, stored: int | None) -> None:
        """The append under way is in the log of the next coordinator, or not, or the first of its batches are."""
        for store in self.driver.held:
            for key, value in store.records()[:stored]:
                self.driver.log.pop(key, None)
                self.driver.log.update({} if value is None else {key: value})
        self.driver.fail_over()

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(0, 5))
    def change_a_topic(self, name: str, partitions: int) -> None:
        topics = dict(self.driver.topics)
        if not partitions:
            topics.pop(name, None)
            self.generations[name] += 1
        elif name not in topics or len(topics[name].partitions) < partitions:
            topics[name] = topic(name, partitions, self.generations[name])
        self.driver.change_topics(topics)

    @precondition(lambda self: self.driver.resolve is not None)
    @rule()
    def find_topics(self) -> None:
        found = {regex: names & self.driver.topics.keys() for regex, names in MATCHES.items()}
        self.driver.find_topics(found)

    # --- what holds

    @invariant()
    def no_partition_has_two_owners_in_the_group(self) -> None:
        members = self.driver.group.membership.members.values()
        owned = Counter(tp for m in members for tp in (*m.current.assigned, *m.current.revoking))
        assert not [tp for tp, owners in owned.items() if owners > 1]
        assert owned.keys() == self.driver.group.membership.owners.keys()

    @invariant()
    def no_partition_is_consumed_by_two_members(self) -> None:
        members = self.driver.group.membership.members
        owned = Counter(tp for who in self.players if who.member_id in members for tp in who.owned)
        assert not [tp for tp, owners in owned.items() if owners > 1]

    @invariant()
    def a_member_has_at_most_what_the_group_knows(self) -> None:
        for who in self.players:
            member = self.driver.group.membership.members.get(who.member_id)
            if member is not None and member.epoch >= 0 and not member.is_unfinished:
                assert who.owned <= member.current.assigned.keys() | member.current.revoking.keys()

    @invariant()
    def the_log_has_what_memory_has(self) -> None:
        assert snapshot(self.driver.replay()) == snapshot(self.driver.group)

    @invariant()
    def members_that_are_heard_from_are_not_fenced_without_reason(self) -> None:
        """An epoch that a member was told is never above the group's."""
        for member in self.driver.group.membership.members.values():
            assert member.epoch <= self.driver.group.membership.target_epoch.epoch
            assert member.current.state is not MemberState.UNKNOWN

    def teardown(self) -> None:
        """A quiet group becomes stable, and all its partitions are consumed by who shall consume them."""
        self.driver.hold = False
        self.driver.release()
        for _ in range(6):
            if self.driver.resolve is not None:
                self.find_topics()
            self.driver.wait(3_000)
            self.everybody_beats()
        for who in self.players:
            who.errors.clear()
        for _ in range(3):
            if self.driver.resolve is not None:
                self.find_topics()
            settle(self.driver, *self.players)
        assert not [error for who in self.players for error in who.errors]
        membership = self.driver.group.membership
        for who in self.players:
            member = membership.members[who.member_id]
            assert who.owned == member.current.assigned.keys() == member.target
            assert who.epoch == membership.epoch.epoch
        wanted = {
            tp
            for name in membership.topic_names() & self.driver.topics.keys()
            for tp in partitions_of(name, *self.driver.topics[name].partitions)
        }
        numbers = Counter(tp.partition for who in self.players for tp in who.owned)
        assert numbers == Counter(tp.partition for tp in wanted)
        self.no_partition_is_consumed_by_two_members()


TestConsumerGroupHistory = ConsumerGroupHistory.TestCase
TestConsumerGroupHistory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_long_histories() -> None:
    run_state_machine_as_test(
        ConsumerGroupHistory, settings=settings(max_examples=500, stateful_step_count=50, deadline=None)
    )
