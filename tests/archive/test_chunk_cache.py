"""The cache of chunks: in which order the store is asked, what stays, and its bounds. Nothing here waits for a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.archive.chunk_cache import FORGOTTEN_S, UNUSED_S, CachedChunk, ChunkCache
from broker.archive.chunk_index import Chunk
from broker.clock import ManualClock
from broker.errors import BrokerError, ConfigError
from broker.metrics import TopicMetrics
from broker.records.batch import patch_base_offset
from broker.storage.storage import open_storage
from tests.support.archiving import HeldStore
from tests.support.batches import batch

SIZE = len(batch(b"x" * 1000))
"""Bytes of a chunk."""


class Caches:
    """A cache with room for `room` chunks, and a store that has chunk `n` in object `o<n>`."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "cache"
        self.clock = ManualClock()
        self.store = HeldStore(open_storage(str(tmp_path / "store")))
        self._root = tmp_path / "store"
        self._root.mkdir()
        self._made: list[ChunkCache] = []

    def make(self, room: int = 4, threads: int = 2) -> ChunkCache:
        cache = ChunkCache(self.directory, self.store, max_bytes=room * SIZE, threads=threads, clock=self.clock)
        self._made.append(cache)
        return cache

    def chunk(self, number: int, size: int = 1000) -> Chunk:
        data = bytearray(batch(b"x" * size))
        patch_base_offset(data, 0, number, 0)
        (self._root / f"o{number}").write_bytes(data)
        return Chunk(f"o{number}", 0, len(data), number, number + 1, ((0, 0),))

    def close(self) -> None:
        self.store.release()
        for cache in self._made:
            cache.close()


@pytest.fixture
def caches(tmp_path: Path) -> Iterator[Caches]:
    made = Caches(tmp_path)
    yield made
    made.close()


def got(cache: ChunkCache, chunk: Chunk, metrics: TopicMetrics | None = None) -> CachedChunk:
    """The chunk, downloaded if need be."""
    if (found := cache.find(chunk)) is None:
        cache.fetch(chunk, metrics or TopicMetrics()).wait(30)
        found = cache.find(chunk)
    assert found is not None
    return found


def files(caches: Caches) -> int:
    return sum(path.stat().st_size for path in caches.directory.iterdir())


def test_all_who_ask_share_one_download(caches: Caches) -> None:
    cache, chunk = caches.make(), caches.chunk(1)
    caches.store.hold()
    downloads = [cache.fetch(chunk, TopicMetrics()) for _ in range(5)]
    caches.store.wait_until_asked()
    downloads += [cache.fetch(chunk, TopicMetrics()) for _ in range(5)]
    assert cache.find(chunk) is None
    caches.store.release()
    for download in downloads:
        download.wait(30)
    assert got(cache, chunk).open() is not None
    assert caches.store.asked["o1"] == 1


def test_what_came_after_its_reader_has_looked_is_not_downloaded_again(caches: Caches) -> None:
    cache, chunk = caches.make(), caches.chunk(1)
    assert cache.find(chunk) is None
    got(cache, chunk)
    assert cache.fetch(chunk, TopicMetrics()).wait(30)
    assert (caches.store.asked["o1"], cache.downloads, cache.size) == (1, 1, files(caches))


def test_no_more_chunks_than_threads_are_downloaded_at_once(caches: Caches) -> None:
    cache = caches.make(room=100, threads=3)
    caches.store.hold()
    downloads = [cache.fetch(caches.chunk(number), TopicMetrics()) for number in range(20)]
    caches.store.wait_until_asked(3)
    caches.store.release()
    for download in downloads:
        download.wait(30)
    assert caches.store.most_at_once == 3


def test_what_nobody_has_read_yet_is_not_taken_away(caches: Caches) -> None:
    """Many readers at once would else take each other's chunks away, and none would ever read one."""
    cache = caches.make(room=4)
    chunks = [caches.chunk(number) for number in range(10)]
    downloads = [cache.fetch(chunk, TopicMetrics()) for chunk in chunks]
    for download in downloads[:4]:
        download.wait(30)
    assert not any(download.has_ended for download in downloads[4:])
    assert files(caches) == cache.size == 4 * SIZE
    for chunk, following in zip(chunks, downloads[4:], strict=False):
        cached = cache.find(chunk)
        assert cached is not None
        cache.finish(cached)
        following.wait(30)
        assert files(caches) == cache.size == 4 * SIZE
    assert [cache.find(chunk) is not None for chunk in chunks] == [False] * 6 + [True] * 4


def test_what_its_reader_has_left_gives_way_after_a_while(caches: Caches) -> None:
    cache = caches.make(room=2)
    left, used, wanted = (caches.chunk(number) for number in range(3))
    got(cache, left)
    got(cache, used)
    waiting = cache.fetch(wanted, TopicMetrics())
    caches.clock.advance(int(UNUSED_S * 1000) + 1)
    assert cache.find(used) is not None
    cache.fetch(wanted, TopicMetrics())
    waiting.wait(30)
    assert [cache.find(chunk) is not None for chunk in (left, used, wanted)] == [False, True, True]


def test_the_least_recently_used_goes_first(caches: Caches) -> None:
    cache = caches.make(room=3)
    chunks = [caches.chunk(number) for number in range(4)]
    for chunk in chunks[:3]:
        cache.finish(got(cache, chunk))
    got(cache, chunks[0])
    got(cache, chunks[3])
    assert [cache.find(chunk) is not None for chunk in chunks] == [True, False, True, True]


def test_a_chunk_larger_than_the_cache_is_taken_alone(caches: Caches) -> None:
    cache = caches.make(room=2)
    small, large = caches.chunk(0), caches.chunk(1, size=5000)
    cache.finish(got(cache, small))
    got(cache, large)
    assert cache.find(small) is None
    assert cache.size == large.length


