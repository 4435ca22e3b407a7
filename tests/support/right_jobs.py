"""The jobs of tests/support/job_rights.py without Spark: what its driver and tasks ask of a broker, in this process.

Each does its work as a user who has some rights, and says what came of it.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.mirror.group_sync import checkpoints_topic
from broker.mirror.mirror import Mirror
from broker.mirror.mirror_settings import MirrorSettings
from broker.mirror.sync_topic import sync_topic
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.audit.kafka_log import KafkaLog
from spark_connector.loads.commit import publish_offsets
from spark_connector.maintenance import verify
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.options.write_options import parse_write_options
from spark_connector.read.fetch import read_ranges
from spark_connector.read.micro_batches import MicroBatches
from spark_connector.read.readers import KafkaBatchReader
from spark_connector.write.attempt import run_attempt
from spark_connector.write.commit_protocol import commit_batch, commit_batch_write
from spark_connector.write.task_report import Attempt
from spark_connector.write.write_plan import plan_write
from tests.support.denying import Denying
from tests.support.plain_loads import PlainLoads, open_files

RECORDS = 40
"""In the topic that is read, in two partitions."""


@dataclasses.dataclass
class World:
    """A broker, the names of what a job uses there, and a directory for its files."""

    broker: Denying
    names: Mapping[str, str]
    directory: Path

    def read_options(self, user: str, **more: str) -> dict[str, str]:
        options = {"subscribe": self.names["topic"], "startingOffsets": "earliest", **self.broker.options(user)}
        return {**options, **{name.replace("_", "."): text for name, text in more.items()}}

    def committed(self) -> dict[TopicPartition, int]:
        """The group's offsets."""
        with Cluster(self.broker.listeners["PLAINTEXT"]) as cluster:
            return GroupOffsets(cluster, self.names["group"]).fetch()

    def loads(self, user: str) -> PlainLoads:
        address = self.broker.properties(user)["bootstrap.servers"]
        options = self.broker.options(user)
        return PlainLoads(
            address, self.names["topic"], self.directory / user, group=self.names["group"], options=options
        )


