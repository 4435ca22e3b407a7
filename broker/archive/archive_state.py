"""What the leader of one partition does next for its archive. Pure: time, log and answers of the store are arguments.

archive_manager.py asks `next` and carries out the step in a thread; the answer comes back as an event. One step at a
time. An `ArchiveState` is one leadership: a later one of the same broker gets a new state, and answers to steps of the
old one reach the old one, which nobody asks any more.

The promises, which tests/archive/test_archive_state.py plays with two leaders, paused ones, lost answers, half copies:

- The archive has no gap and no overlap (A3), and within [start, end) it holds what the log of the last leader held.
- A leader first puts its epoch into the manifest. From then on no older leader commits (A4).
- What the manifest has and the new leader's log lacks is truncated, down to the end of the last common epoch. **An
  empty log truncates nothing**: it has lost its disk, or was restored, and begins where the archive ends.
- A half copy is an object that no manifest names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from math import inf
from typing import NamedTuple, Protocol

from broker.archive.layout import begin_of
from broker.archive.manifest import Add, ArchivedSegment, Change, Manifest, Start, Truncate

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
"""After a failure; each wait is twice as long as the one before."""
COPY_LASTS_S = 1_800.0
"""A copy that could not be committed for so long is made again: `prune` may delete its objects as leftovers one day
(archive.orphan.ms), and a manifest must never name them after that."""


class ClosedSegment(NamedTuple):
    """A segment of the log that may be copied: no record in it can still change, and all are on disk."""

    base: int
    end: int
    """The offset after its last record: where the next segment begins."""


class LogView(Protocol):
    @property
    def start(self) -> int:
        """The first offset that readers see."""

    @property
    def local_start(self) -> int:
        """The base offset of the first segment on disk."""

    @property
    def end(self) -> int:
        """The offset of the next record."""

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """(leader epoch, its first offset), both ascending. Those of archived records may be missing."""

    @property
    def is_copied(self) -> bool:
        """Whether segments are to be copied (not `remote.log.copy.disable`)."""

    def closed_after(self, offset: int) -> ClosedSegment | None:
        """The first segment that may be copied and that ends after `offset`."""


class Load(NamedTuple):
    """Read the manifest. Answer: `loaded`."""


class Copy(NamedTuple):
    """Put the objects of the records from `base` to the end of the segment. Answer: `copied`."""

    segment: ClosedSegment
    base: int


class Commit(NamedTuple):
    """Commit a change after `ArchiveState.manifest`. Answer: `committed`, or `lost` to another writer."""

    change: Change


class Begin(NamedTuple):
    """Let the log, which is empty, begin at the end of the manifest. Answer: `begun`."""


class Sweep(NamedTuple):
    """Delete the objects that it `takes`. Answer: `swept`."""

    below: int
    epoch: int
    """Of this leader. No earlier one can commit any more. A later one may have truncated the archive below its start,
    and have put objects there of which this leader knows nothing."""
    kept: frozenset[str]
    """The names in the manifest, and those that it had until a moment ago: readers still have plans with them."""

    def takes(self, name: str) -> bool:
        """Of an object, without suffix."""
        base, epoch = begin_of(name)
        return base < self.below and epoch <= self.epoch and name not in self.kept


Step = Load | Begin | Copy | Commit | Sweep


class _Gone(NamedTuple):
    """What the manifest does not name any more, since its start has moved."""

    due: float
    """When readers have no plan any more that names it."""
    below: int
    names: frozenset[str]


class ArchiveState:
    """One leadership of one partition. Times are monotonic seconds."""

    def __init__(self, epoch: int, delete_delay_s: float, now: float) -> None:
        self.epoch = epoch
        self.manifest: Manifest | None = None
        """As the store had it last; None until it was read."""
        self._failure = ""
        """Of the last step, if it failed."""
        self._stuck = ""
        """Why there is no next step, if somebody has to do something about it."""
        self.failures = 0
        """Steps in a row that failed."""
        self.failing_since: float | None = None
        """When the first of them failed; None while the last step succeeded."""
        self._delay = delete_delay_s
        self._is_busy = False
        self._copy: ArchivedSegment | None = None
        """Copied, and not known to be committed."""
        self._copied_at = now
        self._retry_at = now
        self._gone: list[_Gone] = []
        """The oldest first."""
        self._sweeping = 0
        """How many of them are being swept, or could not be; 0 for none."""
        self._unswept = ""
        """Why objects could not be deleted."""
        self._sweep_at = now

    @property
    def problem(self) -> str:
        """Why the archive does not go on; empty while it does."""
        return self._failure or self._stuck or self._unswept

    @property
    def is_deposed(self) -> bool:
        """Whether a later leader has written."""
        return self.manifest is not None and self.manifest.epoch > self.epoch

    @property
    def is_ready(self) -> bool:
        """Whether no older leader can change the archive any more."""
        return self.manifest is not None and self.manifest.epoch == self.epoch

    def must_begin(self, log: LogView) -> bool:
        """Whether the log is empty, and the archive has records behind its end. Until `begun` it takes no records."""
        return self.manifest is not None and log.local_start == log.end < self.manifest.end

    # --- what to do

    def next(self, log: LogView, now: float) -> Step | None:
        """The next step, which the caller has to take; None if there is none now. After it, call the event it names
        or `failed`."""
        if self._is_busy or self.is_deposed or now < self._retry_at:
            return None
        self._stuck = ""
        step = self._decided(log, now)
        self._is_busy = step is not None
        return step

    def _decided(self, log: LogView, now: float) -> Step | None:
        manifest = self.manifest
        if manifest is None:
            return Load()
        if self.must_begin(log):
            return Begin()
        common = common_end(manifest, log)
        if common < manifest.end or manifest.epoch < self.epoch:
            return Commit(Truncate(common))
        if log.start > manifest.start:
            return Commit(Start(log.start))
        if self._copy is not None and now - self._copied_at <= COPY_LASTS_S:
            return Commit(Add(self._copy))
        self._copy = None
        return self._copying(manifest, log) or self._sweep(manifest, now)

    def _copying(self, manifest: Manifest, log: LogView) -> Step | None:
        if not log.is_copied:
            return None
        if manifest.end < log.local_start:
            self._stuck = (
                f"offsets {manifest.end} to {log.local_start - 1} are neither in the archive nor in the leader's log; "
                f"delete the records before {log.local_start} to go on without them"
            )
            return None
        segment = log.closed_after(manifest.end)
        if segment is None:
            return None
        return Copy(segment, manifest.end if manifest.segments else min(segment.base, manifest.end))

    def _sweep(self, manifest: Manifest, now: float) -> Sweep | None:
        due = [*takewhile(lambda gone: gone.due <= now, self._gone)]
        if not due or now < self._sweep_at:
            return None
        self._sweeping = len(due)
        named = frozenset(segment.name for segment in manifest.segments)
        kept = named.union(*(gone.names for gone in self._gone[len(due) :]))
        return Sweep(max(gone.below for gone in due), self.epoch, kept)

    # --- what came of it

    def loaded(self, manifest: Manifest, now: float) -> None:
        self._well()
        self.manifest = manifest
        if manifest.start:
            self._gone.append(_Gone(now + self._delay, manifest.start, frozenset()))

    def begun(self) -> None:
        """The log begins where the archive ends."""
        self._well()

    def copied(self, segment: ArchivedSegment, now: float) -> None:
        """The objects of the segment are in the store."""
        self._well()
        self._copy, self._copied_at = segment, now

    def committed(self, manifest: Manifest, now: float) -> None:
        """The change is an entry, the last one of `manifest`."""
        self._well()
        self._take(manifest, now)

    def lost(self, manifest: Manifest, now: float) -> None:
        """Another writer was faster, or an earlier put of ours arrived late: this is what the store says now."""
        if self.manifest is not None and manifest.next_number <= self.manifest.next_number and not self.is_deposed:
            self.failed("the store has an entry of the manifest that it neither lists nor lets be made", now)
            return
        self._well()
        self._take(manifest, now)

    def _take(self, manifest: Manifest, now: float) -> None:
        before, self.manifest = self.manifest, manifest
        if before is not None and manifest.start > before.start:
            names = frozenset(one.name for one in takewhile(lambda one: one.end <= manifest.start, before.segments))
            self._gone.append(_Gone(now + self._delay, manifest.start, names))
        copy = self._copy
        if copy is not None:
            fits = copy.base == manifest.end if manifest.segments else copy.base <= manifest.end < copy.end
            self._copy = copy if fits else None  # it is in the manifest, or can never be: an orphan

    def swept(self) -> None:
        """The objects are deleted."""
        self._well()
        del self._gone[: self._sweeping]
        self._sweeping, self._unswept = 0, ""

    def failed(self, reason: str, now: float) -> None:
        """The step failed, perhaps after it was done. A commit is made again as it was; a copy gets a new name. Objects
        that cannot be deleted hold nothing else up."""
        self._is_busy = False
        self.failing_since = now if self.failing_since is None else self.failing_since
        if self._sweeping:
            self._sweeping, self._unswept, self._sweep_at = 0, reason, now + LONGEST_WAIT_S
            return
        self._failure = reason
        self._retry_at = now + min(FIRST_WAIT_S * 2**self.failures, LONGEST_WAIT_S)
        self.failures = min(self.failures + 1, 32)

    def _well(self) -> None:
        self._is_busy, self._failure, self.failures, self.failing_since = False, "", 0, None


def common_end(manifest: Manifest, log: LogView) -> int:
    """How far archive and log hold the same records: a leader epoch has one leader, so they part where an epoch ends.

    Also below the first record on disk: what has left the disk for an earlier archive may have been truncated there
    since, and at its offsets the archive then has the records of another leader. Below the first record whose epoch the
    log knows nothing can be compared; but nothing there is of a later epoch than that record.
    """
    epochs = log.epochs
    oldest, known_from = epochs[0] if epochs else (inf, log.local_start)
    ends = {epoch: following for (epoch, _), (_, following) in pairwise([*epochs, (-1, log.end)])}
    bound = manifest.end
    for epoch, start in reversed(manifest.epochs):
        if epoch < oldest:
            return max(min(bound, known_from), manifest.start)
        common = min(bound, ends.get(epoch, start))
        if common > start:
            return common
        bound = start
    return bound
