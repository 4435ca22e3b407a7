"""ShareFetch: a member of a share group gets records, and says what became of those that it has (KIP-932).

Acknowledgements are stored before records are read. Record batches go out as file ranges, whole; `acquired_records`
says which of their records are the member's. If nothing can be acquired the answer waits, at most max wait: until
records come, or others give some back. A member that only acknowledges is answered at once.

The partitions of the session are read in turn, so that none starves; each gets an equal part of max bytes. A member
above its quota acquires nothing (KIP-219).
Version notes: 2 — renewed locks (KIP-1222), and a limit of records instead of whole batches (KIP-1206).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.api.share_acknowledge import acknowledge, asked_of, check, response_fields, session_key
from broker.errors import BrokerError, ErrorCode
from broker.log.segment_file import FileSlice, SegmentFile, scan_headers
from broker.net.response import Part
from broker.net.throttling import FetchedAnswer, quota_user
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_response_parts, field, to_ms
from broker.protocol.permissions import SHARE_FETCH_GROUP, SHARE_FETCH_TOPIC
from broker.protocol.response_errors import error_codes
from broker.records.control import AbortedTransactions
from broker.replica.cold_reads import read_warm
from broker.replica.delayed_fetch import DelayedFetch
from broker.share.persister import SharePartitionKey
from broker.share.share_partition_state import AcquiredRecords, FetchedBatch, Wanted
from broker.share.share_partitions import SharePartition
from broker.share.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, Asked, SessionKey, ShareSession

_RECORD_LIMIT = 1
_COMMITTED = "read_committed"
_AT_ONCE = 100
"""Partitions that are looked up before other requests are served."""
_MOST_LOADS = 500
"""Share partitions that one fetch loads; the next one loads others."""
_LOAD_S, _LOAD_BESIDE_S = 5.0, 0.2
"""How long a fetch waits for loads, if it has no other partition to read and if it has."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordRange:
    """Record batches of a response, which are sent as they lie in their file."""

    file: SegmentFile
    position: int
    length: int

    def __len__(self) -> int:
        return self.length


class _Found(NamedTuple):
    """Batches that may have records for the member; `positions` are where they begin, and where the last one ends."""

    share: SharePartition
    offset: int
    records: FileSlice
    batches: list[FetchedBatch]
    positions: list[int]


@serves(ApiKey.SHARE_FETCH, 1, 2)
async def handle(context: ApiContext, request: Request, client: Client) -> Fields | Sequence[Part] | FetchedAnswer:
    body, epoch = request.body, request.body.share_session_epoch
    named = asked_of(body.topics)
    try:
        key = session_key(context, request, client, SHARE_FETCH_GROUP)
        renews = field(body, "is_renew_ack", False)
        if renews and (body.max_bytes or body.min_bytes or body.max_records or to_ms(body.max_wait)):
            text = "max bytes, min bytes, max records and max wait must be 0 if locks are renewed"
            raise BrokerError(ErrorCode.invalid_request, text)
        session = await _session(context, request, client, key, named)
    except BrokerError as error:
        return outcome(error)
    fetch = _ShareFetch(context, request, client, session)
    fetch.acknowledged = await acknowledge(context, request, client, key, SHARE_FETCH_TOPIC, named)
    if epoch == FINAL_EPOCH:
        context.share.sessions.end(session)
    elif not renews and body.max_bytes > 0 and body.max_records > 0:
        await fetch.read()
    if not context.quotas.enabled:
        return fetch.respond()
    return FetchedAnswer(fetch.respond, fetch.withhold)


async def _session(
    context: ApiContext, request: Request, client: Client, key: SessionKey, named: Mapping[Asked, Any]
) -> ShareSession:
    """The session of the request, with what it names. If there are too many, the refusal waits as a fetch would."""
    body, epoch = request.body, request.body.share_session_epoch
    forgotten = [(topic.topic_id, number) for topic in body.forgotten_topics_data for number in topic.partitions]
    if epoch == INITIAL_EPOCH:
        if any(one.acknowledgement_batches for one in named.values()):
            raise BrokerError(ErrorCode.invalid_request, "the first fetch of a session can acknowledge nothing")
        try:
            session = context.share.sessions.open(key, client.endings, context.config.group_share_max_share_sessions)
        except BrokerError:
            await asyncio.sleep(to_ms(body.max_wait) / 1000)
            raise
    else:
        session = context.share.sessions.find(key, epoch)
    if epoch != FINAL_EPOCH:
        context.share.sessions.update(session, named, forgotten)
    return session