def batch_read(world: World, user: str, **more: str) -> int:
    reader = KafkaBatchReader(parse_options(world.read_options(user, **more), Mode.BATCH))
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def committed_read(world: World, user: str) -> int:
    group = world.names["group"]
    with Cluster(world.broker.listeners["PLAINTEXT"]) as cluster:
        GroupOffsets(cluster, group).commit({TopicPartition(world.names["topic"], 0): RECORDS // 4})
    store = {"offsetStore": "group", "group": group, "startingOffsets": "committed"}
    return batch_read(world, user, **store) + RECORDS // 4


def bad_records_read(world: World, user: str) -> int:
    """All values are malformed."""
    formats = {"valueFormat": "json", "valueSchema": "a INT", "mode": "DROPMALFORMED"}
    rows = batch_read(world, user, **formats, badRecordsTopic=world.names["bad"])
    return RECORDS - rows


def stream(world: World, user: str, **more: str) -> int:
    """One batch."""
    options = parse_options(world.read_options(user, **more), Mode.STREAM)
    batches = MicroBatches(options)
    try:
        start = batches.initial()
        end = batches.next_end(start)
        plan = batches.plan(start, end)
        tasks = batches.tasks(plan)
        rows = sum(one.num_rows for task in tasks for one in read_ranges(options, task, plan.topic_ids))
        batches.committed(end)
        return rows
    finally:
        batches.close()


def stream_with_group(world: World, user: str) -> int:
    return stream(world, user, offsetStore="group", group=world.names["group"])


def batch_write(world: World, user: str, delivery: str) -> int:
    plan = plan_write(parse_write_options(_write_options(world, user, delivery), stream=False))
    report = run_attempt(plan, Attempt(str(uuid.uuid4()), None, 0), _rows())
    commit_batch_write(plan, [report])
    return report.rows


def stream_write(world: World, user: str, delivery: str) -> int:
    plan = plan_write(parse_write_options(_write_options(world, user, delivery), stream=True))
    sink = str(uuid.uuid4())
    reports = []
    for batch in range(2):
        report = run_attempt(plan, Attempt(sink, batch, 0), _rows())
        commit_batch(plan, batch, [report])
        reports.append(report)
    return reports[-1].rows


def load(world: World, user: str) -> int:
    loads = world.loads(user)
    rows = loads.load().rows
    with open_files(loads.target) as site:
        publish_offsets(loads.request(), site)
    return rows


def verified(world: World, user: str) -> int:
    """A load of somebody else's."""
    loads = world.loads(user)
    full = PlainLoads(world.broker.listeners["PLAINTEXT"], loads.topic, loads.to, group=loads.target.group)
    full.load()
    result = verify(loads.target, loads.bootstrap, options=world.broker.options(user))
    assert result.ok
    with KafkaLog(loads.bootstrap, world.broker.options(user)) as log:
        world.names = {**world.names, "compacted": str(log.is_compacted(loads.topic))}
    return sum(one.totals.logged for one in result.loads)


def mirrored(world: World, user: str, side: str) -> int:
    """A mirror and its restart. At the other side is a super user. The groups that moved are noted."""
    super_user, topic = world.broker.listeners["PLAINTEXT"], TopicPartition(world.names["topic"], 0)
    with Cluster(super_user) as free, Cluster(world.broker.properties(user)) as mine:
        GroupOffsets(free, world.names["group"]).commit({topic: RECORDS // 4})
        Admin(free).alter_configs(ResourceType.TOPIC, topic.topic, {"retention.ms": "-1"})  # to be copied
        source, target = (mine, free) if side == "source" else (free, mine)
        mirrors = [Mirror(source, target, _mirror_settings(world.names)) for _ in range(2)]
        for mirror in mirrors:
            mirror.run(lambda: False, once=True)
    world.names = {**world.names, "moved": str(sum(mirror.stats.groups for mirror in mirrors))}
    return sum(mirror.stats.records for mirror in mirrors)


def mirror_names(names: Mapping[str, str]) -> dict[str, str]:
    """What a mirror has at the target. The group lends its name, which is unique, to the source."""
    settings = _mirror_settings(names)
    alias = settings.source_cluster_alias
    return {
        "copy": settings.policy.remote_topic(names["topic"]),
        "syncs": sync_topic(alias),
        "checkpoints": checkpoints_topic(alias),
        "mirror": settings.transactional_id,
    }


def _mirror_settings(names: Mapping[str, str]) -> MirrorSettings:
    group = names["group"]
    return MirrorSettings(
        topics=(names["topic"],), groups=(group,), source_cluster_alias=group, replication_policy="default"
    )


def _write_options(world: World, user: str, delivery: str) -> dict[str, str]:
    return {
        **world.broker.options(user),
        "topic": world.names["sink"],
        "delivery": delivery,
        "transactionalIdPrefix": world.names["prefix"].removesuffix("-"),
    }


def _rows() -> Iterable[pa.RecordBatch]:
    return [pa.record_batch({"value": pa.array([str(n) for n in range(RECORDS)], pa.string())})]


RUNS: Mapping[str, Callable[[World, str], Any]] = {
    "batch read": batch_read,
    "batch read from committed offsets": committed_read,
    "read with a topic of bad records": bad_records_read,
    "stream": stream,
    "stream that commits to a group": stream_with_group,
    "batch write, at least once": lambda world, user: batch_write(world, user, "at-least-once"),
    "stream write, at least once": lambda world, user: stream_write(world, user, "at-least-once"),
    "batch write, exactly once": lambda world, user: batch_write(world, user, "exactly-once"),
    "stream write, exactly once": lambda world, user: stream_write(world, user, "exactly-once"),
    "load": load,
    "verify": verified,
    "mirror, at the source": lambda world, user: mirrored(world, user, "source"),
    "mirror, at the target": lambda world, user: mirrored(world, user, "target"),
}
"""Each returns `RECORDS` when all went well."""
