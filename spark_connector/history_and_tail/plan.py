"""The plan of a read with `history`: the files of the table at one version, and the topics' ranges from its offsets.

Files and offsets are of one state of the table's metadata, so a load, a compaction or a kill beside the plan changes
nothing: each record is a row of the files, or lies in the ranges. The offsets are checked as a load checks its own.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.client.partition_offsets import NO_EPOCH
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss
from spark_connector.history_and_tail.fitted_read import FittedRead, open_table, refuse_changed_reading
from spark_connector.loads.plan import look_up
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.rules import plan_starts
from spark_connector.loads.table_snapshot import TableFile, TableSnapshot
from spark_connector.offset_store.base import Offsets
from spark_connector.read.offset_readers import open_offset_reader
from spark_connector.read.plan_note import tell_plan
from spark_connector.read.planning import OffsetRange, batch_ranges, keep_offsets

logger = logging.getLogger("pykafka.spark")

_TRIES = 5  # beside loads and retention


@dataclass(frozen=True)
class HistoryPlan:
    """What one read does. `epochs` are the leader epochs of the records before `starts`, where they are known."""

    snapshot: TableSnapshot
    starts: Offsets
    tasks: list[tuple[OffsetRange, ...]]
    topic_ids: Mapping[str, str]
    epochs: Offsets


def plan_history(fitted: FittedRead) -> HistoryPlan:
    """Open the table once, ask the brokers. Raises ConfigError, DataLoss, LoadError and the client's errors."""
    found: list[TableSnapshot] = []

    def stored_at(partitions: Sequence[TopicPartition]) -> tuple[dict[TopicPartition, int], LoadRecord | None]:
        snapshot = destination.snapshot(partitions)
        found.append(snapshot)
        return dict(snapshot.offsets), snapshot.newest

    options = fitted.topics
    with open_table(fitted.history) as destination, contextlib.closing(open_offset_reader(options)) as reader:
        for tries_left in reversed(range(_TRIES)):
            stored, positions, bounds, assigned = look_up(reader, options, stored_at)
            snapshot = found[-1]
            try:
                starts = plan_starts(stored, bounds, fail_on_data_loss=True)
                break
            except DataLoss:
                if tries_left and destination.snapshot(assigned.partitions).number > snapshot.number:
                    continue  # a load has copied the records before retention deleted them
            starts = plan_starts(stored, bounds, fail_on_data_loss=options.fail_on_data_loss)
            break
        refuse_changed_reading(fitted, snapshot.newest)
        _report_left_out(snapshot, assigned.partitions, fitted)
        ends = {tp: max(bounds.ends[tp], start) for tp, start in starts.items()}
        whole = keep_offsets(batch_ranges(starts, ends), options.filters)
        tell_plan(whole, beside=snapshot.files)
        tasks = reader.tasks(reader.split(whole, assigned.topic_ids))
    epochs = {
        tp: position.leader_epoch
        for tp, position in positions.items()
        if starts.get(tp) == position.offset and position.leader_epoch != NO_EPOCH
    }
    return HistoryPlan(snapshot, starts, tasks, assigned.topic_ids, epochs)


def files_at(fitted: FittedRead, version: str) -> TableSnapshot:
    """The same table at a version that an earlier plan has named. Raises as `plan_history`."""
    with open_table(fitted.history) as destination:
        return destination.snapshot((), version)


def share_files(files: Sequence[TableFile], least_bytes: int) -> list[tuple[TableFile, ...]]:
    """The files of each task: one of `least_bytes` or more has its own, smaller ones share tasks up to that size."""
    tasks: list[tuple[TableFile, ...]] = []
    shared: list[TableFile] = []
    for file in files:
        if file.size >= least_bytes:
            tasks.append((file,))
            continue
        if shared and sum(one.size for one in shared) + file.size > least_bytes:
            tasks.append(tuple(shared))
            shared = []
        shared.append(file)
    return [*tasks, tuple(shared)] if shared else tasks


def _report_left_out(snapshot: TableSnapshot, assigned: Sequence[TopicPartition], fitted: FittedRead) -> None:
    """Raise ConfigError when the table has rows of partitions that the options do not select: they would have no tail.

    A topic that was deleted has none either: with failOnDataLoss=false its rows are read without.
    """
    topics = {tp.topic for tp in assigned}
    others = {str(tp) for tp in snapshot.offsets.keys() - {*assigned}}
    others |= {topic for topic in (snapshot.newest.topic_ids if snapshot.newest else {}) if topic not in topics}
    if not others:
        return
    text = (
        f"{snapshot.shown} holds rows of {', '.join(sorted(others))} from loads of group '{fitted.history.group}', "
        "which the options do not select"
    )
    if fitted.topics.fail_on_data_loss:
        raise ConfigError(
            f"{text}: select all topics that the group loads. If they no longer exist, set failOnDataLoss to false to "
            "read their rows of the table, without what was not loaded"
        )
    logger.warning("%s: their rows of the table are read, without what was not loaded", text)
