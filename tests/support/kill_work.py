"""What a job of the kill matrix works on: its topic, its arguments, where it writes, and the audit of that.

One `Work` per round, all its names its own. `audit` is told whether the job has ended well: until then rows may be
missing, but none may be there twice, strange or damaged. Used by kill_round.py.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.cluster_metadata import CoordinatorKind
from broker.protocol.topic_partition import TopicPartition
from spark_connector.storage import Storage, open_storage
from spark_connector.write.write_plan import SinkNames
from tests.support.job_output import committed_copies, rows_of_load, rows_of_read, rows_of_stream, wait_until_stable
from tests.support.kill_cells import Cell, Job, Place, Reading, Victim
from tests.support.kill_servers import Servers
from tests.support.record_audit import audit_copies, audit_rows
from tests.support.topic_data import TopicData
from tests.support.topics import DEFAULT_REPLICATION

_PARTITIONS = 3
_COPY_PARTITIONS = 2
_READING = {
    Reading.PREFETCHED: {"maxPrefetchedRecords": "1000000"},
    Reading.SHARED: {"maxPrefetchedRecords": "0", "minBytesPerPartition": "1g"},
    Reading.RANGES: {"maxPrefetchedRecords": "0", "minBytesPerPartition": "0"},
}


class Work(abc.ABC):
    """One job's input and output."""

    job: Job
    records = 2_400  # per run that is aimed at
    cap = 600  # offsets per micro-batch or task
    rights: tuple[str, ...]
    """The jobs of job_rights.py that it does."""
    events: tuple[str, ...] = ()
    """What the job tells of on its way, to strike after."""

    def __init__(self, cell: Cell, servers: Servers, directory: Path, number: int) -> None:
        self.cell, self.servers = cell, servers
        self.topic = f"round-{number}-{cell}"
        on_hdfs = cell.place is Place.HDFS
        self.root = f"{servers.hdfs.uri}/matrix/{self.topic}" if on_hdfs else str(directory / self.topic)
        self._storage_options = servers.hdfs.client_options if on_hdfs else {}
        self._local = None if on_hdfs else directory / self.topic
        self.bootstrap = servers.bootstrap(cell.victim)
        self._data = TopicData(self.bootstrap, self.topic, partitions=_PARTITIONS)
        names = {"topic": self.topic, "sink": f"{self.topic}-copy", "group": self.topic, "prefix": "pykafka-sink-"}
        self._client = servers.client(cell.victim, number, self.rights, names)

    def produce(self) -> None:
        """More for the job to do."""
        self._data.produce(self.records)

    def arguments(self) -> dict[str, Any]:
        """What kill_jobs.py is given, the same for every run of the round."""
        return {
            "client": self._client,
            "topic": self.topic,
            "cap": self.cap,
            "output": f"{self.root}/output",
            "checkpoint": f"{self.root}/checkpoint",
            "reading": _READING[self.cell.reading],
        }

    @abc.abstractmethod
    def audit(self, *, complete: bool) -> list[str]:
        """What is wrong with the output."""

    def remove_torn_checkpoint(self) -> None:
        """Take away the file over which Spark stumbles (docs/decisions/build.md); nothing else may be there."""
        offsets = self._storage("checkpoint/offsets")
        names = offsets.names("")
        assert names, "the checkpoint is empty, and Spark says it is not"
        assert all(name.startswith(".0.") and name.endswith(".tmp") for name in names), names
        for name in names:
            offsets.remove(name)

    def broker_to_kill(self, dice: random.Random) -> int:
        """The leader of one of its partitions, of which one is drawn; in a cluster of three."""
        partitions = [TopicPartition(topic, partition) for topic in self._topics() for partition in range(2)]
        return self.servers.cluster.leader(dice.choice(partitions))

    def written(self) -> int | None:
        """Bytes that lie where the job writes, finished or not; they grow in the moments that matter. None on HDFS."""
        return None if self._local is None else _size(self._local / "output")

    def remove(self) -> None:
        """Topics and files, when nobody needs to look at them."""
        admin = self._admin()
        for answer in admin.delete_topics(self._topics()).values():
            answer.result(60)
        if self._local is not None:
            shutil.rmtree(self._local, ignore_errors=True)
        else:
            self._storage("").remove("output")
            self._storage("").remove("checkpoint")

    def _topics(self) -> list[str]:
        return [self.topic]

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _storage(self, path: str) -> Storage:
        return open_storage(f"{self.root}/{path}".rstrip("/"), self._storage_options)

    def _audit_rows(self, rows: list[Any], complete: bool) -> list[str]:
        return audit_rows(rows, self.topic, self._data.ends, TopicData.record, complete=complete)


