"""Copies that fail or hang are told at once, with the time, and until one succeeds. The time is the test's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.archive.archive_manager import ANSWER_S, PART_S
from tests.support.archiving_log import ARCHIVED, Broker
from tests.support.away_store import AwayStore
from tests.support.batches import fill


@pytest.fixture
def store(tmp_path: Path) -> AwayStore:
    return AwayStore(str(tmp_path / "archive"))


def test_a_store_that_hangs_is_told_and_a_busy_one_is_not(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        broker.lead(0)
        fill(broker.log, 10)
        broker.log.flush()
        store.answers.clear()
        started = broker.clock.monotonic()
        await broker.until(lambda: bool(broker.manager.problem))
        assert broker.clock.monotonic() - started > ANSWER_S
        assert "the store has not answered for" in broker.status.problem
        store.answers.set()
        await broker.until_archived()
        assert broker.manager.problem == ""
        await broker.manager.close()

    asyncio.run(scenario())


def test_a_copy_that_hangs_is_told_however_large_the_segment_may_be(tmp_path: Path, store: AwayStore) -> None:
    """Of a segment of a gigabyte, a link of 1 MB/s would have hours; but each call of the store has a minute."""

    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        broker.log.update_config(replace(ARCHIVED, segment_bytes=1 << 30))
        broker.lead(0)
        await broker.until(lambda: broker.manifest is not None and broker.manifest.epoch == 0)
        store.answers.clear()
        fill(broker.log, 10)
        broker.log.roll()
        started = broker.clock.monotonic()
        await broker.until(lambda: bool(broker.manager.problem))
        assert PART_S < broker.clock.monotonic() - started < 2 * PART_S
        assert "the store has not answered for" in broker.status.problem
        store.answers.set()
        await broker.until_archived()
        assert broker.status.problem == ""
        await broker.manager.close()

    asyncio.run(scenario())


def test_the_first_copy_that_fails_is_told_with_the_time_until_one_succeeds(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        broker.lead(0)
        await broker.until(lambda: broker.manifest is not None and broker.manifest.epoch == 0)
        store.is_away = True
        fill(broker.log, 60)
        since = broker.clock.now_ms()
        await broker.until(lambda: broker.metrics.remote_copy_errors == 1)
        first = broker.status.problem
        await broker.until(lambda: broker.metrics.remote_copy_errors == 4)
        assert broker.status.problem == first, "since when, and not since the last try"
        said = datetime.strptime(first.rpartition(" (since ")[2], "%Y-%m-%d %H:%M:%S UTC)").replace(tzinfo=UTC)
        assert since - 1_000 <= said.timestamp() * 1_000 <= since + 3_000
        store.is_away = False
        await broker.until(lambda: broker.metrics.remote_copy_requests > 0)
        assert broker.status.problem == ""
        await broker.manager.close()

    asyncio.run(scenario())
