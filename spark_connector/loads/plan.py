"""Plans a load: looks up the group's offsets and the brokers' logs, and makes the record of the load.

Called by load.py with the destination open; starts no Spark. The rules of planning are in rules.py; this module finds
out the facts. A load with `from_load` covers what the group's loads since that one have covered.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from broker.client.partition_offsets import NO_EPOCH
from broker.client.partition_offsets import Position as ReachedPosition
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss, report_data_loss
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.destination import Destination, LoadedDestination
from spark_connector.loads.reading import describe_changes, with_columns
from spark_connector.loads.record import BEGINNING, LoadId, LoadInterrupted, LoadRecord, Origin
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.rewind import standing
from spark_connector.loads.rules import Bounds, plan_positions, plan_ranges, plan_rerun, refuse_other_topics
from spark_connector.options.read_options import SourceOptions
from spark_connector.options.selection import (
    EARLIEST,
    OffsetRangeLimit,
    Position,
    SpecificOffsets,
    SubscribePattern,
    Timestamps,
)
from spark_connector.read.offset_reader import Assigned, OffsetReader
from spark_connector.read.offset_readers import open_offset_reader
from spark_connector.read.stream_offset import StreamOffset

logger = logging.getLogger("pykafka.spark")

_MANY = 8  # names in a message


def plan_load(request: LoadRequest, destination: Destination, earlier: CommitLog | None = None) -> LoadRecord | None:
    """The load to do now; None when nothing is new. Raises ConfigError, DataLoss, PykafkaError.

    `earlier`: the commit log with the load of a re-run, when it is not the destination's own. `dead_letters` of the
    result are those of the newest entry, which are to be settled before the load is written (dead_letters.py), and so
    are `fields`, with which those of this load are compared when its schemas are known (fields.py).
    """
    source, given, fails = request.source, request.given, request.source.fail_on_data_loss
    _refuse_foreign_loads(request.target, destination)
    number = next_number(destination)
    newest = newest_record(destination.log)
    known = newest.topic_ids if newest else {}
    _refuse_changed_reading(request, [newest] if newest else [])
    _refuse_other_mode(request, newest)
    if given.from_load is None:
        with contextlib.closing(open_offset_reader(source)) as reader:
            stored, positions, bounds, assigned = look_up(
                reader, source, lambda partitions: (destination.log.offsets(partitions), newest)
            )
        _warn_of_rows_elsewhere(request, destination, {tp.topic for tp in assigned.partitions if tp in stored})
        try:
            ranges = plan_ranges(stored, bounds, fail_on_data_loss=fails, max_records=given.max_records)
        except DataLoss as error:
            raise DataLoss(error.condition, f"{error.message} {_GO_ON}") from error
        reached = plan_positions(positions, stored, ranges, bounds)
        seen = {**((newest.partitions if newest else None) or {}), **assigned.counts}, _pattern(source)
    else:
        loads, assigned = _loads_again(request, earlier or destination.log)
        stored = destination.log.offsets({range.tp for load in loads for range in load.ranges})
        ranges = plan_rerun(loads, stored)
        seen = dict((newest or loads[-1]).partitions or {}), (newest or loads[-1]).pattern
        reached = loads[-1].positions_at({**{range.tp: range.end for range in ranges}, **stored})
    if not ranges:
        return None
    if number == 1 and not given.new_group:
        refuse_doubling_group(destination, request.target.group, {range.topic for range in ranges})
    ids = assigned.topic_ids
    return LoadRecord(
        load_id=str(LoadId(request.target.group, number, secrets.token_hex(4))),
        output=destination.url,
        format=request.format,
        offsets=destination.log.kind,
        created_ms=time.time_ns() // 1_000_000,
        ranges=ranges,
        rerun_of=given.from_load,
        columns=request.columns,
        partition_by=request.partition_by,
        # A re-run leaves the group's offsets alone, and with them the topics that they belong to.
        topic_ids={**known, **ids} if given.from_load is None else {**ids, **known},
        reading=request.reading,
        origin=Origin(assigned.cluster_id, ",".join(source.client.bootstrap_servers)),
        positions=reached,
        dead_letters=newest.dead_letters if newest else (),
        upsert=request.upsert,
        fields=newest.fields if newest and not _nothing_stands(newest) else None,
        partitions=seen[0] or None,
        pattern=seen[1],
    )


def next_number(destination: Destination) -> int:
    """The number of the next entry, once the newest commit is published.

    A planner takes the number before it reads offsets and history; nothing is stored. If another load commits under the
    number in between, the commit of this one fails. Publishing comes first because a repair finishes the newest commit
    only.
    """
    newest = destination.log.newest()
    while not newest.published:
        destination.repair()
        newest = destination.log.newest()
    return newest.sequence + 1


def confirm_topics(source: SourceOptions, record: LoadRecord) -> None:
    """Check, after the rows are written, that the topics still have the planned ids. Raises LoadInterrupted.

    A topic that was deleted after it was read does no harm.
    """
    try:
        refuse_other_topics([record], _current(source, record.topic_ids).topic_ids)
    except DataLoss as error:
        raise LoadInterrupted(f"load {record.load_id}: {error.message}") from error


def refuse_doubling_group(destination: Destination, group: str, topics: Collection[str]) -> None:
    """Raise ConfigError when other groups have loaded the `topics` into the destination, for the first load of a group.

    A misspelt group is a new group, and its first load would load everything again beside the rows of the right group.
    """
    others = {name: known & {*topics} for name, known in destination.topics_by_group().items() if name != group}
    doubled = sorted(name for name, both in others.items() if both)
    if doubled:
        both = sorted(set().union(*(others[name] for name in doubled)))
        raise ConfigError(
            f"group '{group}' has loaded nothing yet, and {destination.url} holds loads of {_some(both)} by "
            f"{_groups(doubled)}: their rows would be there twice.{_meant(group, doubled)} To load them again "
            "beside those, set new_group (--new-group)"
        )


def refuse_unknown_group(destination: LoadedDestination, group: str) -> None:
    """Raise ConfigError for a group that has no loads and no attempts in the destination."""
    if not destination.log.newest().sequence and not destination.history().entries:
        raise unknown_group(destination, group)


def unknown_group(destination: Destination, group: str) -> ConfigError:
    """The error for a group without loads, which names the groups that have some."""
    groups = sorted(destination.topics_by_group())
    if not groups:
        return ConfigError(f"{destination.url} holds no loads, of group '{group}' or any other")
    return ConfigError(
        f"{destination.url} holds no loads of group '{group}', only of {_groups(groups)}.{_meant(group, groups)}"
    )


def newest_record(log: CommitLog) -> LoadRecord | None:
    """The newest load in the log. Entries that a stream of the same group has written are skipped."""
    return next(_newest_first(log), None)


def _newest_first(log: CommitLog) -> Iterator[LoadRecord]:
    newest = log.newest().sequence
    for number in itertools.chain([newest], (number for number in reversed(log.sequences()) if number != newest)):
        record = log.record(number) if number else None
        if record is not None:
            yield record


def _warn_of_rows_elsewhere(request: LoadRequest, destination: Destination, topics: set[str]) -> None:
    """A group may go on in another place, but whoever expects all records of the `topics` there must hear of it."""
    since = itertools.takewhile(lambda load: load.rewind is None, _newest_first(destination.log))
    loads = (load for load in since if topics & {range.topic for range in load.ranges})
    if topics and (where := destination.rows_elsewhere(loads)):
        logger.warning(
            "the last load of %s by group '%s' went %s: this one takes only what is new since, into %s. To have all of "
            "it there, use another group",
            *(_some(sorted(topics)), request.target.group, where, destination.url),
        )


def _refuse_changed_reading(request: LoadRequest, loads: Iterable[LoadRecord]) -> None:
    """Raise ConfigError when the options differ that choose or decode records, or what columns are made of them: the
    rows do not show which were used."""
    if request.given.allow_changed_options:
        return
    loads = [load for load in loads if not _nothing_stands(load)]
    now = with_columns(request.reading, request.columns)
    for load in loads:
        before = request.reading if load.reading is None else load.reading
        changes = describe_changes(with_columns(before, load.columns), now)
        if changes:
            raise ConfigError(
                f"load {load.load_id} of group '{load.id.group}' was read with other options; this one has {changes}. "
                "Keep the options, use a new group with a directory or table of its own, or say that the group goes on "
                "with these: allow_changed_options (--allow-changed-options)"
            )


def _nothing_stands(newest: LoadRecord) -> bool:
    """Whether the entry takes back all loads, or a group's first one, which was killed before its commit."""
    return newest.rewind is not None and newest.rewind.to_load == BEGINNING


