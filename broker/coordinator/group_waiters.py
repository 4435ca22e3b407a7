"""Who waits for a group: parked JoinGroup and SyncGroup requests and the replies an event has caused.

Called by the group machine only. Promises that every waiter gets one reply, or is abandoned by its
owner; a member has at most one waiter of each kind. Pure.
"""

from __future__ import annotations

from broker.coordinator.group_effects import Reply, Waiter
from broker.coordinator.group_messages import JoinReply, SyncReply
from broker.errors import ErrorCode

__all__ = ["Waiters"]


class Waiters:
    """Parked requests by member id."""

    __slots__ = ("_replies", "joining", "syncing")

    def __init__(self) -> None:
        self.joining: dict[str, Waiter] = {}
        self.syncing: dict[str, Waiter] = {}
        self._replies: list[Reply] = []

    def take_replies(self) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def reply(self, waiter: Waiter, answer: JoinReply | SyncReply) -> None:
        """Answer a request, parked or not."""
        self._replies.append(Reply(waiter, answer))

    def park_join(self, member_id: str, waiter: Waiter) -> None:
        """Keep a JoinGroup; an older one of the same member is told to try again."""
        self.answer_join(member_id, JoinReply(ErrorCode.rebalance_in_progress, member_id))
        self.joining[member_id] = waiter

    def park_sync(self, member_id: str, waiter: Waiter) -> None:
        """Keep a SyncGroup; an older one of the same member is told to join again."""
        self.answer_sync(member_id, SyncReply(ErrorCode.rebalance_in_progress))
        self.syncing[member_id] = waiter

    def answer_join(self, member_id: str, answer: JoinReply) -> bool:
        """Answer the member's JoinGroup; False when it has none."""
        waiter = self.joining.pop(member_id, None)
        if waiter is None:
            return False
        self.reply(waiter, answer)
        return True

    def answer_sync(self, member_id: str, answer: SyncReply) -> bool:
        """Answer the member's SyncGroup; False when it has none."""
        waiter = self.syncing.pop(member_id, None)
        if waiter is None:
            return False
        self.reply(waiter, answer)
        return True

    def dismiss(self, member_id: str, error: ErrorCode, told_id: str = "") -> None:
        """The member is about to go: answer whatever it waits for with `error`."""
        self.answer_join(member_id, JoinReply(error, told_id))
        self.answer_sync(member_id, SyncReply(error))

    def waits(self, member_id: str) -> bool:
        return member_id in self.joining or member_id in self.syncing

    def abandon(self, waiter: Waiter) -> str | None:
        """Forget a waiter whose connection is gone; returns the member it spoke for, None if it was answered."""
        for parked in (self.joining, self.syncing):
            for member_id, candidate in parked.items():
                if candidate is waiter:
                    del parked[member_id]
                    return member_id
        return None
