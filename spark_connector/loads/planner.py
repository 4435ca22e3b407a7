"""A load put on rails: its destination and commit log opened, its ranges looked up and planned.

Called by load.py; asks the brokers, but starts no Spark. The rules of planning are in loads/plan.py, this module finds
out what they are applied to. A load with `from_load` covers what the group's loads from that one on have covered.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from broker.client.partition_offsets import Position as ReachedPosition
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss, report_data_loss
from spark_connector.loads.commit import LoadCommitter
from spark_connector.loads.destination import Destination
from spark_connector.loads.file_history import Outputs
from spark_connector.loads.file_site import LoadSite
from spark_connector.loads.groups import refuse_doubling_group
from spark_connector.loads.log import FilesLoadLog, LoadLog
from spark_connector.loads.plan import Bounds, plan_epochs, plan_ranges, plan_rerun, refuse_other_topics
from spark_connector.loads.reading import describe_changes
from spark_connector.loads.record import LoadError, LoadId, LoadInterrupted, LoadRecord, Origin
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.rewind import standing
from spark_connector.options.range_limit import (
    EARLIEST,
    OffsetRangeLimit,
    Position,
    SpecificOffsets,
    TimestampForAll,
    Timestamps,
)
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.offset_reader import Assigned, OffsetReader
from spark_connector.storage import Storage, heals_by_waiting, open_storage

__all__ = [
    "confirm_topics",
    "finished_rerun",
    "next_number",
    "open_destination",
    "open_site",
    "plan_load",
]

_KNOCK_TIMEOUT = 10.0  # seconds


@contextlib.contextmanager
def open_destination(target: Target) -> Iterator[Destination]:
    """The directory, the Delta table or the database, by the target's format. Raises as `open_site` does."""
    if not target.is_table:
        with open_site(target) as site:
            yield site
        return
    destination = _open_table(target)
    with _plain_errors(destination.url):
        try:
            yield destination
        except Exception as error:
            plain = destination.plain_error(error)
            if plain is None:
                raise
            raise plain from error
        finally:
            destination.log.close()


@contextlib.contextmanager
def open_site(target: Target) -> Iterator[LoadSite]:
    """The site for as long as the block runs. Raises ConfigError, OffsetStoreError; OSErrors come out as LoadError."""
    if target.is_table:
        raise ConfigError(f"this is for loads into files; format={target.format} keeps its rows in a table")
    output = open_storage(target.to, target.storage_options)
    if not output.renames_directories:
        raise ConfigError(f"'{target.to}': a load needs a file system with atomic rename: a local directory or hdfs://")
    _knock(output.url)
    log = _open_log(target, output)
    with _plain_errors(target.to):
        try:
            if output.names("_delta_log"):
                raise ConfigError(f"{output.url} is a Delta table: use format=delta, or another directory")
            reopen = functools.partial(open_storage, options=target.storage_options)
            committer = LoadCommitter(output, log, target.group, reopen)
            yield LoadSite(output, log, committer, target.group, Outputs(output, reopen))
        finally:
            log.close()


@contextlib.contextmanager
def _plain_errors(where: str) -> Iterator[None]:
    try:
        yield
    except PykafkaError:
        raise  # some of them are OSErrors too
    except OSError as error:
        kind = LoadInterrupted if heals_by_waiting(error) else LoadError
        raise kind(f"{where}: {type(error).__name__}: {error}") from error


def _open_table(target: Target) -> Destination:
    """What needs an extra is imported only for those who use it."""
    try:
        if target.format == "sql":
            from spark_connector.loads.database import open_database

            return open_database(target.address, target.group)
        from spark_connector.loads.delta import open_delta
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"format={target.format} needs {error.name}: pip install 'pykafka-spark[{target.format}]'"
        ) from error
    output = open_storage(target.to, target.storage_options)
    if not output.renames_directories:
        raise ConfigError(f"'{target.to}': a Delta table must lie in a local directory or on hdfs://")
    _knock(output.url)
    with _plain_errors(output.url):
        return open_delta(output, target.group)


def _open_log(target: Target, output: Storage) -> LoadLog:
    if target.zookeeper_connect is None:
        return FilesLoadLog(output, target.group)
    # kazoo only for those who keep offsets in ZooKeeper
    from spark_connector.loads.log_zookeeper import ZooKeeperLoadLog
    from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore

    return ZooKeeperLoadLog(ZooKeeperOffsetStore(target.zookeeper_connect), target.group)


def _knock(url: str) -> None:
    """Fail within seconds when no NameNode is there: hdfs-native tries for three minutes and says nothing."""
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        return  # a local path, or a name service of HADOOP_CONF_DIR
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=_KNOCK_TIMEOUT).close()
    except OSError as error:
        raise LoadInterrupted(f"nothing answers at {parts.netloc}, the NameNode of '{url}': {error}") from error


