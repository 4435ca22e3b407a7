"""What the metrics say of archives while a store is away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.web.collector import _archive, _Collected
from tests.support.archiving_log import TP, Broker
from tests.support.away_store import AwayStore
from tests.support.batches import fill

SIZE = "kafka_server_brokertopicmetrics_remotelogsizebytes"
FAILING = "pykafka_archive_failing_partitions"
LAG = "kafka_server_brokertopicmetrics_remotecopylagbytes"


def test_the_size_of_an_archive_is_left_out_until_it_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = AwayStore(str(tmp_path / "store"))
        broker = Broker(tmp_path, store)
        cache = SimpleNamespace(size=0, waiting=0)
        archive: Any = SimpleNamespace(manager=broker.manager, reader=SimpleNamespace(cache=cache))

        async def scraped() -> _Collected:
            found = _Collected()
            await _archive(archive, found)
            return found

        store.is_away = True
        broker.lead(0)
        fill(broker.log, 10)
        await broker.until(lambda: bool(broker.manager.problem))
        away = await scraped()
        assert away[SIZE] == []
        assert away[FAILING] == [((TP.topic,), 1)]
        assert away[LAG] == [((TP.topic,), broker.status.lag_bytes)]
        store.is_away = False
        await broker.until_archived()
        assert broker.manifest is not None
        back = await scraped()
        assert back[SIZE] == [((TP.topic,), broker.manifest.size)]
        assert back[FAILING] == [((TP.topic,), 0)]
        await broker.manager.close()

    asyncio.run(scenario())
