"""Records that are stamped in the future, in a topic with an archive."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.archiving_log import ARCHIVED, DAY_MS, HOUR_MS, Broker
from tests.support.away_store import AwayStore
from tests.support.batches import NOW, append, batch, fill


@pytest.fixture
def store(tmp_path: Path) -> AwayStore:
    return AwayStore(str(tmp_path / "archive"))


def test_a_record_of_the_future_is_a_problem_that_is_said_once(
    tmp_path: Path, store: AwayStore, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps its segment on the disk, and once that is archived, all records in the archive."""

    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        kept = replace(ARCHIVED, local_retention_bytes=-2, local_retention_ms=HOUR_MS, retention_ms=DAY_MS)
        broker.log.config = replace(kept, message_timestamp_after_max_ms=2**63 - 1)
        broker.lead(0)
        append(broker.log, batch(b"x", timestamp=NOW + 400 * DAY_MS))
        fill(broker.log, 20)
        await broker.until_archived()
        broker.clock.advance(2 * DAY_MS)
        for _ in range(3):
            assert broker.log.apply_retention() == 0
        assert "the segment at offset 0 has a record of the future" in broker.status.problem
        assert "398.0 days ahead" in broker.status.problem
        assert broker.status.problem in broker.manager.problem
        assert [one.levelname for one in caplog.records if "of the future" in one.message] == ["WARNING"]
        broker.clock.advance(402 * DAY_MS)
        assert broker.log.apply_retention() > 0
        assert broker.status.problem == ""
        await broker.manager.close()

    asyncio.run(scenario())
