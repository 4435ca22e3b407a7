"""One consumer group whose coordinator assigns the partitions (KIP-848): a `ModernGroup` with one owner of a partition,
with patterns, and with members that may use the classic protocol. Pure.

    Empty, Assigning (the targets are of an older group epoch), Reconciling (a member is on its way), Stable, Dead
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from broker.config.group_config import GroupConfig
from broker.config.setting_groups import GroupSettings
from broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Effects, GroupKind, Now
from broker.coordinator.group_assignors import ASSIGNORS, Assignable, Assignor
from broker.coordinator.group_conversion import as_classic, has_left_for_classic, install_members
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.member_deadlines import DeadlineKind
from broker.coordinator.modern_group import ModernGroup, Steps
from broker.coordinator.modern_group_members import ConsumerMembership, Member
from broker.coordinator.modern_group_messages import Resolve, Topics
from broker.coordinator.modern_group_records import MemberState, ResolvedRegex
from broker.coordinator.record_format import KeyValue
from broker.errors import ErrorCode

RECONCILING_INTERVAL_MS = 1_000
"""Members are heard from this often while one of them waits for partitions of another."""


class ConsumerGroup(ModernGroup):
    """The state machine of one consumer group."""

    kind = GroupKind.CONSUMER
    protocol_type = CONSUMER_PROTOCOL_TYPE
    membership: ConsumerMembership

    def __init__(
        self,
        group_id: str,
        config: GroupSettings,
        topics: Topics,
        settings: Callable[[], GroupConfig] = GroupConfig,
        offsets: GroupOffsets | None = None,
    ) -> None:
        super().__init__(group_id, config, offsets, topics, settings)
        self.membership = ConsumerMembership()
        # Members that use the classic protocol cannot be stored as a classic group.
        self._cannot_downgrade = False
        # The patterns that the runtime looks up now, with the rights of a client that uses one.
        self._asked: frozenset[str] = frozenset()
        self._is_regex_stale = False
        self._client: object = None

    @property
    def state_name(self) -> str:
        name = super().state_name
        if name == "Stable" and self.membership.epoch.epoch > self.membership.target_epoch.epoch:
            return "Assigning"
        return "Reconciling" if name == "Stable" and self.membership.unsettled else name

    @property
    def assignor_name(self) -> str:
        return self.membership.assignor_name(self.config.group_consumer_assignors[0])

    def session_timeout_ms(self, member: Member) -> int:
        classic = member.subscription.classic
        return self.settings().consumer_session_timeout_ms if classic is None else int(classic.session_timeout_ms)

    def replayed(self, now: Now) -> Effects:
        self._is_regex_stale = True
        return super().replayed(now)

    def _assignor(self, draft: ConsumerMembership) -> tuple[Assignor, Assignable]:
        topics = [self.topics[name] for name in draft.topic_names() if name in self.topics]
        assignor = ASSIGNORS[draft.assignor_name(self.config.group_consumer_assignors[0])]
        return assignor, {topic.topic_id: range(len(topic.partitions)) for topic in topics}

    def _changed(self, before: Member | None, after: Member, now: Now) -> None:
        """A member of the consumer protocol must give up partitions within its rebalance time-out."""
        if before is None or before.current is not after.current:
            if after.current.state is MemberState.UNREVOKED and after.subscription.classic is None:
                deadline = now.monotonic + after.subscription.rebalance_timeout_ms / 1000
                self.set_deadline(DeadlineKind.REBALANCE, after.member_id, deadline)
            else:
                self.deadlines.clear(DeadlineKind.REBALANCE, after.member_id)

    # --- in place of a classic group, and back

    @property
    def is_upgrading(self) -> bool:
        """The members of the classic group that it replaces are not stored yet. They are members all the same."""
        return self._replaces is not None

    def replace_classic(self, classic: ClassicGroup, members: Sequence[Member], now: Now) -> Effects:
        """The first event of a group that takes the place of a classic one: store its members.

        If they cannot be stored, the classic group comes back as the effects' `successor`.
        """
        self._replaces = classic
        self.obsolete_keys = classic.stored_keys() if classic.has_records else []

        def rule(draft: ConsumerMembership, now: Now) -> Steps:
            install_members(draft, members, classic.generation_id, self.topics)
            for member in members:
                self.touch(member, now)
            yield

        return self.perform(rule, now)

    def _moved(
        self, draft: ConsumerMembership, now: Now
    ) -> tuple[ClassicGroup, Callable[[], Sequence[KeyValue]]] | None:
        may = self.config.group_consumer_migration_policy in ("bidirectional", "downgrade")
        if self._cannot_downgrade or not may or not has_left_for_classic(self.membership, draft):
            return None
        if len(draft.members) > self.config.group_max_size:
            return None
        classic = as_classic(self, draft, self.topics, now)
        if classic is None:
            return None
        return classic, lambda: [*((key, None) for key in self.stored_keys()), *classic.generation_records(now)]

    def stored(self, store: Any, error: ErrorCode, now: Now) -> Effects:
        if (
            self._storing is not None
            and store is self._storing
            and isinstance(classic := store.successor, ClassicGroup)
        ):
            self._cannot_downgrade |= error is ErrorCode.unknown_server_error
            if error is ErrorCode.none:
                classic.prepare_rebalance(now, "its last member of the consumer protocol is gone")
        self._is_regex_stale |= error is not ErrorCode.none  # what was looked up may be lost
        return super().stored(store, error, now)

    # --- patterns

    def _update_targets(self, draft: ConsumerMembership, now: Now) -> None:
        if draft.changed and draft.extras:
            draft.set_regexes(draft.extras)
        super()._update_targets(draft, now)

    def topics_changed(self, topics: Topics, now: Now) -> Effects:
        self._is_regex_stale |= not topics.keys() <= self.topics.keys()
        return super().topics_changed(topics, now)

    def refresh_regexes(self, now: Now) -> Effects:
        """Look up the topics of all patterns again: the rights of clients may have changed."""
        self._is_regex_stale = True
        return self._advance(now)

    def uses_regex(self, client: object) -> None:
        """A member with a pattern was heard from. Its rights count for what patterns match."""
        self._client = client

    def regexes_resolved(self, found: Mapping[str, Collection[str]], now: Now) -> Effects:
        """The answer to `Effects.resolve`: the topics of each pattern."""
        asked, self._asked = self._asked, frozenset()

        def rule(draft: ConsumerMembership, now: Now) -> Steps:
            before, resolved = draft.extras, dict(draft.extras)
            for regex in asked:
                topics = frozenset(found.get(regex, ()))
                if regex not in before or before[regex].topics != topics:
                    resolved[regex] = ResolvedRegex(topics, now.wall_ms)
            draft.set_regexes(resolved)
            draft.bumps_epoch |= draft.extras is not before
            yield

        return self.perform(rule, now)

    def _resolve(self) -> Resolve | None:
        if self._asked or self._storing or self.awaits_joins or self._client is None or self._is_dead:
            return None
        wanted = self.membership.used_regexes()
        if not self._is_regex_stale:
            wanted -= self.membership.extras.keys()
        if not wanted:
            return None
        self._asked, self._is_regex_stale = wanted, False
        return Resolve(wanted, self._client)
