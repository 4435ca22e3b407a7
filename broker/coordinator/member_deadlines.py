"""When members of a group to which the coordinator assigns are removed, and why. Pure; used by `ModernGroup`."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum
from math import inf

from broker.coordinator.group import Now


class DeadlineKind(StrEnum):
    """Why a member is removed when its deadline has passed."""

    SESSION = "session"
    REBALANCE = "rebalance"
    """It does not give up partitions that it must give up."""
    JOIN = "join"
    """A member of the classic protocol does not join again."""
    SYNC = "sync"


class Deadlines:
    """Those of one group, in monotonic seconds."""

    def __init__(self) -> None:
        self._of_kind: dict[DeadlineKind, dict[str, float]] = {kind: {} for kind in DeadlineKind}
        self.soonest = inf
        """None is before this time."""

    def set(self, kind: DeadlineKind, member_id: str, deadline: float) -> None:
        self._of_kind[kind][member_id] = deadline
        if deadline < self.soonest:
            self.soonest = deadline

    def clear(self, kind: DeadlineKind, member_id: str) -> None:
        self._of_kind[kind].pop(member_id, None)

    def has(self, kind: DeadlineKind, member_id: str) -> bool:
        return member_id in self._of_kind[kind]

    def forget(self, member_id: str) -> None:
        """The member is gone."""
        for kind in DeadlineKind:
            self.clear(kind, member_id)

    def passed(self, now: Now, members: Set[str], asking: Set[str], waiting: Set[str]) -> dict[str, DeadlineKind]:
        """The members to remove, and why.

        Not those of `waiting`, whose request waits: it restarts the session. Those of `asking` are answered now. What
        else they must do they may have done, as their request says; -inf stands for a deadline after which they may not
        ask again.
        """
        found = {}
        for kind, deadlines in self._of_kind.items():
            for member_id in [one for one, deadline in deadlines.items() if deadline <= now.monotonic]:
                if member_id not in members:
                    del deadlines[member_id]  # its join could not be stored
                elif member_id not in waiting or deadlines[member_id] == -inf:
                    found[member_id] = kind
                elif member_id in asking and kind is not DeadlineKind.SESSION:
                    deadlines[member_id] = -inf
        self.soonest = min(min(deadlines.values(), default=inf) for deadlines in self._of_kind.values())
        return found