def _refuse_other_mode(request: LoadRequest, newest: LoadRecord | None) -> None:
    """Raise ConfigError for a group that has appended and would upsert now, the other way round, or by another key."""
    if newest is not None and newest.upsert != request.upsert and not _nothing_stands(newest):
        before, now = (str(upsert or "mode=append") for upsert in (newest.upsert, request.upsert))
        raise ConfigError(
            f"load {newest.load_id} of group '{newest.id.group}' was made with {before}; this one has {now}. Keep "
            "them, or use a new group with a table of its own"
        )


def _report_other_cluster(load: LoadRecord | None, assigned: Assigned, *, fail: bool) -> bool:
    """Whether the load is from another cluster, whose offsets mean nothing in this one. Raises DataLoss if `fail`."""
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
    with contextlib.closing(open_offset_reader(options)) as reader:
        return reader.assigned(optional=optional)


_GO_ON = (
    "Nothing was loaded. To go on behind the loss, with the rows of before beside the new ones, run the load once with "
    "option failOnDataLoss=false (--option failOnDataLoss=false). To keep them apart, and in any case with "
    "mode=upsert, load into a new table or directory"
)
"""What to do when records are lost, such as those of a topic that was made again."""

StoredAt = Callable[[Sequence[TopicPartition]], tuple[dict[TopicPartition, int], LoadRecord | None]]
"""Gives the group's offsets, of these partitions at least, and its newest load."""


