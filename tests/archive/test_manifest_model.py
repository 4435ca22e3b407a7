"""The manifest's promise under every interleaving: one lineage, no gap, no overlap, nothing acknowledged is lost.

Leaders of three epochs commit to one store. At any call of any of them the store may run another leader's whole commit
first, fail before or after it did what was asked, say that the caller's own file exists, or carry a put out much later.
The store also remembers who was the first to make each number: that is the lineage, deleted entries included.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.archive import manifest as manifest_module
from broker.archive import manifest_store
from broker.archive.layout import new_object_name, number_of
from broker.archive.manifest import Add, Change, Manifest, Start, Truncate
from broker.archive.manifest_json import decode_entry
from broker.archive.manifest_store import CommitLost, ManifestStore
from broker.storage.storage import Storage
from tests.support.archived_segments import archived_segment
from tests.support.randomness import seeded

TOPIC_ID = uuid.UUID(int=9)
FAULTS = ("none", "none", "none", "before", "after", "exists", "late")


class Store:
    """What ManifestStore asks of a Storage, in memory, with faults that `chance` chooses."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.files: dict[str, bytes] = {}
        self.first: dict[int, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        self.rivals: Callable[[], None] = lambda: None
        self.calm = False

    def create(self, path: str, data: bytes) -> None:
        fault = self._before(FAULTS)
        if fault == "late":
            self.late.append((path, data))
        if fault in {"before", "late"}:
            raise ConnectionError("no answer")
        self._put(path, data)
        self._after()
        if fault == "after":
            raise ConnectionError("lost answer")
        if fault == "exists":
            raise FileExistsError(path)

    def read(self, path: str) -> bytes:
        self._fail_sometimes()
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def exists(self, path: str) -> bool:
        self._fail_sometimes()
        return path in self.files

    def names(self, directory: str) -> list[str]:
        self._fail_sometimes()
        return sorted(path.removeprefix(f"{directory}/") for path in self.files)

    def remove(self, path: str) -> None:
        self._fail_sometimes()
        self.files.pop(path, None)

    def deliver(self) -> None:
        """Carry out a put that was under way."""
        if self.late:
            path, data = self.late.pop(self.chance.randrange(len(self.late)))
            if path not in self.files:
                self._put(path, data)

    def _put(self, path: str, data: bytes) -> None:
        if path in self.files:
            raise FileExistsError(path)
        self.files[path] = data
        number = number_of(path.rpartition("/")[2])
        assert number is not None
        self.first.setdefault(number, data)

    def _before(self, faults: tuple[str, ...]) -> str:
        self.rivals()
        return "none" if self.calm else self.chance.choice(faults)

    def _after(self) -> None:
        self.rivals()

    def _fail_sometimes(self) -> None:
        if self._before((*["none"] * 11, "before")) == "before":
            raise ConnectionError("no answer")

    @property
    def lineage(self) -> Manifest:
        """The fold of the first entry of each number: raises BrokenManifest if it is no lineage."""
        manifest = Manifest()
        for number in sorted(self.first):
            manifest = manifest.apply(decode_entry(self.first[number]))
        return manifest


class InTurn:
    """In place of a pool of threads: hypothesis wants one order of the calls."""

    map = staticmethod(map)


class Leader:
    """Commits what a leader would: segments at the end of the archive, starts, and first its fence."""

    def __init__(self, store: ManifestStore, epoch: int) -> None:
        self.store = store
        self.epoch = epoch
        self.manifest: Manifest | None = None
        self.pending: Change | None = None
        self.has_fenced = False
        self.is_over = False
        self.is_busy = False
        self.acknowledged: list[Change] = []

    def step(self, chance: random.Random) -> None:
        if self.is_over or self.is_busy:
            return
        self.is_busy = True
        try:
            if self.manifest is None:
                self.manifest = self.store.load()
            self.pending = self.pending or self._next(chance)
            self.manifest = self.store.commit(self.manifest, self.epoch, self.epoch, self.pending)
            self.acknowledged.append(self.pending)
            self.has_fenced, self.pending = True, None
        except CommitLost as lost:
            self.manifest, self.pending = lost.manifest, None
            self.is_over = lost.manifest.epoch > self.epoch
        except OSError:
            if chance.random() < 0.5:  # else the same change again
                self.manifest = self.pending = None
        finally:
            self.is_busy = False

    def _next(self, chance: random.Random) -> Change:
        assert self.manifest is not None
        end = self.manifest.end
        if not self.has_fenced:
            return Truncate(chance.randint(max(end - 7, 0), end))
        if chance.randint(0, 3) == 0:
            return Start(chance.randint(self.manifest.start, end + 3))
        length = chance.randint(1, 5)
        return Add(archived_segment(end, end + length, self.epoch, new_object_name(end, self.epoch)))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_one_lineage_whoever_writes_and_whatever_the_store_answers(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_module, "SNAPSHOT_EVERY", 3)
        patch.setattr(manifest_store, "SNAPSHOT_EVERY", 3)
        patch.setattr(manifest_store, "ThreadPoolExecutor", lambda _: contextlib.nullcontext(InTurn()))
        play(seeded(seed))


def play(chance: random.Random) -> None:
    store = Store(chance)
    manifests = ManifestStore(cast("Storage", store), "cluster", TOPIC_ID, 0)
    leaders = [Leader(manifests, epoch) for epoch in range(3)]

    def rivals() -> None:
        """Now and then let others do several commits between two calls of one: it was paused."""
        if not store.calm and chance.randint(0, 9) == 0:
            for _ in range(chance.randint(1, 9)):
                chance.choice(leaders).step(chance)
            store.deliver()

    store.rivals = rivals
    for _ in range(chance.randint(1, 25)):
        chance.choice(leaders).step(chance)
        store.deliver()
    store.calm = True
    assert_acknowledged(store, leaders)
    lineage, loaded = store.lineage, manifests.load()
    assert loaded == lineage
    assert sorted(store.first) == list(range(lineage.next_number))


def assert_acknowledged(store: Store, leaders: list[Leader]) -> None:
    written = [decode_entry(data) for _, data in sorted(store.first.items())]
    for leader in leaders:
        own = [entry.change for entry in written if entry.epoch == leader.epoch]
        for change in leader.acknowledged:
            assert change in own
