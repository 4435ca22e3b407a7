"""The rows of brokers: who is away, whose disk is full, who leads too little."""

from __future__ import annotations

from broker.client.admin_types import LogDir
from broker.client.cluster_metadata import Node
from broker.errors import BrokerError, ErrorCode
from pykafka_ui.pages.cluster_pages import broker_rows
from pykafka_ui.seen.snapshot import Partition, Snapshot, Topic

BROKEN = BrokerError(ErrorCode.kafka_storage_error, "the disk does not answer")


def seen(*disks: LogDir) -> Snapshot:
    partitions = (Partition(0, 1, (1, 2), (1, 2)), Partition(1, 1, (2, 1), (1,)), Partition(2, 1, (3, 1), (1,)))
    nodes = (Node(1, "a", 1, "east"), Node(2, "b", 1))
    return Snapshot(1, brokers=nodes, topics={"t": Topic("t", False, partitions)}, disks=disks)


def test_a_broker_that_has_replicas_and_is_not_listed_is_away() -> None:
    rows = broker_rows(seen())
    assert [(row.id, row.state, row.led, row.replicas, row.misled) for row in rows] == [
        (1, ("ok", "up"), 3, 3, 0),
        (2, ("ok", "up"), 0, 2, 1),
        (3, ("bad", "away"), 0, 1, 1),
    ]


def test_the_fullest_disk_counts_and_an_unknown_one_is_not_empty() -> None:
    disks = (
        LogDir(1, "/a", None, 100, 90, {}),
        LogDir(1, "/b", None, 100, 5, {}),
        LogDir(2, "/a", BROKEN, -1, -1, {}),
    )
    first, second, third = broker_rows(seen(*disks))
    assert (first.state, first.used, first.total, first.free) == (("warn", "disk is nearly full"), 0.95, 100, 5)
    assert second.state == ("bad", "a directory failed")
    assert "the disk does not answer" in second.errors[0]
    for row in (second, third):
        assert (row.used, row.total, row.free) == (None, -1, -1)
