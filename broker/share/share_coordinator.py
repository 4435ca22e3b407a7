"""The share coordinator: the state of share partitions in `__share_group_state` (KIP-932). One shard for each of its
partitions that this broker leads.

It answers once the in-sync replicas have the record. One change of a key is stored at a time; memory has it after that.
The rules are those of Kafka's `ShareCoordinatorShard`. The topic is not compacted, because an update counts together
with its snapshot. Instead the shard writes a snapshot of each key now and then, and deletes all records before them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from broker.background_tasks import BackgroundTasks
from broker.clock import Clock
from broker.config.setting_groups import ShareCoordinatorSettings
from broker.coordinator.record_format import KeyValue, MalformedRecord
from broker.coordinator.record_store import LogRecordStore
from broker.coordinator.record_writer import APPEND_ERRORS, RecordWriter
from broker.coordinator.sharded_coordinator import ShardedCoordinator
from broker.errors import BrokerError, ErrorCode
from broker.share.persister import (
    Asked,
    Delete,
    Initialize,
    Persister,
    SharePartitionKey,
    ShareState,
    ShareWrite,
    Summary,
)
from broker.share.share_records import (
    ShareSnapshot,
    ShareUpdate,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_snapshot,
    encode_snapshot_key,
    encode_update,
    encode_update_key,
)

logger = logging.getLogger(__name__)

SNAPSHOTS_AT_ONCE = 500
"""How many keys a prune writes together."""
RECORDS_PER_KEY = 4
"""A partition is pruned when it has more records than this for each key: then a prune at least halves it."""


class _Stored(NamedTuple):
    state: ShareSnapshot
    updates: int
    """Since the last snapshot."""


States = dict[SharePartitionKey, _Stored]
_Change = tuple[KeyValue, _Stored | None]
_Decide = Callable[[_Stored | None], _Change | None]


@dataclass(eq=False)
class ShareShard:
    """The states of one partition of `__share_group_state`. `loaded` is False while they are replayed."""

    partition: int
    store: LogRecordStore
    clock: Clock
    settings: ShareCoordinatorSettings
    exists: Callable[[SharePartitionKey], bool]
    states: States = field(default_factory=dict)
    loaded: bool = False
    _unloaded: bool = False
    _storing: dict[SharePartitionKey, asyncio.Future[ErrorCode]] = field(default_factory=dict)
    _pruning: BackgroundTasks = field(default_factory=BackgroundTasks)
    _gone: set[SharePartitionKey] = field(default_factory=set)
    """Keys whose topic the last prune did not find. Metadata may lag, so they are deleted by the next one."""

    def __post_init__(self) -> None:
        self._writer = RecordWriter(self.store, self.partition)

    async def load(self) -> None:
        states: States = {}
        async for run in self.store.read(self.partition):
            await asyncio.to_thread(replay, states, run.records)
        if not self._unloaded:
            self.states, self.loaded = states, True

    def unload(self, error: ErrorCode) -> None:
        self.loaded, self._unloaded, self.states = False, True, {}
        if error is ErrorCode.not_coordinator:
            self._writer.close()

    async def flush(self) -> None:
        await self._pruning.close()
        await self._writer.flush()

    # --- changes

    async def ask(self, key: SharePartitionKey, asked: Asked) -> ShareState:
        """A read stores the leader's epoch before it is answered. So a coordinator that is deposed, and does not know
        it, cannot answer from old memory, and no earlier leader can write after this."""
        if isinstance(asked, Summary):
            stored = self.states.get(key)
        else:
            stored = await self._store_change(key, partial(self._changed, key, asked))
        if stored is None:
            return ShareState()
        _, state_epoch, leader_epoch, start, _, _, batches, complete_count = stored.state
        return ShareState(start, state_epoch, leader_epoch, batches, complete_count)

    def _changed(self, key: SharePartitionKey, asked: Asked, before: _Stored | None) -> _Change | None:
        """The change of a state that is asked for, if it is one. Raises BrokerError."""
        if isinstance(asked, Delete):
            return None if before is None else ((encode_snapshot_key(key), None), None)
        if isinstance(asked, Initialize):
            return self._initialized(key, asked, before and before.state)
        if before is None:
            raise BrokerError(ErrorCode.invalid_request, f"the share partition {key} is not initialized")
        if not self.exists(key):
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition of {key}")
        state = before.state
        _check_epoch(ErrorCode.fenced_leader_epoch, asked.leader_epoch, state.leader_epoch)
        if isinstance(asked, ShareWrite):
            _check_epoch(ErrorCode.fenced_state_epoch, asked.state_epoch, state.state_epoch)
            rest = asked.start_offset, asked.state_batches, asked.delivery_complete_count
            update = ShareUpdate(state.snapshot_epoch, state.leader_epoch, *rest)
        else:
            rest = state.start_offset, (), state.delivery_complete_count
            update = ShareUpdate(state.snapshot_epoch, asked.leader_epoch, *rest)
        after = state.updated(update)
        if before.updates >= self.settings.share_coordinator_snapshot_update_records_per_snapshot:
            return self._snapshot(key, after)
        return (encode_update_key(key), encode_update(update)), _Stored(after, before.updates + 1)

    def _initialized(self, key: SharePartitionKey, asked: Initialize, old: ShareSnapshot | None) -> _Change | None:
        """The same initialization again changes nothing: what was consumed meanwhile stays."""
        state_epoch, start = asked
        if start < -1:
            raise BrokerError(ErrorCode.invalid_request, f"a share partition cannot begin at offset {start}")
        if old is not None:
            _check_epoch(ErrorCode.fenced_state_epoch, state_epoch, old.state_epoch)
            if (state_epoch, start) == (old.state_epoch, -1):
                return None
        old = old or ShareSnapshot(-1, -1, 0, -1)
        new = old._replace(
            state_epoch=state_epoch, start_offset=start, state_batches=(), delivery_complete_count=min(start, 0)
        )
        return self._snapshot(key, new)

    def _snapshot(self, key: SharePartitionKey, state: ShareSnapshot) -> _Change:
        now = self.clock.now_ms()
        state = state._replace(snapshot_epoch=state.snapshot_epoch + 1, create_timestamp=now, write_timestamp=now)
        return (encode_snapshot_key(key), encode_snapshot(state)), _Stored(state, 0)

    async def _store_change(self, key: SharePartitionKey, decide: _Decide) -> _Stored | None:
        """Append what `decide` makes of the state of a key, after all earlier changes of it; the state after that.

        When the followers are slow, the answer is COORDINATOR_NOT_AVAILABLE after a while. Then the change may be
        stored, and the next one of the key waits until that is known.
        """
        try:
            async with asyncio.timeout(self.settings.share_coordinator_write_timeout_ms / 1000):
                while (busy := self._storing.get(key)) is not None:
                    await asyncio.shield(busy)
                if not self.loaded:
                    raise BrokerError(ErrorCode.not_coordinator, "another broker coordinates this partition now")
                before = self.states.get(key)
                if (change := decide(before)) is None:
                    return before
                code = await asyncio.shield(self._append(key, *change))
        except TimeoutError:
            raise BrokerError(ErrorCode.coordinator_not_available, "the followers have not stored it in time") from None
        if code is not ErrorCode.none:
            code = APPEND_ERRORS.get(code, ErrorCode.unknown_server_error)
            raise BrokerError(code, "the share state could not be stored")
        return change[1]

    def _append(self, key: SharePartitionKey, record: KeyValue, state: _Stored | None) -> asyncio.Future[ErrorCode]:
        future = self._storing[key] = asyncio.get_running_loop().create_future()

        def done(code: ErrorCode) -> None:
            del self._storing[key]
            if code is ErrorCode.none and self.loaded:
                if state is None:
                    self.states.pop(key, None)
                else:
                    self.states[key] = state
            future.set_result(code)

        self._writer.write_now([record], done)
        return future

    # --- pruning

    def expire(self) -> None:
        if self.loaded and not self._pruning:
            self._pruning.begin("pruning the share group state", self.prune())

    async def prune(self) -> None:
        """Delete the records that later ones replace, and the states of deleted topics. Raises BrokerError."""
        gone = {key for key in self.states if not self.exists(key)}
        for key in gone & self._gone:
            await self.ask(key, Delete())
        self._gone = gone
        start, end = self.store.bounds(self.partition)
        if end - start <= RECORDS_PER_KEY * (len(self.states) + 1):
            return
        keys = [*self.states, *(self._storing.keys() - self.states.keys())]  # whose first record may be below `end`
        for first in range(0, len(keys), SNAPSHOTS_AT_ONCE):
            await asyncio.gather(*map(self._write_snapshot, keys[first : first + SNAPSHOTS_AT_ONCE]))
        self.store.delete_before(self.partition, end)

    async def _write_snapshot(self, key: SharePartitionKey) -> None:
        await self._store_change(key, lambda found: None if found is None else self._snapshot(key, found.state))


def replay(states: States, records: Sequence[KeyValue]) -> None:
    """Apply records in the order of the log. One that cannot be read is skipped with a warning."""
    for key_bytes, value in records:
        try:
            decoded = decode_key(key_bytes)
            if decoded is None:
                continue
            key, is_snapshot = decoded
            if value is None:
                if is_snapshot:
                    states.pop(key, None)
            elif is_snapshot:
                states[key] = _Stored(decode_snapshot(value), 0)
            else:
                update = decode_update(value)
                state, updates = states.get(key) or _Stored(ShareSnapshot(update.snapshot_epoch, 0, 0, -1), 0)
                states[key] = _Stored(state.updated(update), updates + 1)
        except MalformedRecord as error:
            logger.warning("Skipped a record of the share group state that cannot be read: %s", error)


def _check_epoch(code: ErrorCode, claimed: int, known: int) -> None:
    if claimed != -1 and claimed < known:
        raise BrokerError(code, f"epoch {claimed} is over, {known} has begun")


class ShareCoordinator(ShardedCoordinator[ShareShard], Persister):
    """All share partitions whose partition of `__share_group_state` this broker leads. A `Persister` of these alone."""

    def __init__(
        self,
        store: LogRecordStore,
        clock: Clock,
        settings: ShareCoordinatorSettings,
        exists: Callable[[SharePartitionKey], bool],
    ) -> None:
        """`exists` tells whether there is such a partition of a topic."""
        super().__init__(
            lambda partition, timer: ShareShard(partition, store, clock, settings, exists),
            clock,
            settings.share_coordinator_state_topic_num_partitions,
            expiry_interval_ms=settings.share_coordinator_state_topic_prune_interval_ms,
            invalid_id=ErrorCode.invalid_group_id,
        )

    async def ask(self, key: SharePartitionKey, asked: Asked) -> ShareState:
        shard = self._shard_of(key.coordinator_key)
        if isinstance(shard, ErrorCode):
            raise BrokerError(shard, f"the state of {key} is not served here")
        return await shard.ask(key, asked)