def look_up(
    reader: OffsetReader, options: SourceOptions, stored_at: StoredAt
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, ReachedPosition], Bounds, Assigned]:
    """The stored offsets, the positions at them, the brokers' bounds, and the partitions to load.

    The user's start is looked up only for partitions that the group has never loaded. The ends are looked up after the
    stored offsets, so that they are never lower. Raises DataLoss, ConfigError and the client's errors.
    """
    assigned = reader.assigned()
    known, newest = stored_at(assigned.partitions)
    positions = newest.positions_at(known) if newest else {}
    earliest = reader.earliest(assigned.partitions)
    reached = StreamOffset(
        {tp: known[tp] for tp in assigned.partitions if tp in known},
        newest.topic_ids if newest else {},
        epochs={tp: position.leader_epoch for tp, position in positions.items()},
    )
    log_ends = reader.ends(reached, assigned)
    latest = dict(log_ends.offsets)
    latest |= _unstable(options, {tp: known[tp] for tp in known.keys() & latest.keys() if known[tp] > latest[tp]})
    starts = earliest
    new = replace(assigned, partitions=tuple(tp for tp in assigned.partitions if tp not in known))
    if new.partitions and options.starting is not Position.EARLIEST:
        is_first = len(new.partitions) == len(assigned.partitions)
        starts = reader.resolve(_starting(options.starting, new, is_first), new, which="start")
    ends = latest if options.ending is Position.LATEST else reader.resolve(options.ending, assigned, which="end")
    recreated = frozenset(t for t, id_ in assigned.topic_ids.items() if reached.topic_ids.get(t, id_) != id_)
    if _report_other_cluster(newest, assigned, fail=options.fail_on_data_loss):
        recreated = frozenset(tp.topic for tp in assigned.partitions)
    now = {tp: log_ends.epochs.get(tp, NO_EPOCH) for tp in latest}
    doubtful = {
        tp: position
        for tp, position in positions.items()
        if now.get(tp, position.leader_epoch) != position.leader_epoch and tp.topic not in recreated
    }
    cut = {tp: lost.end for tp, lost in reader.truncations(doubtful).items()}
    # By time a partition begins at its first record that is young enough, which may be yet to come.
    is_by_time = isinstance(options.starting, Timestamps)
    begins = frozenset(tp for tp in new.partitions if not is_by_time and starts[tp] <= latest[tp])
    named = options.starting.offsets if isinstance(options.starting, SpecificOffsets) else {}
    whole = {tp for tp in new.partitions if named.get(tp, EARLIEST) == EARLIEST and tp.topic not in recreated}
    if is_by_time:
        whole = {tp for tp in whole if starts[tp] <= earliest[tp]}  # else an older record is left: all young ones are
    added = _lacked(newest, whole, assigned, _pattern(options))
    return known, positions, Bounds(earliest, latest, starts, ends, recreated, now, cut, begins, added), assigned