class _Read(Work):
    job = Job.READ
    rights = ("batch read",)
    records, cap = 6_000, 1_000

    def audit(self, *, complete: bool) -> list[str]:
        """Plain parquet makes no promise about what lies there while it is being written."""
        return self._audit_rows(rows_of_read(self._storage("output")), complete=True) if complete else []


class _Stream(Work):
    job = Job.STREAM
    rights = ("stream",)
    events = ("batch 1", "batch 2", "batch 3")

    def audit(self, *, complete: bool) -> list[str]:
        return self._audit_rows(rows_of_stream(self._storage("output")), complete)


class _Load(Work):
    job = Job.LOAD
    rights = ("load",)
    records = 6_000
    events = ("plan", "write", "commit")

    def arguments(self) -> dict[str, Any]:
        """Offsets are kept where the blow falls: in ZooKeeper for its death, else beside the output."""
        in_zookeeper = self.cell.victim in (Victim.ZOOKEEPER, Victim.DRIVER)
        return {
            "bootstrap_servers": self._client["kafka.bootstrap.servers"],
            "topic": self.topic,
            "to": f"{self.root}/output",
            "group": self.topic,
            "offsets": "zookeeper" if in_zookeeper else "files",
            "zookeeper_connect": f"{self.servers.zookeeper}/loads" if in_zookeeper else None,
            "storage_options": self._storage_options,
            "options": {**self._client, "maxRecordsPerPartition": "1000"},  # several tasks
        }

    def audit(self, *, complete: bool) -> list[str]:
        return self._audit_rows(rows_of_load(self._storage("output")), complete)


class _Sink(Work):
    job = Job.SINK
    rights = ("stream", "stream write, exactly once")
    events = ("batch 1", "batch 2", "batch 3")

    def __init__(self, cell: Cell, servers: Servers, directory: Path, number: int) -> None:
        super().__init__(cell, servers, directory, number)
        self._copy = f"{self.topic}-copy"
        admin = self._admin()
        admin.create_topics([NewTopic(self._copy, _COPY_PARTITIONS, DEFAULT_REPLICATION)])[self._copy].result(30)

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "output": self._copy}

    def audit(self, *, complete: bool) -> list[str]:
        """Read back by confluent-kafka as read_committed."""
        left_open = wait_until_stable(self.bootstrap, self._copy, _COPY_PARTITIONS) if complete else None
        copies = committed_copies(self.bootstrap, self._copy, _COPY_PARTITIONS)
        problems = audit_copies(copies, self.topic, self._data.ends, TopicData.record, complete=complete)
        return [*([left_open] if left_open else []), *problems]

    def broker_to_kill(self, dice: random.Random) -> int:
        """A leader, or as a coordinator that of the decisions or of one of the transactions."""
        if self.cell.victim is Victim.LEADER:
            return super().broker_to_kill(dice)
        metadata = (
            self._storage("checkpoint").read("metadata") if "metadata" in self._storage("checkpoint").names("") else b""
        )
        names = SinkNames("pykafka-sink", json.loads(metadata)["id"] if metadata else "not yet")
        cluster, kind = self.servers.cluster, CoordinatorKind.TRANSACTION
        drawn = dice.randrange(4)
        if drawn == 0:
            return cluster.coordinator(names.group())
        return cluster.coordinator(names.of_driver if drawn == 1 else names.of_attempt(drawn - 2, 1), kind)

    def written(self) -> int:
        """Of the partitions' logs, what is not committed included."""
        logs = self.servers.logs(self.cell.victim)
        return sum(_size(log / f"{self._copy}-{partition}") for log in logs for partition in range(_COPY_PARTITIONS))

    def _topics(self) -> list[str]:
        return [self.topic, self._copy]


_WORKS: dict[Job, type[Work]] = {work.job: work for work in (_Read, _Stream, _Load, _Sink)}


def work_of(cell: Cell, servers: Servers, directory: Path, number: int) -> Work:
    """New work for a cell; `number` makes its names unique."""
    return _WORKS[cell.job](cell, servers, directory, number)


def _size(directory: Path) -> int:
    """Bytes of the log segments or data files below it; files may come and go meanwhile."""
    size = 0
    for parent, _, names in os.walk(directory):  # unlike rglob it passes over a directory that goes while it looks
        for name in names:
            if name.endswith((".log", ".parquet")):
                with contextlib.suppress(OSError):
                    size += os.stat(os.path.join(parent, name)).st_size
    return size
