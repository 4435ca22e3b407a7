"""Where a share group begins to read a partition (`share.auto.offset.reset`): latest, earliest, or by a duration.

Called by the share partitions when the state of one has no start yet.
"""

from __future__ import annotations

import asyncio

from broker.clock import Clock
from broker.cluster.group_configs import GroupConfigs
from broker.config.group_config import reset_age_ms
from broker.replica.cold_reads import read_warm
from broker.replica.partition import Partition


class OffsetReset:
    """Looks the offset up in the log, without blocking the event loop."""

    def __init__(self, configs: GroupConfigs, clock: Clock) -> None:
        self._configs = configs
        self._clock = clock

    async def __call__(self, group_id: str, partition: Partition) -> int:
        """Raises BrokerError. It waits until a new leader knows what is committed: latest must not be too low."""
        reset = self._configs.of(group_id).share_auto_offset_reset
        if (waiting := partition.caught_up()) is not None:
            await asyncio.wait([waiting])
            waiting.result()
        if reset == "earliest":
            return partition.log.log_start_offset
        age_ms = reset_age_ms(reset)
        if age_ms is None:
            return partition.high_watermark
        since = self._clock.now_ms() - age_ms
        found = await read_warm(lambda: partition.log.offset_for_timestamp(since))
        return partition.high_watermark if found is None else min(found[0], partition.high_watermark)
