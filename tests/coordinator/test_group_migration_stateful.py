"""Random histories of a group whose members use the classic protocol, that of KIP-848, or both at once.

Members of both come, leave and die; appends are slow or fail; the coordinator moves. No partition is consumed by two
members that are in the group. When all is quiet the group is stable, and every partition has a consumer.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.group_state import ClassicGroup, GroupState
from broker.coordinator.modern_group_messages import LEAVE_EPOCH
from broker.protocol.topic_partition import TopicPartition
from tests.support.consumer_groups import Player, player, snapshot, topic
from tests.support.group_history import GroupHistory
from tests.support.mixed_groups import ClassicPlayer, MixedGroupDriver, named


class MixedGroupHistory(GroupHistory[MixedGroupDriver]):
    def __init__(self) -> None:
        super().__init__()
        self.driver = MixedGroupDriver(topic("t", 4), topic("u", 2), session_timeout_ms=10_000, max_size=8)
        self.players: list[Player | ClassicPlayer] = []
        self.created = 0

    def someone(self, data: st.DataObject) -> Player | ClassicPlayer:
        return self.players[data.draw(st.integers(0, len(self.players) - 1))]

    @precondition(lambda self: len(self.players) < 5)
    @rule(names=st.sampled_from([{"t"}, {"t", "u"}]))
    def start_a_consumer(self, names: set[str]) -> None:
        self.created += 1
        new = player(self.driver, f"m{self.created}", *names)  # type: ignore[arg-type]
        new.says["rebalance_timeout_ms"] = 8_000
        self.players.append(new)
        new.beat()

    @precondition(lambda self: len(self.players) < 5)
    @rule(names=st.sampled_from([{"t"}, {"t", "u"}]), is_eager=st.booleans())
    def start_a_classic_one(self, names: set[str], is_eager: bool) -> None:
        self.players.append(ClassicPlayer(self.driver, frozenset(names), is_eager))

    @precondition(lambda self: self.players)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self.someone(data).beat()

    @rule(rounds=st.integers(1, 4))
    def everybody_beats(self, rounds: int) -> None:
        for _ in range(rounds):
            for each in self.players:
                each.beat()

    @precondition(lambda self: self.players)
    @rule(data=st.data(), says_so=st.booleans())
    def stop(self, data: st.DataObject, says_so: bool) -> None:
        who = self.someone(data)
        self.players.remove(who)
        if says_so and isinstance(who, ClassicPlayer):
            who.leave()
        elif says_so:
            self.driver.heartbeat(who.member_id, LEAVE_EPOCH)

    @precondition(lambda self: not self.driver.held)
    @rule()
    def move_the_coordinator(self) -> None:
        self.driver.fail_over()

    def consumed(self) -> Counter[TopicPartition]:
        """How many members of the group have a partition. Who is of another generation is fenced already."""
        owned: Counter[TopicPartition] = Counter()
        for who in self.players:
            group = self.driver.group
            if isinstance(group, ConsumerGroup):
                member = group.membership.members.get(who.member_id)
                if member is None:
                    continue
                if isinstance(who, ClassicPlayer) and who.state != "joining" and who.generation_id != member.epoch:
                    continue
            else:
                assert isinstance(group, ClassicGroup)
                if who.member_id not in group.roster.members:
                    continue
            owned.update(who.owned if isinstance(who, ClassicPlayer) else named(self.driver.topics, who.owned))
        return owned

    @invariant()
    def no_partition_is_consumed_twice(self) -> None:
        assert all(number == 1 for number in self.consumed().values())

    @invariant()
    def the_log_has_what_memory_has(self) -> None:
        replayed, group = self.driver.replay(), self.driver.group
        if isinstance(group, ConsumerGroup) and isinstance(replayed, ConsumerGroup) and not self.driver.held:
            assert snapshot(replayed) == snapshot(group)

    def teardown(self) -> None:
        self.driver.hold = False
        self.driver.release()
        for _ in range(12):
            self.driver.wait(2_500)
            self.everybody_beats(2)
        self.everybody_beats(8)
        self.no_partition_is_consumed_twice()
        if not self.players:
            return
        group = self.driver.group
        is_stable = (
            group.state is GroupState.STABLE if isinstance(group, ClassicGroup) else group.state_name == "Stable"
        )
        assert is_stable, group.state_name
        assert isinstance(group, ClassicGroup) or any(isinstance(who, Player) for who in self.players)
        wanted = {
            name
            for who in self.players
            for name in (who.topics if isinstance(who, ClassicPlayer) else who.says["topic_names"])
        }
        everything = {TopicPartition(name, number) for name in wanted for number in self.driver.topics[name].partitions}
        assert self.consumed().keys() == everything


TestMixedGroupHistory = MixedGroupHistory.TestCase
TestMixedGroupHistory.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_long_histories() -> None:
    run_state_machine_as_test(
        MixedGroupHistory, settings=settings(max_examples=300, stateful_step_count=40, deadline=None)
    )
