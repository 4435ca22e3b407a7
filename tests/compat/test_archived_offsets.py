"""The offsets of an archived topic, as Kafka's own client for Java asks for them."""

from __future__ import annotations

from pathlib import Path

from tests.archive.test_archived_topic import ARCHIVED, EARLIEST_LOCAL, fill, offsets
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_java import KafkaJava
from tests.support.raw_requests import Requests
from tests.support.waiting import eventually


def test_java_is_told_what_is_local_and_what_is_archived(java: KafkaJava, tmp_path: Path) -> None:
    settings = {
        "remote.log.storage.system.enable": "true",
        "archive.url": f"file://{tmp_path}/archive",
        "log.retention.check.interval.ms": "100",
        "log.flush.scheduler.interval.ms": "50",
    }
    with BrokerProcess(tmp_path / "data", settings, standalone=True) as broker:
        with Requests(broker.bootstrap) as ask:
            ask.create("events", 1, **ARCHIVED)
            fill(ask, "events")
            eventually(lambda: offsets(ask, "events", EARLIEST_LOCAL) == [8])
        clients = java.kafka.clients.admin
        admin = java.admin({"bootstrap.servers": broker.bootstrap})
        partition = java.kafka.common.TopicPartition("events", 0)

        def listed() -> dict[str, tuple[int, int]]:
            specs = ("earliest", "earliestLocal", "latestTiered", "latest", "maxTimestamp")
            found = {}
            for name in specs:
                answer = admin.listOffsets({partition: getattr(clients.OffsetSpec, name)()}).partitionResult(partition)
                info = answer.get()
                found[name] = info.offset(), info.leaderEpoch().orElse(-1)
            return found

        ends = {"earliest": (0, 0), "earliestLocal": (8, 0), "latestTiered": (7, 0), "latest": (10, 0)}
        assert listed() == {**ends, "maxTimestamp": (9, 0)}
        before = f"{clients.RecordsToDelete._fqn}", "beforeOffset", java.jvm.java.lang.Long.TYPE, 9
        answer = admin.deleteRecords({partition: java.call_static(*before)})
        deleted = answer.lowWatermarks().get(partition).get()
        assert deleted.lowWatermark() == 9
        assert listed()["earliest"] == listed()["earliestLocal"] == (9, 0)