def _lacked(
    newest: LoadRecord | None, partitions: Iterable[TopicPartition], assigned: Assigned, pattern: str | None
) -> frozenset[TopicPartition]:
    """Those of the `partitions` that were added since the group's newest load."""
    if newest is None:
        return frozenset()
    return frozenset(tp for tp in partitions if newest.lacked(tp, assigned.topic_ids.get(tp.topic), pattern))


def _pattern(options: SourceOptions) -> str | None:
    subscription = options.subscription
    return subscription.pattern if isinstance(subscription, SubscribePattern) else None


def _unstable(options: SourceOptions, beyond: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Those of the stored offsets `beyond` the last stable offset that are within the log.

    Loads that read uncommitted records get there while a transaction is open.
    """
    if not beyond or options.client.isolation_level == "read_uncommitted":
        return {}
    client = replace(options.client, isolation_level="read_uncommitted")
    with contextlib.closing(open_offset_reader(replace(options, client=client))) as reader:
        ends = reader.resolve(Position.LATEST, reader.assigned(), which="end")
    return {tp: offset for tp, offset in beyond.items() if offset <= ends.get(tp, -1)}


def _starting(given: OffsetRangeLimit, new: Assigned, is_first: bool) -> OffsetRangeLimit:
    """Where the `new` partitions begin.

    After the first load, options that do not fit a new partition are no error: a partition that they do not name begins
    at its earliest offset, and one without a record as young as asked for has nothing to load yet.
    """
    if isinstance(given, SpecificOffsets):
        return SpecificOffsets({tp: given.offsets.get(tp, EARLIEST) for tp in new.partitions})
    if is_first or not isinstance(given, Timestamps):
        return given
    return Timestamps({**dict.fromkeys(new.partitions, EARLIEST), **given.of(new.partitions)}, latest_if_none=True)


def _loads_again(request: LoadRequest, log: CommitLog) -> tuple[list[LoadRecord], Assigned]:
    """The loads that a re-run covers, whose records can still be read as they were. Raises ConfigError, DataLoss."""
    loads = _loads_since(request, log)
    _refuse_changed_reading(request, loads)
    assigned = _current(request.source)
    for load in loads:
        _report_other_cluster(load, assigned, fail=True)
    refuse_other_topics(loads, assigned.topic_ids)
    return loads, assigned


def _loads_since(request: LoadRequest, log: CommitLog) -> list[LoadRecord]:
    """The loads that a re-run covers: `from_load` and all later ones."""
    wanted = str(request.given.from_load)
    load_id = LoadId.parse(wanted)
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


def finished_rerun(request: LoadRequest, destination: Destination) -> LoadRecord | None:
    """The same re-run, if it was committed before its caller was killed. Raises ConfigError for an output with other
    loads."""
    number = destination.log.newest().sequence
    newest = destination.log.record(number) if number else None
    if newest is not None and newest.rerun_of == request.given.from_load and newest.output == destination.url:
        return newest
    if destination.published(request.target.group):
        raise ConfigError(
            f"{destination.url} holds loads of group '{request.target.group}' already: a re-run needs a directory of "
            "its own"
        )
    return None


def _refuse_foreign_loads(target: Target, destination: Destination) -> None:
    """Raise ConfigError for an output whose loads are not in this commit log: they would be loaded a second time."""
    if destination.log.newest().sequence or not destination.published(target.group):
        return
    if destination.log.newest().sequence == 0:  # still none: the loads are not from a rival that committed just now
        raise ConfigError(
            f"{destination.url} holds loads of group '{target.group}' that its offsets in {target.offsets} do not "
            "know: use the offset store they were made with, another group, or another directory"
        )


def _groups(names: Collection[str]) -> str:
    return f"{'group' if len(names) == 1 else 'groups'} {_some([repr(name) for name in names])}"


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MANY])
    return shown if len(names) <= _MANY else f"{shown} and {len(names) - _MANY} more"


def _meant(group: str, groups: Collection[str]) -> str:
    close = difflib.get_close_matches(group, groups, n=1)
    return f" Did you mean group '{close[0]}'?" if close else ""
