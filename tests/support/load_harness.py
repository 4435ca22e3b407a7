"""A load without Spark and broker: the commit protocol over real files and a real commit log, rows as JSON lines.

Used by the tests of files/ here, on HDFS and with ZooKeeper. `World` is what all processes share; `World.load`
is one process that loads what is new, through a `CrashPoint`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.files.directory import FilesDestination
from spark_connector.loads.history import MANIFEST
from spark_connector.loads.record import LoadId, LoadRange, LoadRecord
from tests.support.crashing import CrashPoint

Row = tuple[str, int, int]
"""(topic, partition, offset)"""

_STORAGE_CHANGES = ("create", "open_output", "rename", "remove", "make_directory", "sync")
_LOG_CHANGES = ("append", "mark_published")


@dataclass
class World:
    """The output directory, the commit log and a topic whose partitions grow."""

    output: Storage
    open_log: Callable[[], CommitLog]
    group: str
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def grow(self, topic: str = "t", partitions: int = 2, count: int = 3) -> None:
        for partition in range(partitions):
            tp = TopicPartition(topic, partition)
            self.ends[tp] = self.ends.get(tp, 0) + count

    def load(self, crash: CrashPoint | None = None) -> LoadRecord | None:
        """One load, as load.py does it; None when there is nothing new."""
        crash = crash or CrashPoint()
        output = crash.guard(self.output, _STORAGE_CHANGES)
        log = crash.guard(self.open_log(), _LOG_CHANGES)
        try:
            site = FilesDestination(output, log, self.group)
            site.repair()
            record = self._plan(log)
            if record is None:
                return None
            data = site.stage(record)
            rows: dict[TopicPartition, int] = {}
            for range in record.ranges:
                lines = [json.dumps([*range.tp, offset]) for offset in _offsets(range)]
                with output.open_output(f"{data}/part-{range.topic}-{range.partition}.json") as file:
                    file.write("\n".join(lines).encode())  # as Spark does, which syncs nothing
                rows[range.tp] = len(lines)
            files = {name: size for name, size in output.tree_sizes(data).items() if not name.startswith(("_", "."))}
            sealed = record.completed(rows, files)
            site.seal(sealed)
            site.commit(sealed)
            return sealed
        finally:
            log.close()

    def visible(self) -> list[Row]:
        """Every row that a reader of the output directory finds, duplicates included."""
        rows: list[Row] = []
        for directory in self.output.names(""):
            if directory.startswith(("_", ".")):
                continue
            for name in self.output.names(directory):
                if not name.startswith(("_", ".")):
                    text = self.output.read(f"{directory}/{name}").decode()
                    rows += [tuple(json.loads(line)) for line in text.splitlines()]
        return sorted(rows)

    def committed(self) -> list[Row]:
        """Every row that the commit log says is loaded."""
        log = self.open_log()
        try:
            records = [log.record(sequence) for sequence in log.sequences()]
            return sorted(_rows(range for record in records if record for range in record.ranges))
        finally:
            log.close()

    def produced(self) -> list[Row]:
        return sorted((tp.topic, tp.partition, offset) for tp, end in self.ends.items() for offset in range(end))

    def leftovers(self) -> list[str]:
        """What lies in the staging area."""
        return [name for kind in self.output.names("_staging") for name in self.output.names(f"_staging/{kind}")]

    def _plan(self, log: CommitLog) -> LoadRecord | None:
        stored = log.offsets()
        ranges = tuple(
            LoadRange(tp.topic, tp.partition, stored.get(tp, 0), end, stored.get(tp))
            for tp, end in sorted(self.ends.items())
            if end > stored.get(tp, 0)
        )
        if not ranges:
            return None
        load_id = LoadId(self.group, log.newest().sequence + 1, secrets.token_hex(4))
        return LoadRecord(str(load_id), self.output.url, "json", log.kind, 0, ranges)


def check_manifests(world: World) -> None:
    """Every published directory holds the manifest of its load, and all the files that it lists."""
    for directory in world.output.names(""):
        if directory.startswith("load="):
            where = f"{directory}/{MANIFEST}"
            record = LoadRecord.from_bytes(world.output.read(where), where)
            assert directory == f"load={record.load_id}"
            sizes = world.output.tree_sizes(directory)
            assert all(sizes[file.name] == file.size for file in record.files)


def _rows(ranges: Iterable[LoadRange]) -> list[Row]:
    return [(range.topic, range.partition, offset) for range in ranges for offset in _offsets(range)]


def _offsets(range_: LoadRange) -> range:
    return range(range_.start, range_.end)
