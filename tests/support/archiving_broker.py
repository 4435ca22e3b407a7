"""A standalone broker with an archive on the local disk, and a topic whose segments close soon."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.errors import BrokerError, ErrorCode
from tests.support.broker_process import BrokerProcess

ARCHIVED_TOPIC = {"remote.storage.enable": "true", "segment.bytes": "20000"}


@contextlib.contextmanager
def archiving_broker(directory: Path) -> Iterator[BrokerProcess]:
    """The archive is in `directory`/archive."""
    settings = {
        "remote.log.storage.system.enable": "true",
        "archive.url": str(directory / "archive"),
        "log.flush.scheduler.interval.ms": "50",  # what is to be archived must be on the disk
    }
    with BrokerProcess(directory / "data", settings, standalone=True) as broker:
        yield broker


def close_segments(broker: BrokerProcess, topic: str) -> None:
    """Write to an archived topic, which is made if need be, until some segments are closed."""
    with Cluster(broker.bootstrap) as cluster:
        try:
            Admin(cluster).create_topic(topic, 1, configs=ARCHIVED_TOPIC)
        except BrokerError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise
    with Producer(broker.bootstrap) as producer:
        for number in range(30):
            producer.send(topic, b"%d" % number * 1000).result()