@dataclasses.dataclass
class _ShareFetch:
    """One request: `read` finds records, and `respond` acquires them."""

    context: ApiContext
    request: Request
    client: Client
    session: ShareSession
    acknowledged: Mapping[Asked, BrokerError] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._body = self.request.body
        self._deadline = asyncio.get_running_loop().time() + to_ms(self._body.max_wait) / 1000
        config = self.context.group_configs.of(self.session.key.group_id)
        self._committed = config.share_isolation_level == _COMMITTED
        self._errors: dict[Asked, BrokerError] = {}
        self._found: list[_Found] = []

    async def read(self) -> None:
        """Find records that may be acquired, or wait for them."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        shares = await self._shares()
        while True:
            woken.clear()
            left = self._deadline - loop.time()
            partitions = [share.partition for share in shares]
            delayed = DelayedFetch(partitions, 1, left, woken.set, committed=self._committed, eager=True)
            for share in shares:
                share.waiters.add(delayed.end)
            try:
                await read_warm(lambda: self._read(shares))
                size = sum(one.records.length for one in self._found)
                if self._errors or size >= max(self._body.min_bytes, 1) or left <= 0 or not shares:
                    return
                await woken.wait()
            finally:
                delayed.cancel()
                for share in shares:
                    share.waiters.discard(delayed.end)

    async def _shares(self) -> list[SharePartition]:
        """Those of the session, beginning with another one each time.

        What is not loaded in time is left out. The loads go on: a coordinator that is away must not keep the member
        from all other partitions.
        """
        asked = list(self.session.partitions)
        turn = self._body.share_session_epoch % len(asked) if asked else 0
        known = self.context.share.partitions
        shares: list[SharePartition] = []
        missing: list[SharePartitionKey] = []

        async def add(key: SharePartitionKey) -> None:
            try:
                shares.append(await known.get(key))
            except BrokerError as error:
                self._errors[key[1:]] = error

        for number, one in enumerate(asked[turn:] + asked[:turn]):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            key = SharePartitionKey(self.session.key.group_id, *one)
            try:
                check(self.context, self.client, SHARE_FETCH_TOPIC, one)
            except BrokerError as error:
                self._errors[one] = error
                continue
            share = known.loaded(key)
            if share is None:
                missing.append(key)
            else:
                shares.append(share)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOAD_BESIDE_S if shares else _LOAD_S):
                await asyncio.gather(*map(add, missing[:_MOST_LOADS]))
        return shares

    # --- reads

    def _read(self, shares: Sequence[SharePartition]) -> None:
        self._found, ready = [], []
        for share in shares:
            if share.is_fenced:
                self._errors[share.key[1:]] = BrokerError(ErrorCode.not_leader_or_follower)
                continue
            share.state.log_start_moved(share.partition.log.log_start_offset)
            offset = share.state.next_fetch_offset()
            if offset is not None:
                ready.append((share, offset))
        for share, offset in ready:
            try:
                self._read_partition(share, offset, self._most_bytes() // len(ready))
            except BrokerError as error:
                self._errors[share.key[1:]] = error

    def _most_bytes(self) -> int:
        most: int = min(self._body.max_bytes, self.context.config.fetch_max_bytes)
        if self.context.quotas.enabled:
            limit = self.context.quotas.most_to_fetch(*quota_user(self.client.principal, self.request.client_id))
            most = most if limit is None else min(most, int(limit))
        return most

    def _read_partition(self, share: SharePartition, offset: int, limit: int) -> None:
        partition = share.partition
        if offset > partition.log.log_end_offset:
            return
        records = partition.read(offset, limit, committed=self._committed)
        if records is None:
            return
        aborted = AbortedTransactions(partition.aborted_in(offset, records) if self._committed else ())
        most = min(self._body.max_records, share.state.limits.max_record_locks)
        batches, positions, end = [], [], offset
        for position, header in scan_headers(records.file, records.position, records.position + records.length):
            positions.append(position)
            if end - offset >= most:
                break
            is_aborted = aborted.drops(None, position, header)  # of markers, too: they end a transaction
            has_records = not (is_aborted or header.is_control or header.record_count == 0)
            batches.append(FetchedBatch(header.base_offset, header.last_offset, has_records))
            end = header.next_offset
        else:
            positions.append(records.position + records.length)
        self._found.append(_Found(share, offset, records, batches, positions))

    # --- answers

    def respond(self) -> Sequence[Part]:
        """Acquire what was found. The state of no partition can have changed since `read`."""
        answers: dict[Asked, dict[str, Any]] = {one: {} for one in self.session.added}
        left = self._body.max_records
        is_record_limit = field(self._body, "share_acquire_mode", 0) == _RECORD_LIMIT
        is_open = self.context.share.sessions.is_open(self.session)
        for found in self._found if is_open else ():
            wanted = Wanted(left, self._body.batch_size, is_record_limit)
            acquired = found.share.acquire(self.session.key.member_id, found.offset, found.batches, wanted)
            if acquired:
                left -= sum(one.last_offset - one.first_offset + 1 for one in acquired)
                records = _cut(found, acquired)
                found.share.partition.metrics.bytes_out += len(records)
                rows = [one._asdict() for one in acquired]
                answers[found.share.key[1:]] = {"records": records, "acquired_records": rows}
            if left <= 0:
                break
        return self._encode(answers)

    def withhold(self) -> Sequence[Part]:
        """The answer to a throttled member, who acquires nothing."""
        return self._encode({})

    def _encode(self, answers: dict[Asked, dict[str, Any]]) -> Sequence[Part]:
        for asked, result in self._errors.items():
            if not answers.get(asked):
                answers[asked] = {**outcome(result)}
        for asked, result in self.acknowledged.items():
            answers.setdefault(asked, {}).update(
                acknowledge_error_code=int(result.code), acknowledge_error_message=result.message or None
            )
        errors = {**self.acknowledged, **self._errors}
        group_id = self.session.key.group_id
        fields = response_fields(self.context, self.client, group_id, answers, errors)
        for code in error_codes(self.request.api, fields):
            self.context.metrics.failed(self.request.api, code)
        return encode_response_parts(self.request, fields)


def _cut(found: _Found, acquired: Sequence[AcquiredRecords]) -> RecordRange:
    """The batches from the first that has acquired records to the last."""
    first, last = acquired[0].first_offset, acquired[-1].last_offset
    holding = [n for n, one in enumerate(found.batches) if one.last_offset >= first and one.first_offset <= last]
    begin, end = found.positions[holding[0]], found.positions[holding[-1] + 1]
    return RecordRange(found.records.file, begin, end - begin)