def plan_load(request: LoadRequest, site: Destination) -> LoadRecord | None:
    """The load to do now; None when nothing is new. Raises ConfigError, DataLoss, PykafkaError."""
    _refuse_foreign_loads(request.target, site)
    number = next_number(site)
    stored = site.log.offsets()
    newest = _newest_record(site.log)
    known = newest.topic_ids if newest else {}
    _refuse_changed_reading(request, [newest] if newest else [])
    if request.from_load is None:
        epochs = newest.epochs_at(stored) if newest else {}
        bounds, assigned = _look_up(request.source, stored, epochs, newest)
        ranges = plan_ranges(
            stored, bounds, fail_on_data_loss=request.source.fail_on_data_loss, max_records=request.max_records
        )
        reached = plan_epochs(epochs, stored, ranges, bounds)
    else:
        loads = _loads_since(request, site)
        _refuse_changed_reading(request, loads)
        assigned = _current(request.source)
        for load in loads:
            _report_other_cluster(load, assigned, fail=True)
        refuse_other_topics(loads, assigned.topic_ids)
        ranges = plan_rerun(loads, stored)
        reached = loads[-1].epochs_kept({**{range.tp: range.end for range in ranges}, **stored})
    if not ranges:
        return None
    if number == 1 and not request.new_group:
        refuse_doubling_group(site, request.target.group, {range.topic for range in ranges})
    ids = assigned.topic_ids
    return LoadRecord(
        load_id=str(LoadId(request.target.group, number, secrets.token_hex(4))),
        output=site.url,
        format=request.format,
        offsets=site.log.kind,
        created_ms=time.time_ns() // 1_000_000,
        ranges=ranges,
        rerun_of=request.from_load,
        partition_by=request.partition_by,
        # A re-run leaves the group's offsets alone, and with them the topics that they belong to.
        topic_ids={**known, **ids} if request.from_load is None else {**ids, **known},
        reading=request.reading,
        origin=Origin(assigned.cluster_id, ",".join(request.source.client.bootstrap_servers)),
        epochs=reached,
    )


def next_number(site: Destination) -> int:
    """The number of what is planned next. Asked before anything else is looked up: what others commit meanwhile takes
    it. What comes before it is published by then, for a repair finishes the newest commit only."""
    newest = site.log.newest()
    while not newest.published:
        site.committer.repair()
        newest = site.log.newest()
    return newest.sequence + 1


def confirm_topics(request: LoadRequest, record: LoadRecord) -> None:
    """See, once the rows are written, that they are of the topics that were planned. Raises LoadInterrupted.

    One that is gone by now, and was not when they were read, does no harm."""
    try:
        refuse_other_topics([record], _current(request.source, record.topic_ids).topic_ids)
    except DataLoss as error:
        raise LoadInterrupted(f"load {record.load_id}: {error.message}") from error


def _newest_record(log: LoadLog) -> LoadRecord | None:
    """The newest that the log still holds; an entry of a stream in it is none."""
    newest = log.newest().sequence
    numbers = itertools.chain([newest], (number for number in reversed(log.sequences()) if number != newest))
    records = (log.record(number) for number in numbers if number)
    return next((record for record in records if record is not None), None)


def _refuse_changed_reading(request: LoadRequest, loads: Iterable[LoadRecord]) -> None:
    """A group whose loads choose or decode records differently holds what nobody can tell by looking at it."""
    if request.allow_changed_options:
        return
    for load in loads:
        changes = "" if load.reading is None else describe_changes(load.reading, request.reading)
        if changes:
            raise ConfigError(
                f"load {load.load_id} of group '{load.id.group}' was read with other options; this one has {changes}. "
                "Keep the options, use a new group with a directory or table of its own, or say that the group goes on "
                "with these: allow_changed_options (--allow-changed-options)"
            )


def _report_other_cluster(load: LoadRecord | None, assigned: Assigned, *, fail: bool) -> bool:
    """Whether the load is of another cluster, whose offsets mean nothing in this one. Raises DataLoss if `fail`."""
    if load is None or load.origin is None or not load.origin.differs_from(assigned.cluster_id):
        return False
    report_data_loss(
        "PARTITION_OFFSET_CHANGED",
        f"Load {load.load_id} was made from {load.origin}; the brokers asked now are of cluster {assigned.cluster_id}, "
        "whose topics have not been loaded.",
        fail=fail,
    )
    return True


def _current(options: SourceOptions, optional: Collection[str] = ()) -> Assigned:
    reader = OffsetReader(options)
    try:
        return reader.assigned(optional=optional)
    finally:
        reader.close()


