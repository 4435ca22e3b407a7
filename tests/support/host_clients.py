"""Run as a program on a host of its own: a producer and a group that work all the time, and what is known of them.

    python -m tests.support.host_clients BOOTSTRAP TOPIC CONFIGS

SteadyLoad, with the time-outs of `SETTINGS`; CONFIGS, a JSON object, are those of the topic. Answers each line on
standard input with a line of JSON, as `Clients.answer` says, after a first one when the topic is written and read.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from broker.client.cluster import Cluster
from broker.client.cluster_metadata import CoordinatorKind
from broker.client.partition_offsets import LATEST_TIERED, list_offsets
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from tests.support.host_counts import Numbers
from tests.support.steady_load import SteadyLoad

PARTITIONS = 6
KEYS = 600
SETTINGS: dict[str, str | int] = {
    "socket.timeout.ms": 6_000,
    "socket.connection.setup.timeout.ms": 3_000,
    "request.timeout.ms": 5_000,
    "topic.metadata.refresh.interval.ms": 5_000,
    "reconnect.backoff.max.ms": 1_000,
}
"""librdkafka waits a minute for a host that is silent."""
_LOOK_EVERY_S = 1.0
_INTERVAL_S = 0.05


@dataclass
class Clients:
    bootstrap: str
    load: SteadyLoad

    def __post_init__(self) -> None:
        self.partitions = [TopicPartition(self.load.topic, number) for number in range(PARTITIONS)]
        self.archived_at, self.archived, self.longest_archive = time.monotonic(), 0, 0.0

    def answer(self, asked: str) -> Any:
        """`reset`: forget the pauses. `pauses`: the longest, in seconds. `acknowledged` and `read`: numbers. `failed`:
        the errors of records that were given up. `healed`: whether all replicas are in sync. `roles`: the ids of
        brokers by what they do."""
        if asked == "reset":
            self.load.reset()
            self.archived_at, self.longest_archive = time.monotonic(), 0.0
            return True
        if asked == "pauses":
            archive = max(self.longest_archive, time.monotonic() - self.archived_at)
            return {"producer": self.load.longest_write, "group": self.load.longest_read, "archive": archive}
        if asked in ("acknowledged", "read"):
            return Numbers.of([*(self.load.acknowledged if asked == "acknowledged" else self.load.read)]).to_json()
        if asked == "failed":
            return [str(error) for error in self.load.failed]
        with Cluster(self.bootstrap) as cluster:
            if asked == "healed":
                return all(
                    one.leader >= 0 and set(one.isr) == set(one.replicas)
                    for topic in cluster.topics().values()
                    for one in topic.partitions.values()
                )
            return {
                "leader": cluster.leader(self.partitions[0]).id,
                "coordinator": cluster.coordinator(self.load.topic, CoordinatorKind.GROUP).id,
                "controller": cluster.controller().id,
            }

    def watch_archive(self) -> None:
        """Notes how long no segment was copied."""
        while True:
            try:
                with Cluster(self.bootstrap) as cluster:
                    ends = list_offsets(cluster, dict.fromkeys(self.partitions, LATEST_TIERED))
                archived = sum(end.offset + 1 for end in ends.values())
            except PykafkaError:
                continue
            now = time.monotonic()
            if archived > self.archived:
                self.longest_archive = max(self.longest_archive, now - self.archived_at)
                self.archived_at, self.archived = now, archived
            time.sleep(_LOOK_EVERY_S)


def main(bootstrap: str, topic: str, configs: str) -> None:
    given = {"topic": topic, "configs": json.loads(configs)}
    load = SteadyLoad(bootstrap, PARTITIONS, SETTINGS, keys=KEYS, interval=_INTERVAL_S, **given)
    clients = Clients(bootstrap, load)
    load.start()
    threading.Thread(target=clients.watch_archive, daemon=True).start()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(clients.answer(line.strip())), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
