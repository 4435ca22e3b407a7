"""Copy a leader's log to a follower's as replication does, and compare the two."""

from __future__ import annotations

from random import Random

from broker.log.follower_append import FollowerAppend
from broker.log.log import Log
from broker.log.pending_append import complete
from broker.records.batch import walk_batches


def follow(log: Log, records: bytes | bytearray) -> FollowerAppend:
    """Append a piece of the leader's log."""
    return complete(log.prepare_follower_append(records))


def copy(leader: Log, follower: Log, random: Random | None = None) -> None:
    """Fetch until the follower has everything: one batch, or many of several segments, and at times a cut one."""
    random = random or Random(0)
    while (offset := follower.log_end_offset) < leader.log_end_offset:
        piece = b""
        for _ in range(random.choice([1, 1, 4])):
            found = leader.read(offset, random.choice([1, 200, 1000, 1 << 20]))
            if found is None:
                break
            piece += found.read()
            offset = [header.next_offset for _, header in walk_batches(piece)][-1]
        whole = len(piece)
        following = leader.read(offset, 1) if offset < leader.log_end_offset else None
        if following is not None and random.random() < 0.3:
            piece += following.read()[: random.randrange(following.length)]
        result = follow(follower, bytearray(piece))
        assert (result.size, result.last_offset + 1) == (whole, follower.log_end_offset) == (whole, offset)


def stored(log: Log, start: int | None = None) -> bytes:
    """The bytes of all batches, as a replica fetches them."""
    offset, found = log.log_start_offset if start is None else start, b""
    while (piece := log.read(offset, 1 << 20)) is not None:
        data = piece.read()
        found += data
        offset = [header.next_offset for _, header in walk_batches(data)][-1]
    return found


def epochs_in(data: bytes, start: int = 0) -> list[tuple[int, int]]:
    """(epoch, offset) of each leader epoch in the batches: it begins where the batch before it ends."""
    found: list[tuple[int, int]] = []
    for _, header in walk_batches(data):
        if not found or header.leader_epoch > found[-1][0]:
            found.append((header.leader_epoch, start))
        start = header.next_offset
    return found


def state_of(log: Log, *, compacted: bool = False) -> tuple[object, ...]:
    """What replicas must agree on besides the bytes: of each producer's batches only the last if some are compacted."""
    producers = {
        entry.producer_id: (
            entry.epoch,
            list(entry.batches)[-1:] if compacted else list(entry.batches),
            None if compacted else entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
        for entry in log.producers
    }
    aborted = None if compacted else log.aborted.between(0, log.log_end_offset)
    return log.log_start_offset, log.log_end_offset, log.first_unstable_offset, producers, aborted
