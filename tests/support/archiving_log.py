"""A broker's archive manager with one real log, for the tests of archives: its time is the test's."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from broker.archive.archive_manager import ArchiveManager
from broker.archive.archived_read import ArchiveReader
from broker.archive.layout import PartitionPlace
from broker.archive.manifest import Manifest
from broker.clock import ManualClock
from broker.config.archive_settings import ArchiveSettings
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.metrics import TopicMetrics
from broker.protocol.archive_status import ArchiveStatus
from broker.protocol.topic_partition import TopicPartition
from tests.support.away_store import AwayStore
from tests.support.batches import NOW, open_log

TP = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=7)
PLACE = PartitionPlace("cluster", TOPIC_ID, 0)
ARCHIVED = LogConfig(
    remote_storage_enable=True,
    segment_bytes=1_000,
    local_retention_bytes=1_000,
    retention_ms=-1,
    file_delete_delay_ms=0,
)
DELAY_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Broker:
    """One broker's manager and its log of the partition."""

    def __init__(self, tmp_path: Path, store: AwayStore, number: int = 1, log: Log | None = None) -> None:
        self.clock = ManualClock(NOW)
        self.log = log or open_log(tmp_path / f"broker-{number}" / "t-0", ARCHIVED, self.clock)
        self.metrics = TopicMetrics()
        self.epoch = 0
        reader = ArchiveReader(
            store,
            tmp_path / f"cache-{number}",
            max_bytes=1 << 26,
            threads=1,
            clock=self.clock,
        )
        settings = ArchiveSettings(archive_delete_delay_ms=DELAY_MS)
        self.manager = ArchiveManager(
            store,  # type: ignore[arg-type]
            "cluster",
            number,
            settings,
            self.clock,
            reader.partition,
        )

    def lead(self, epoch: int) -> None:
        log, self.epoch = self.log, epoch
        self.manager.lead(TP, log, TOPIC_ID, {}, epoch, lambda: log.log_end_offset, self.metrics)

    @property
    def status(self) -> ArchiveStatus:
        (status,) = self.manager.statuses()
        return status

    @property
    def manifest(self) -> Manifest | None:
        """As the leader knows it; None until it was read."""
        return self.manager._led[TP].state.manifest

    async def until(self, condition: Callable[[], bool]) -> None:
        """Tick until it is so. A second passes with each tick."""
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, (self.status, self.manager.problem)
            self.log.flush()
            self.manager.tick()
            await asyncio.sleep(0.005)
            self.clock.advance(1_000)

    async def until_archived(self) -> None:
        """All but the active segment, by this leader."""

        def is_archived() -> bool:
            known, end = self.manifest, self.log.active_base_offset
            return known is not None and known.epoch >= self.epoch and end <= known.end == self.log.archived_end

        await self.until(is_archived)
