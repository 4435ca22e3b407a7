"""The ACLs of the cluster: kept in ZooKeeper (zookeeper/acl_store.py), decided by the authorizer, changed by clients.

All are read at start, and those of a pattern again when a notification names it. So no decision needs ZooKeeper, and
while that is away the last known ACLs decide. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from broker.errors import BrokerError, ConnectionFailed, ErrorCode, PykafkaError
from broker.security.acl_decisions import AclSnapshot
from broker.security.acl_types import (
    CLUSTER_NAME,
    AccessControlEntry,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)
from broker.security.authorizer import Authorizer
from broker.zookeeper.acl_store import AclStore, Entries, can_be_kept
from broker.zookeeper.cluster_store import ClusterStore, on_loop
from broker.zookeeper.metadata_store import Watch

logger = logging.getLogger(__name__)

RETRY_S = 0.5
_PATTERNS_A_TIME = 100
"""A revocation by another broker need not wait until thousands of patterns are written."""

Change = Callable[[Entries], Entries]


class Deleted(NamedTuple):
    """An ACL that a filter chose, and why it could not be deleted, if so."""

    acl: Acl
    error: BrokerError | None


class Acls:
    """Call `load`, then `watch`; after that the authorizer decides by what the cluster has agreed."""

    def __init__(self, store: AclStore, call: ClusterStore, authorizer: Authorizer, *, allow_if_none: bool) -> None:
        self._store = store
        self._call = call
        self._authorizer = authorizer
        self._allow_if_none = allow_if_none
        self._stale: set[ResourcePattern] = set()
        self._all_stale = False
        self._due = asyncio.Event()
        self._lock = asyncio.Lock()
        """Held from each read or write to its effect: an older read must not undo a newer one."""

    @property
    def current(self) -> AclSnapshot:
        acls = self._authorizer.acls
        return AclSnapshot(allow_if_none=self._allow_if_none) if acls is None else acls  # one without ACLs is falsy

    async def load(self, _: str = "") -> None:
        """Read all ACLs. Raises BrokerError when ZooKeeper is away."""
        async with self._lock:
            found = await self._call(self._store.load)
            self._authorizer.use(AclSnapshot(found, allow_if_none=self._allow_if_none))

    def watch(self) -> list[Watch]:
        """Note on the event loop which patterns are changed. Call it on that loop, and run `run` there."""
        return self._store.watch(on_loop(self._note), on_loop(self._note_all))

    async def run(self) -> None:
        """Read changed patterns again, for ever: once for any number of changes that come meanwhile."""
        while True:
            await self._due.wait()
            self._due.clear()
            patterns, self._stale = self._stale, set()
            all_of_them, self._all_stale = self._all_stale, False
            try:
                async with self._lock:
                    if all_of_them:
                        found = await self._call(self._store.load)
                        self._apply({**dict.fromkeys(self.current.acls, frozenset[AccessControlEntry]()), **found})
                    else:
                        self._apply(await self._call(self._store.read, patterns))
                continue
            except PykafkaError as error:
                logger.warning("cannot read ACLs that were changed, trying again: %s", error)
            except Exception:
                logger.exception("reading ACLs that were changed failed")
            self._stale |= patterns
            self._all_stale |= all_of_them
            asyncio.get_running_loop().call_later(RETRY_S, self._due.set)

    async def create(self, acls: Sequence[Acl]) -> list[BrokerError | None]:
        """Add ACLs; why each could not be added, or None."""
        errors: list[BrokerError | None] = [None] * len(acls)
        by_pattern: dict[ResourcePattern, list[int]] = defaultdict(list)
        for number, acl in enumerate(acls):
            try:
                check_acl(acl)
                by_pattern[acl.pattern].append(number)
            except BrokerError as error:
                errors[number] = error
        failed = await self._update(
            {
                pattern: frozenset(acls[number].entry for number in numbers).union
                for pattern, numbers in by_pattern.items()
            }
        )
        for pattern, numbers in by_pattern.items():
            for number in numbers:
                errors[number] = failed.get(pattern)
        return errors

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Deleted] | BrokerError]:
        """Delete the ACLs that any of the filters chooses; each is told for the first filter that chose it.

        A pattern that cannot be read or written fails its last known ACLs, or a filter that names it and finds none.
        """
        patterns = [*self.current.acls, *(pattern for one in filters for pattern in one.named_patterns)]
        results: list[list[Deleted]] = [[] for _ in filters]
        chosen: dict[ResourcePattern, dict[AccessControlEntry, int]] = {}
        changes: dict[ResourcePattern, Change] = {}
        for pattern in dict.fromkeys(patterns):
            by_number = {number: one for number, one in enumerate(filters) if one.matches_pattern(pattern)}
            if by_number:
                chosen[pattern] = {}
                changes[pattern] = _without(by_number, chosen[pattern])
        failed = await self._update(changes)
        for pattern, entries in chosen.items():
            if pattern in failed:
                changes[pattern](frozenset(self.current.acls.get(pattern, ())))
            for entry, number in entries.items():
                results[number].append(Deleted(Acl(pattern, entry), failed.get(pattern)))
        return [found or _failure(one, failed) or found for one, found in zip(filters, results, strict=True)]

    async def _update(self, changes: Mapping[ResourcePattern, Change]) -> dict[ResourcePattern, BrokerError]:
        """Make the changes and decide by them; the patterns that could not be changed, and why."""
        failed: dict[ResourcePattern, BrokerError] = {}
        patterns = list(changes)
        while patterns:
            chunk, patterns = patterns[:_PATTERNS_A_TIME], patterns[_PATTERNS_A_TIME:]
            async with self._lock:
                done, refused = await self._call(self._update_each, {pattern: changes[pattern] for pattern in chunk})
                self._apply(done)
            failed |= refused
            away = next((error for error in refused.values() if error.code is ErrorCode.request_timed_out), None)
            if away is not None:
                failed |= dict.fromkeys(patterns, away)
                break
        return failed

    def _update_each(
        self, changes: Mapping[ResourcePattern, Change]
    ) -> tuple[dict[ResourcePattern, Entries], dict[ResourcePattern, BrokerError]]:
        """In one call of the thread, so that what was changed is known. While the store is away the rest is not tried:
        each pattern would wait as long."""
        done: dict[ResourcePattern, Entries] = {}
        failed: dict[ResourcePattern, BrokerError] = {}
        for pattern, change in changes.items():
            try:
                done[pattern] = self._store.update(pattern, change)
            except ConnectionFailed as error:
                away = BrokerError(ErrorCode.request_timed_out, str(error))
                return done, failed | {left: away for left in changes if left not in done and left not in failed}
            except PykafkaError as error:
                failed[pattern] = BrokerError(ErrorCode.unknown_server_error, str(error))
        return done, failed

    def _note(self, patterns: Iterable[ResourcePattern]) -> None:
        self._stale.update(patterns)
        self._due.set()

    def _note_all(self) -> None:
        logger.info("some changes of ACLs may have been missed, reading all of them")
        self._all_stale = True
        self._due.set()

    def _apply(self, news: Mapping[ResourcePattern, Collection[AccessControlEntry]]) -> None:
        acls = self.current
        if any(set(acls.acls.get(pattern, ())) != set(entries) for pattern, entries in news.items()):
            self._authorizer.use(acls.changed(news))


def _failure(one: AclFilter, failed: Mapping[ResourcePattern, BrokerError]) -> BrokerError | None:
    return next((error for pattern, error in failed.items() if one.matches_pattern(pattern)), None)


def _without(filters: Mapping[int, AclFilter], chosen: dict[AccessControlEntry, int]) -> Change:
    """Leaves out what a filter chooses, and adds it to `chosen`, with the number of the filter.

    It may be called again with other entries. What was chosen before is gone then, too: by this change, if its answer
    was lost, or by another one.
    """

    def change(entries: Entries) -> Entries:
        for entry in entries:
            number = next((number for number, one in filters.items() if one.matches_entry(entry)), None)
            if number is not None:
                chosen[entry] = number
        return entries - chosen.keys()

    return change


def check_acl(acl: Acl) -> None:
    """Raise BrokerError `invalid_request` for what Kafka's `AclBinding` and `AclAuthorizer` refuse."""
    pattern, entry = acl
    if pattern.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"an ACL is for a literal or a prefixed name, not {pattern.pattern.name}")
    if pattern.type <= AclResourceType.ANY or entry.operation <= AclOperation.ANY:
        raise _invalid(f"an ACL names one resource type and one operation, or all of them, not {acl}")
    if entry.permission not in (AclPermission.ALLOW, AclPermission.DENY):
        raise _invalid(f"an ACL allows or denies, not {entry.permission.name}")
    if pattern.type is AclResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not pattern.name:
        raise _invalid("Invalid empty resource name")
    if not can_be_kept(pattern.name):
        raise _invalid(f"ACL binding contains invalid resource name: {pattern.name!r}")
    kind, colon, name = entry.principal.partition(":")
    if not kind or not colon or not name:
        raise _invalid(f"expected a string in format principalType:principalName but got {entry.principal!r}")
    if not entry.host:
        raise _invalid("an ACL names a host, or * for all")


def _invalid(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_request, reason)
