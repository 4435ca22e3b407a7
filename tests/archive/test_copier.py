"""What the copier puts: the bytes of the leader's disk, and a true account of them; checked by `verify --deep`."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.archive.archive_manager import _producers
from broker.archive.aux_file import decode_aux
from broker.archive.copier import Copier, CopyFailed, CopyStopped, SegmentFiles, Throttle, Walk
from broker.archive.layout import PartitionPlace
from broker.archive.manifest import Add, ArchivedSegment, EpochStart
from broker.archive.manifest_store import ManifestStore
from broker.archive.verify import verify_partition
from broker.errors import CorruptBatch
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.storage.storage import Storage, open_storage
from tests.support.batches import NOW, append, batch, open_log
from tests.support.log_transactions import Producers
from tests.support.randomness import seeded

PLACE = PartitionPlace("cluster", uuid.UUID(int=7), 0)
UNLIMITED = 2**63 - 1


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "archive"))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Three segments: several epochs, times that fall, a few transactions."""
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=2_500, index_interval_bytes=300))
    dice = seeded(1)
    for number in range(100):
        times = [NOW + number * 10 + dice.randint(-300, 300) for _ in range(dice.randint(1, 3))]
        append(log, batch(*[b"%d" % number] * len(times), timestamps=times), leader_epoch=number // 40)
    assert len(log.segments) >= 3
    log.flush()
    return log


def copier(storage: Any, stop: threading.Event | None = None) -> Copier:
    return Copier(storage, Throttle(lambda: UNLIMITED, stop or threading.Event()))


def files(log: Log, number: int, base: int | None = None) -> SegmentFiles:
    segment, following = log.segments[number : number + 2]
    end = following.base_offset
    saved = segment.path().with_name(f"{end:020d}.snapshot")
    return SegmentFiles(
        log=segment.path(),
        size=segment.size,
        base=segment.base_offset if base is None else base,
        end=end,
        index_interval=300,
        producers=lambda: _producers(saved.read_bytes, log.producers_before(end)),
    )


def commit(storage: Storage, *segments: ArchivedSegment) -> None:
    store = ManifestStore(storage, PLACE.cluster_id, PLACE.topic_id, 0)
    manifest = store.load()
    for segment in segments:
        manifest = store.commit(manifest, 5, 1, Add(segment))
    report = verify_partition(storage, PLACE, deep=True, orphan_ms=0, now_ms=10**14)
    assert report.problems == []


def test_the_objects_are_what_the_manifest_says(storage: Storage, log: Log) -> None:
    first = copier(storage).copy(files(log, 0), PLACE, 5)
    second = copier(storage).copy(files(log, 1), PLACE, 5, first.epochs)
    commit(storage, first, second)
    assert storage.read(PLACE.segment(first.name)) == log.segments[0].path().read_bytes()
    assert (first.base, first.end, second.end) == (0, log.segments[1].base_offset, log.segments[2].base_offset)
    assert first.max_timestamp == log.segments[0].newest[0]
    assert not first.transactional
    aux = decode_aux(storage.read(PLACE.aux(second.name)))
    assert aux.epochs == tuple(EpochStart(*one) for one in log.epochs.entries if one[1] < second.end)
    assert aux.offset_index == second_index(log)


def second_index(log: Log) -> bytes:
    """As the leader's own index has it."""
    return log.segments[1].path(".index").read_bytes()


def test_a_segment_of_which_the_first_part_is_archived_is_copied_from_there(storage: Storage, log: Log) -> None:
    """A leader's segments end elsewhere than those of the leader before it."""
    starts = [header.base_offset for _, header in log.segments[0].batches()]
    middle = starts[len(starts) // 2]
    rest = copier(storage).copy(files(log, 0, base=middle), PLACE, 5)
    data = log.segments[0].path().read_bytes()
    assert data.endswith(storage.read(PLACE.segment(rest.name)))
    assert (rest.base, rest.marks[0].offset, rest.marks[0].position) == (middle, middle, 0)


def test_within_a_batch_nothing_can_begin(storage: Storage, log: Log) -> None:
    inner = next(header.base_offset + 1 for _, header in log.segments[0].batches() if header.last_offset_delta)
    with pytest.raises(CopyFailed, match="within a batch"):
        copier(storage).copy(files(log, 0, base=inner), PLACE, 5)
    assert storage.names(PLACE.directory) == []


def test_transactions_and_producers_go_along(storage: Storage, tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=1 << 20))
    producers = Producers(log)
    producers.send(1, b"a")
    producers.abort(1)
    producers.send(2, b"b")
    log.roll()
    log.flush()
    copied = copier(storage).copy(files(log, 0), PLACE, 5)
    assert copied.aborted
    assert copied.transactional
    aux = decode_aux(storage.read(PLACE.aux(copied.name)))
    assert [(one.producer_id, one.first_offset) for one in aux.aborted_entries] == [(1, 0)]
    saved = aux.producer_snapshot
    assert saved == log.segments[0].path().with_name(f"{copied.end:020d}.snapshot").read_bytes()
    log.segments[0].path().with_name(f"{copied.end:020d}.snapshot").unlink()  # of a topic of before the archive
    again = copier(storage).copy(files(log, 0), PLACE, 5)
    assert decode_aux(storage.read(PLACE.aux(again.name))).producer_snapshot == saved


class FullStore:
    """Takes some bytes, and then no more."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.closed = 0

    def open_output(self, path: str) -> Any:
        return self

    def write(self, data: bytes) -> int:
        raise OSError("the store is full")

    def close(self) -> None:
        self.closed += 1

    def sync(self, path: str) -> None:
        raise AssertionError("nothing was written")


def test_a_put_that_fails_is_given_up(storage: Storage, log: Log) -> None:
    store = FullStore(storage)
    with pytest.raises(OSError, match="the store is full"):
        copier(store).copy(files(log, 0), PLACE, 5)
    assert store.closed == 1


def test_a_copy_ends_when_the_broker_stops(storage: Storage, log: Log) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(CopyStopped):
        copier(storage, stop).copy(files(log, 0), PLACE, 5)


def test_the_rate_is_for_all_threads_together() -> None:
    throttle = Throttle(lambda: 1_000, threading.Event())
    throttle.take(1)
    before = throttle._free_at
    threading.Thread(target=throttle.take, args=(1,)).start()
    throttle.take(1)
    assert throttle._free_at >= before + 0.001


@given(cuts=st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_it_does_not_matter_where_blocks_are_cut(cuts: list[int]) -> None:
    data = bytearray()
    offset = 7
    for number in range(12):
        one = bytearray(batch(*[b"x" * number] * (1 + number % 3), timestamps=[NOW - number] * (1 + number % 3)))
        one[0:8] = offset.to_bytes(8, "big")
        data += one
        offset += 1 + number % 3
    whole, pieces = Walk(7, 100), Walk(7, 100)
    whole.take(bytes(data))
    position = 0
    for cut in [*cuts, len(data)]:
        pieces.take(bytes(data[position : position + cut]))
        position = min(position + cut, len(data))
    whole.finish(offset)
    pieces.finish(offset)
    assert pieces == whole


@pytest.mark.parametrize("cut", [1, 30, 61, 80])
def test_what_is_no_whole_batches_is_refused(cut: int) -> None:
    walk = Walk(0, 100)
    second = bytearray(batch(b"two"))
    second[7] = 1
    data = bytes(batch(b"one") + second)
    walk.take(data[:-cut])
    with pytest.raises(CorruptBatch, match="no whole batches"):
        walk.finish(10)


def test_a_batch_that_goes_back_is_refused() -> None:
    with pytest.raises(CorruptBatch, match="no batch that follows"):
        Walk(0, 100).take(bytes(batch(b"one")) * 2)
