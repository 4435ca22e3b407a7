"""Random histories of one group: joins, syncs, heartbeats, leaves, silence, lost connections, failing appends.

Checked after every step: each request gets exactly one answer, an assignment comes from the leader of its own
generation, generations never decrease, and a replay of the stored records gives the same group.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.coordinator import group_requests
from broker.coordinator.group_messages import JoinReply, SyncReply
from broker.coordinator.group_state import GroupState
from broker.errors import ErrorCode
from tests.support.groups import Call, GroupDriver

PROTOCOLS = [
    (("range", b"1"),),
    (("range", b"2"),),
    (("range", b"1"), ("sticky", b"1")),
    (("sticky", b"1"), ("range", b"1")),
]
INSTANCES = [None, None, "i", "j"]


class GroupHistory(RuleBasedStateMachine):
    """Clients that do anything in any order. `known` is what they know of the group."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupDriver(initial_delay_ms=500, max_size=4)
        self.joins: list[tuple[Call, str | None]] = []
        # Each with the generation it was sent for.
        self.syncs: list[tuple[Call, int]] = []
        self.abandoned: list[Call] = []
        # Member id → instance id, of everybody who was ever told an id.
        self.known: dict[str, str | None] = {}
        self.generation = 0
        self.log_is_behind = False

    def someone(self, data: st.DataObject) -> tuple[str, str | None]:
        member = data.draw(st.sampled_from(sorted(self.known)))
        return member, self.known[member]

    @rule(protocols=st.sampled_from(PROTOCOLS), instance=st.sampled_from(INSTANCES), two_steps=st.booleans())
    def join_as_new(self, protocols: tuple[tuple[str, bytes], ...], instance: str | None, two_steps: bool) -> None:
        call = self.driver.join(protocols=protocols, instance=instance, require_id=two_steps, can_skip=two_steps)
        self.joins.append((call, instance))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), protocols=st.sampled_from(PROTOCOLS))
    def join_again(self, data: st.DataObject, protocols: tuple[tuple[str, bytes], ...]) -> None:
        member, instance = self.someone(data)
        self.joins.append((self.driver.join(member, protocols=protocols, instance=instance), instance))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), behind=st.sampled_from([0, 0, 0, 1]))
    def sync(self, data: st.DataObject, behind: int) -> None:
        member, instance = self.someone(data)
        group = self.driver.group
        generation = group.generation_id - behind
        leads = group.roster.leader == member
        text = b"%d" % generation if leads else b"forged"
        assignments = dict.fromkeys(group.roster.members, text)
        call = self.driver.sync(member, assignments, generation=generation, instance=instance)
        self.syncs.append((call, generation))

    @precondition(lambda self: self.known)
    @rule()
    def everybody_syncs(self) -> None:
        group = self.driver.group
        for member in list(group.roster.members):
            assignments = dict.fromkeys(group.roster.members, b"%d" % group.generation_id)
            self.syncs.append((self.driver.sync(member, assignments), group.generation_id))

    @precondition(lambda self: self.known)
    @rule()
    def everybody_joins(self) -> None:
        for member in list(self.driver.group.roster.members.values()):
            protocols = tuple(member.protocols.items())
            call = self.driver.join(member.member_id, protocols=protocols, instance=member.group_instance_id)
            self.joins.append((call, member.group_instance_id))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        member, instance = self.someone(data)
        error = self.driver.heartbeat(member, instance=instance)
        if member not in self.driver.group.roster.members:
            assert error in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member, instance = self.someone(data)
        if self.driver.leave(member, instance=instance) is ErrorCode.none:
            assert member not in self.driver.group.roster.members

    @rule(ms=st.sampled_from([100, 500, 3_000, 9_000, 60_000, 300_000]))
    def pass_time(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule(data=st.data())
    def lose_a_connection(self, data: st.DataObject) -> None:
        waiting = [call for call, _ in [*self.joins, *self.syncs] if call.waits and call not in self.abandoned]
        if waiting:
            call = data.draw(st.sampled_from(waiting))
            self.abandoned.append(call)
            self.driver.abandon(call, can_return=data.draw(st.booleans()))

    @rule()
    def appends_take_their_time(self) -> None:
        self.driver.hold = True

    @precondition(lambda self: self.driver.hold)
    @rule(error=st.sampled_from([ErrorCode.none, ErrorCode.coordinator_not_available]))
    def appends_end(self, error: ErrorCode) -> None:
        self.driver.hold = False
        stored = len(self.driver.stored)
        if self.driver.held and error is not ErrorCode.none:
            self.log_is_behind = True
        self.driver.release(error)
        if len(self.driver.stored) > stored:
            self.log_is_behind = False

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def replies_tell_the_truth(self) -> None:
        for call, instance in self.joins:
            if not call.waits:
                reply = call.joined
                assert isinstance(reply, JoinReply)
                if reply.error in (ErrorCode.none, ErrorCode.member_id_required):
                    self.known.setdefault(reply.member_id, instance)
        for call, generation in self.syncs:
            if not call.waits:
                answer = call.synced
                assert isinstance(answer, SyncReply)
                if answer.error is ErrorCode.none:
                    assert answer.assignment in (b"", b"%d" % generation)
        self.joins = [(call, instance) for call, instance in self.joins if call.waits]
        self.syncs = [(call, generation) for call, generation in self.syncs if call.waits]

    @invariant()
    def nobody_is_forgotten(self) -> None:
        group = self.driver.group
        parked = [*group.waiters.joining.values(), *group.waiters.syncing.values()]
        parked += [store.rejoin.waiter for store in self.driver.held if store.rejoin is not None]
        waiting = [call for call, _ in [*self.joins, *self.syncs] if call.waits and call not in self.abandoned]
        assert all(call in parked for call in waiting)

    @invariant()
    def the_group_is_consistent(self) -> None:
        group = self.driver.group
        members = group.roster.members
        assert group.generation_id >= self.generation
        self.generation = group.generation_id
        assert set(group.waiters.joining) <= set(members)
        assert set(group.waiters.syncing) <= set(members)
        assert not group.waiters.joining or group.state is GroupState.PREPARING_REBALANCE
        assert not group.waiters.syncing or group.state is GroupState.COMPLETING_REBALANCE
        assert (group.roster.leader in members) if members else group.roster.leader is None
        assert not set(group.roster.pending) & set(members)
        statics = {m.group_instance_id: m.member_id for m in members.values() if m.group_instance_id is not None}
        assert group.roster.static_ids == statics
        votes = Counter(name for member in members.values() for name in member.protocols)
        assert group.roster._supporters == votes
        assert len(members) <= 4 or group.state is GroupState.PREPARING_REBALANCE
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert members
            assert votes[group.protocol_name or ""] == len(members)
            assert group.pending_sync <= set(members)
        if group.state is GroupState.EMPTY:
            assert not members

    @invariant()
    def replay_gives_the_same_group(self) -> None:
        group = self.driver.group
        settled = group.state in (GroupState.STABLE, GroupState.EMPTY)
        if not settled or self.driver.held or self.log_is_behind or not self.driver.stored:
            return
        replayed = GroupDriver()
        replayed.group.install(self.driver.stored[-1], replayed.now())
        assert replayed.group.generation_id == group.generation_id
        assert replayed.group.roster.leader == group.roster.leader
        assert group_requests.describe(replayed.group) == group_requests.describe(group)

    def teardown(self) -> None:
        """Left alone, everybody gets an answer and the group ends empty."""
        self.driver.hold = False
        self.driver.release()
        self.driver.advance(1_200_000)
        assert self.driver.group.state is GroupState.EMPTY
        assert not [call for call, _ in [*self.joins, *self.syncs] if call.waits and call not in self.abandoned]


TestGroupHistory = GroupHistory.TestCase
TestGroupHistory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