def test_what_somebody_waits_for_comes_before_what_is_read_ahead(caches: Caches) -> None:
    cache = caches.make(room=100, threads=1)
    caches.store.hold()
    first = cache.fetch(caches.chunk(0), TopicMetrics())
    caches.store.wait_until_asked()
    ahead = [caches.chunk(number) for number in (1, 2)]
    for chunk in ahead:
        cache.fetch_ahead(chunk, TopicMetrics())
    wanted = [cache.fetch(caches.chunk(number), TopicMetrics()) for number in (3, 4)]
    joined = cache.fetch(ahead[0], TopicMetrics())
    cache.fetch_ahead(caches.chunk(5), TopicMetrics())
    caches.store.release()
    for download in (first, *wanted, joined):
        download.wait(30)
    assert list(caches.store.asked)[:4] == ["o0", "o3", "o4", "o1"]
    assert caches.store.asked["o5"] == 0, "others were waiting"


def test_nothing_is_taken_away_for_what_is_read_ahead(caches: Caches) -> None:
    cache = caches.make(room=1)
    here = got(cache, caches.chunk(0))
    cache.fetch_ahead(caches.chunk(1), TopicMetrics())
    assert cache.find(here.chunk) is here
    assert caches.store.asked["o1"] == 0


def test_a_download_that_nobody_waits_for_any_more_is_not_begun(caches: Caches) -> None:
    cache = caches.make(room=100, threads=1)
    caches.store.hold()
    first = cache.fetch(caches.chunk(0), TopicMetrics())
    caches.store.wait_until_asked()
    left, wanted = cache.fetch(caches.chunk(1), TopicMetrics()), caches.chunk(2)
    cache.fetch(wanted, TopicMetrics())
    caches.clock.advance(int(FORGOTTEN_S * 1000) + 1)
    last = cache.fetch(wanted, TopicMetrics())
    caches.store.release()
    for download in (first, left, last):
        download.wait(30)
    assert caches.store.asked == {"o0": 1, "o2": 1}


def test_a_download_that_failed_leaves_no_bytes(caches: Caches) -> None:
    cache, chunk = caches.make(room=1), caches.chunk(0)
    caches.store.error = OSError("the store is away")
    cache.fetch(chunk, TopicMetrics()).wait(30)
    with pytest.raises(BrokerError, match=r"o0.*the store is away"):
        cache.find(chunk)
    assert files(caches) == cache.size == 0
    caches.store.error = None
    got(cache, caches.chunk(1))


def test_a_full_disk_is_told(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, chunk = caches.make(), caches.chunk(0)

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    cache.fetch(chunk, TopicMetrics()).wait(30)
    with pytest.raises(BrokerError, match=r"archive\.cache\.dir .*No space left"):
        cache.find(chunk)
    assert files(caches) == 0


def test_other_work_is_shared_and_fails_as_downloads_do(caches: Caches) -> None:
    cache, done = caches.make(), []
    for _ in range(2):
        cache.run(("o1.aux", 2), lambda: done.append(1), TopicMetrics()).wait(30)
    assert done == [1, 1]

    def fail() -> None:
        raise FileNotFoundError

    cache.run(("o1.aux", 2), fail, TopicMetrics()).wait(30)
    with pytest.raises(BrokerError, match="missing"):
        cache.run(("o1.aux", 2), fail, TopicMetrics())


def test_what_takes_no_room_is_not_held_up_by_what_waits_for_room(caches: Caches) -> None:
    """A reader may need it to go on, and until it does its chunk stays: else all would wait for ever."""
    cache, done = caches.make(room=1), []
    got(cache, caches.chunk(0))
    held_up = cache.fetch(caches.chunk(1), TopicMetrics())
    assert cache.run(("o0.aux", 2), lambda: done.append(1), TopicMetrics()).wait(30)
    assert done == [1]
    assert not held_up.has_ended
    assert cache.waiting == 1


def test_reads_of_the_store_are_counted_for_their_topic(caches: Caches) -> None:
    cache, chunk, metrics = caches.make(), caches.chunk(0), TopicMetrics()
    for _ in range(2):
        got(cache, chunk, metrics)
    caches.store.error = OSError("the store is away")
    cache.fetch(caches.chunk(1), metrics).wait(30)
    assert (metrics.remote_fetch_requests, metrics.remote_fetch_errors) == (2, 1)
    assert metrics.remote_fetch_bytes == chunk.length


def test_a_start_deletes_the_files_of_an_earlier_process_and_no_others(caches: Caches) -> None:
    got(caches.make(), caches.chunk(0))
    (caches.directory / "notes.txt").write_text("mine")
    caches.make()
    assert [path.name for path in caches.directory.iterdir()] == ["notes.txt"]


def test_a_directory_that_cannot_be_used_is_refused(caches: Caches) -> None:
    caches.directory.write_text("a file")
    with pytest.raises(ConfigError, match=r"archive\.cache\.dir"):
        caches.make()


def test_closing_waits_for_nothing_and_leaves_no_file(caches: Caches) -> None:
    cache = caches.make(threads=1)
    got(cache, caches.chunk(0))
    caches.store.hold()
    running = cache.fetch(caches.chunk(1), TopicMetrics())
    caches.store.wait_until_asked()
    queued = cache.fetch(caches.chunk(2), TopicMetrics())
    cache.close()
    queued.wait(30)
    assert not running.has_ended
    assert files(caches) == 0
    cache.fetch(caches.chunk(3), TopicMetrics()).wait(30)
    caches.store.release()
    running.wait(30)
