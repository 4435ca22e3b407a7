"""Share sessions (KIP-932): a member names its partitions once, and then only what changes.

Called by share_fetch.py and share_acknowledge.py. There is one session for each member of a group on each broker. It
ends with the final epoch, and with the connection that opened it: then the records that the member holds are given to
others, at once and not only when their locks expire. Errors and epochs are those of Kafka's `SharePartitionManager`.
Lives on the event loop.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.share.share_partitions import SharePartitions

INITIAL_EPOCH: Final = 0
"""Opens a session."""
FINAL_EPOCH: Final = -1
"""Closes it."""
MAX_PARTITIONS: Final = 10_000
"""Of one session: each fetch looks at all of them, and a client may name millions."""
_LARGEST_EPOCH = 2**31 - 1


class SessionKey(NamedTuple):
    """Whose session it is."""

    group_id: str
    member_id: str


Asked = tuple[uuid.UUID, int]
"""A topic's id and a partition. The topic need not exist."""
Endings = dict[object, Callable[[], None]]
"""What is called at the end of a connection (`Client.endings`)."""


@dataclass(eq=False)
class ShareSession:
    """The partitions of one member, in the order in which it named them."""

    key: SessionKey
    endings: Endings
    epoch: int = 1
    """Of the next request."""
    partitions: dict[Asked, None] = field(default_factory=dict)
    added: Sequence[Asked] = ()
    """Those that the last request has named first: its response names them."""


class ShareSessions:
    """The sessions of this broker, at most `group.share.max.share.sessions`."""

    def __init__(self, partitions: SharePartitions) -> None:
        self._partitions = partitions
        self._sessions: dict[SessionKey, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Of all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def open(self, key: SessionKey, endings: Endings, limit: int) -> ShareSession:
        """A new session, which takes the place of an older one and ends with the connection of `endings`.

        Raises BrokerError `share_session_limit_reached`.
        """
        if (older := self._sessions.get(key)) is not None:
            self._forget(older)
        if len(self._sessions) >= limit:
            reason = f"there are {limit} share sessions already (group.share.max.share.sessions)"
            raise BrokerError(ErrorCode.share_session_limit_reached, reason)
        session = self._sessions[key] = ShareSession(key, endings)
        endings[key] = partial(self.end, session)
        return session

    def is_open(self, session: ShareSession) -> bool:
        """Whether it was not ended, nor replaced, since a request found it: else its member gets nothing more."""
        return self._sessions.get(session.key) is session

    def find(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session of a request with this epoch, of which the next request has the next epoch.

        Raises BrokerError `share_session_not_found`, `invalid_share_session_epoch`.
        """
        session = self._sessions.get(key)
        if session is None:
            raise BrokerError(ErrorCode.share_session_not_found, f"{key.member_id} has no share session here")
        session.added = ()
        if epoch != FINAL_EPOCH:
            if session.epoch != epoch:
                raise BrokerError(ErrorCode.invalid_share_session_epoch, f"the session is at epoch {session.epoch}")
            session.epoch = 1 if epoch == _LARGEST_EPOCH else epoch + 1
        return session

    def update(self, session: ShareSession, named: Iterable[Asked], forgotten: Iterable[Asked]) -> None:
        """Take the partitions that a request names, and forget those it wants forgotten.

        Raises BrokerError `share_session_limit_reached` if these are too many.
        """
        added = [one for one in named if one not in session.partitions]
        if len(session.partitions) + len(added) > MAX_PARTITIONS:
            reason = f"a share session has at most {MAX_PARTITIONS} partitions"
            raise BrokerError(ErrorCode.share_session_limit_reached, reason)
        session.added = added
        session.partitions.update(dict.fromkeys(session.added))
        for one in forgotten:
            session.partitions.pop(one, None)

    def end(self, session: ShareSession) -> None:
        """After its final request, or when its connection has ended: others get what the member has."""
        if self.is_open(session):
            self._forget(session)
            group_id, member_id = session.key
            self._partitions.member_left(
                group_id, member_id, lambda: all(key.group_id != group_id for key in self._sessions)
            )

    def _forget(self, session: ShareSession) -> None:
        del self._sessions[session.key]
        session.endings.pop(session.key, None)