def _look_up(
    options: SourceOptions,
    known: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
    newest: LoadRecord | None,
) -> tuple[Bounds, Assigned]:
    """Ask the brokers for the bounds and the topics; the start the user gave is looked up only when there is a
    partition that needs it. `known` are the stored offsets, `newest` the load that is known to have led to them,
    `epochs` the leader epochs that they were reached under."""
    reader = OffsetReader(options)
    try:
        assigned = reader.assigned()
        earliest = reader.earliest(assigned.partitions)
        log_ends = reader.log_ends(assigned.partitions)
        latest = {tp: end.offset for tp, end in log_ends.items()}
        latest |= _unstable(options, {tp: known[tp] for tp in known.keys() & latest.keys() if known[tp] > latest[tp]})
        starts = earliest
        new = replace(assigned, partitions=tuple(tp for tp in assigned.partitions if tp not in known))
        if new.partitions and options.starting is not Position.EARLIEST:
            is_first = len(new.partitions) == len(assigned.partitions)
            starts = reader.resolve(_starting(options.starting, new, is_first), new, which="start")
        ends = latest if options.ending is Position.LATEST else reader.resolve(options.ending, assigned, which="end")
        known_ids = newest.topic_ids if newest else {}
        recreated = frozenset(t for t, id_ in assigned.topic_ids.items() if known_ids.get(t, id_) != id_)
        if _report_other_cluster(newest, assigned, fail=options.fail_on_data_loss):
            recreated = frozenset(tp.topic for tp in assigned.partitions)
        now = {tp: end.leader_epoch for tp, end in log_ends.items()}
        doubtful = {tp for tp in now.keys() & epochs.keys() if now[tp] != epochs[tp] and tp.topic not in recreated}
        reached = {tp: ReachedPosition(known[tp], epochs[tp]) for tp in doubtful}
        cut = {tp: lost.end for tp, lost in reader.truncations(reached).items()}
        return Bounds(earliest, latest, starts, ends, recreated, now, cut), assigned
    finally:
        reader.close()


def _unstable(options: SourceOptions, beyond: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Of stored offsets `beyond` the last stable one those that the log reaches all the same: loads that read
    uncommitted records have got there, and an open transaction lies behind them."""
    if not beyond or options.client.isolation_level == "read_uncommitted":
        return {}
    client = replace(options.client, isolation_level="read_uncommitted")
    reader = OffsetReader(replace(options, client=client))
    try:
        ends = reader.resolve(Position.LATEST, reader.assigned(), which="end")
    finally:
        reader.close()
    return {tp: offset for tp, offset in beyond.items() if offset <= ends.get(tp, -1)}


def _starting(given: OffsetRangeLimit, new: Assigned, is_first: bool) -> OffsetRangeLimit:
    """Where the `new` partitions begin. What options cannot say of partitions that came after the first load, or were
    empty then, is no error: one that they do not name begins at its beginning, and one with no record as young as asked
    for has nothing to load yet."""
    if isinstance(given, SpecificOffsets):
        return SpecificOffsets({tp: given.offsets.get(tp, EARLIEST) for tp in new.partitions})
    if is_first:
        return given
    if isinstance(given, Timestamps):
        return Timestamps({tp: given.timestamps.get(tp, EARLIEST) for tp in new.partitions}, latest_if_none=True)
    return replace(given, latest_if_none=True) if isinstance(given, TimestampForAll) else given


def _loads_since(request: LoadRequest, site: Destination) -> list[LoadRecord]:
    """The loads that a re-run covers: from `from_load` to the newest."""
    wanted = str(request.from_load)
    load_id = LoadId.parse(wanted)
    log = site.log
    if request.from_directory is not None and request.target.offsets == "files":
        log = FilesLoadLog(open_storage(request.from_directory, request.target.storage_options), request.target.group)
    first = log.record(load_id.sequence) if load_id is not None and load_id.group == request.target.group else None
    if load_id is None or first is None or first.load_id != wanted:
        newest = log.newest().load_id
        raise ConfigError(
            f"group '{request.target.group}' has no committed load '{wanted}'"
            + (f"; its newest is {newest}" if newest else "; it has none at all")
        )
    numbers = (number for number in log.sequences() if number >= load_id.sequence)
    loads = standing(record for record in map(log.record, numbers) if record is not None)
    if wanted not in {load.load_id for load in loads}:
        raise ConfigError(f"load '{wanted}' was taken back by a rewind")
    return loads


def finished_rerun(request: LoadRequest, site: Destination) -> LoadRecord | None:
    """The same re-run, when it was committed before (the caller was killed). Refuses an output with other loads."""
    number = site.log.newest().sequence
    newest = site.log.record(number) if number else None
    if newest is not None and newest.rerun_of == request.from_load and newest.output == site.url:
        return newest
    if site.published(request.target.group):
        raise ConfigError(
            f"{site.url} holds loads of group '{request.target.group}' already: a re-run needs a directory of its own"
        )
    return None


def _refuse_foreign_loads(target: Target, site: Destination) -> None:
    """An output with loads that this commit log knows nothing of would be loaded a second time."""
    if site.log.newest().sequence or not site.published(target.group):
        return
    if site.log.newest().sequence == 0:  # still: they are not a rival's, who was quicker
        raise ConfigError(
            f"{site.url} holds loads of group '{target.group}' that its offsets in {target.offsets} know "
            "nothing of: use the offset store they were made with, another group, or another directory"
        )
