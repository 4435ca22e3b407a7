"""Any history of a log that is archived shows its readers what a list of records would, or makes them ask again."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.archive.archived_read import ArchiveReader
from broker.archive.manifest import Entry, Manifest, Start, Truncate
from broker.clock import ManualClock
from broker.log.archived_log import ArchivedState
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.storage.storage import open_storage
from tests.log.test_archived_log import ARCHIVED, read_patiently
from tests.support.archiving import PLACE, add_segment
from tests.support.batches import NOW, append, batch, open_log


class ArchivedHistory(RuleBasedStateMachine):
    """`records` are all that were ever committed and not cut; those from `start` on count."""

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory()
        root = Path(self._temporary.name)
        self.storage = open_storage(str(root / "archive"))
        self.reader = ArchiveReader(self.storage, root / "cache", max_bytes=1 << 20, threads=1, clock=ManualClock(NOW))
        self.config: LogConfig = ARCHIVED
        self.log: Log = open_log(root / "t-0", self.config)
        self.manifest = Manifest()
        self.records: list[bytes] = []
        self.start = 0

    def teardown(self) -> None:
        self.reader.close()
        self._temporary.cleanup()

    def take_over(self) -> None:
        """What the owner does when it has read or changed the manifest."""
        if self.config.remote_storage_enable:
            self.log.archived = self.reader.partition(PLACE, self.manifest)
            self.log.follow_archive(self.manifest.start if self.manifest.next_number else None)
            wanted = max(self.log.wanted_start_offset, self.manifest.start)
        else:
            wanted = self.log.log_start_offset
        if wanted > self.manifest.start:
            self.commit(Start(wanted))

    def commit(self, change: Start | Truncate) -> None:
        self.manifest = self.manifest.apply(Entry(self.manifest.next_number, 0, 0, change))
        self.take_over()

    @initialize()
    def begin(self) -> None:
        self.take_over()

    @rule(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=5))
    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            value = b"%d " % len(self.records) + bytes(size)
            assert append(self.log, batch(value)).base_offset == len(self.records)
            self.records.append(value)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(count=st.integers(1, 3))
    def archive(self, count: int) -> None:
        if not self.config.copies_segments:
            return
        segments = self.log.segments
        for segment, following in pairwise(segments):
            end, first = following.base_offset, not self.manifest.segments
            fits = segment.base_offset <= self.manifest.end if first else segment.base_offset == self.manifest.end
            if count and fits and end > self.manifest.end:
                self.manifest = add_segment(self.manifest, segment, end, self.storage, PLACE, 300)
                self.take_over()
                count -= 1

    @rule(local=st.sampled_from([0, 700, -1]), total=st.sampled_from([-1, -1, 1500, 4000]))
    def retain(self, local: int, total: int) -> None:
        local = local if total < 0 else min(local, total) if local >= 0 else total
        self.log.update_config(replace(self.config, local_retention_bytes=local, retention_bytes=total))
        before = self.log.log_start_offset
        self.log.apply_retention()
        self.take_over()
        self.log.update_config(self.config)
        assert self.log.log_start_offset >= before
        if total < 0 and self.config.copies_segments:
            assert self.log.log_start_offset == before, "what leaves the disk is archived"
        self.start = self.log.log_start_offset

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        before = max(self.start, int(share * len(self.records)))
        self.log.delete_records(before)
        self.take_over()
        self.start = before
        assert self.log.log_start_offset == before

    @rule(share=st.floats(0, 1))
    def cut(self, share: float) -> None:
        """As a leader whose log ends earlier makes its followers, and the archive, do."""
        end = max(self.log.local_start_offset, int(share * len(self.records)))
        self.log.truncate_to(end)
        del self.records[self.log.log_end_offset :]
        if self.manifest.end > self.log.log_end_offset:
            self.commit(Truncate(self.log.log_end_offset))

    @rule(clean=st.booleans(), has_checkpoint=st.booleans())
    def restart(self, clean: bool, has_checkpoint: bool) -> None:
        if clean:
            self.log.close()
        start = self.start if has_checkpoint else None
        if self.manifest.segments == () and start is None:
            start = self.start  # nobody else knows it
        self.log = open_log(self.log.directory, self.config, clean=clean, log_start_offset=start)
        self.take_over()

    @precondition(lambda self: self.manifest.segments and self.config.remote_storage_enable)
    @rule()
    def lose_the_disk(self) -> None:
        """It begins where the archive ends."""
        state = ArchivedState(self.manifest.end, self.manifest.start, ((0, self.manifest.start),), b"")
        self.log.begin_after_archive(state)
        del self.records[self.manifest.end :]
        self.take_over()
        self.start = max(self.log.log_start_offset, self.manifest.start)

    @rule(copies=st.booleans())
    def switch(self, copies: bool) -> None:
        """Turn the archive, or the copies, off and on."""
        on = not self.config.remote_storage_enable or copies
        self.config = replace(ARCHIVED, remote_storage_enable=on, remote_log_copy_disable=on and not copies)
        self.log.update_config(self.config)
        self.start = self.log.log_start_offset
        self.take_over()

    @invariant()
    def readers_see_the_records(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, len(self.records))
        assert log.log_start_offset <= log.local_start_offset <= log.log_end_offset
        assert log.local_start_offset <= max(self.manifest.end, log.log_start_offset), "no hole"
        found = read_patiently(log)
        assert found == list(enumerate(self.records))[self.start :]
        assert [epoch for epoch, _ in log.epochs.entries] == ([0] if found else [0][: len(log.epochs.entries)])


TestArchivedHistory = ArchivedHistory.TestCase
TestArchivedHistory.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
