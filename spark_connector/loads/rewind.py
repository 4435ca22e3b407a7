"""Rewinding a group: make it stand at an earlier load again, the output of the loads after that one taken back.

A rewind is an entry in the commit log like a load's, under the next number: one atomic act stores it together with the
offsets to go back to. From then on it is done, and what is left is carried out by whoever repairs: the directories of
the undone loads are moved aside. A load that runs meanwhile wants the same number, so one of the two gets
OffsetConflict; one that begins later repairs first. Directories go newest first: what a reader finds on the way is what
some earlier load had left, never a hole.

Tables take rows and offsets back in one act, their commit (loads/database_rows.py, loads/log_delta.py).

All is pure here but `undo_outputs`, which is loads/commit.py's; callers use loads/upkeep.py.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import (
    LoadError,
    LoadId,
    LoadRange,
    LoadRecord,
    Rewind,
    Undone,
    published_directory,
)
from spark_connector.storage import Storage

__all__ = ["REWOUND", "aside_of", "fates", "manifest_of", "plan_rewind", "standing", "undo_outputs", "undone_loads"]

REWOUND = "_rewound"
"""Below the output directory; hidden from readers."""


def standing(records: Iterable[LoadRecord]) -> list[LoadRecord]:
    """The loads that no rewind has taken back, of those given in order of number; rewinds are not among them."""
    given = list(records)
    undone = {gone.load_id for record in given if record.rewind for gone in record.rewind.undone}
    return [record for record in given if record.rewind is None and record.load_id not in undone]


def aside_of(rewind_id: str, load_id: str) -> str:
    """Where a rewind moves the directory of a load, below the load's output directory."""
    return f"{REWOUND}/{rewind_id}/{published_directory(load_id)}"


def manifest_of(rewind_id: str) -> str:
    """Where a rewind leaves its record."""
    return f"{REWOUND}/{rewind_id}/_manifest.json"


def plan_rewind(
    loads: Sequence[LoadRecord],
    stored: Mapping[TopicPartition, int],
    to_load: str,
    *,
    number: int,
    delete: bool,
    now_ms: int | None = None,
) -> LoadRecord:
    """The entry, under `number`, that takes back every load of `loads` (those that stand, in order) after `to_load`.

    A partition goes back to where the first of them began. Raises ConfigError when `to_load` is not among the loads
    or nothing comes after it.
    """
    ids = [load.load_id for load in loads]
    if to_load not in ids:
        newest = f"the newest that stands is {ids[-1]}" if ids else "there is none that stands"
        raise ConfigError(f"there is no load '{to_load}' to rewind to; {newest}")
    later = loads[ids.index(to_load) + 1 :]
    if not later:
        raise ConfigError(f"'{to_load}' is the newest load; there is nothing to take back")
    newest_load, back = later[-1], loads[ids.index(to_load)]
    ranges = _back_to(_starts(later), stored)
    stands = {**stored, **{range.tp: range.end for range in ranges}}
    return LoadRecord(
        load_id=str(LoadId(newest_load.id.group, number, secrets.token_hex(4))),
        output=newest_load.output,
        format=newest_load.format,
        offsets=newest_load.offsets,
        created_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        ranges=ranges,
        topic_ids=_topic_ids(later),
        reading=back.reading,
        origin=back.origin,
        epochs=back.epochs_kept(stands),
        rewind=Rewind(to_load, tuple(Undone(load.load_id, load.output) for load in later), delete),
    )


def undone_loads(rewind: Rewind, records: Mapping[str, LoadRecord]) -> list[LoadRecord]:
    """The loads that a rewind takes back, out of the log's by id. Raises LoadError for one that was pruned since."""
    missing = [undone.load_id for undone in rewind.undone if undone.load_id not in records]
    if missing:
        raise LoadError(f"load {missing[0]} cannot be taken back: the commit log has forgotten what it was")
    return [records[undone.load_id] for undone in rewind.undone]


def fates(plan: LoadRecord) -> list[str]:
    """What a rewind does to each load's output, newest first, in words."""
    assert plan.rewind is not None
    if plan.format == "sql":
        text = "the rows of {id} in {output} are deleted"
    elif plan.format == "delta":
        text = "the files of {id} are taken out of {output}; VACUUM deletes them"
    elif plan.rewind.delete:
        text = "{output}/{directory} is deleted"
    else:
        text = "{output}/{directory} is moved to " + f"{REWOUND}/{plan.load_id}/"
    return [
        text.format(id=gone.load_id, output=gone.output, directory=published_directory(gone.load_id))
        for gone in reversed(plan.rewind.undone)
    ]


def undo_outputs(record: LoadRecord, rewind: Rewind, reach: Callable[[str], Storage]) -> None:
    """Move aside, or delete, what the undone loads have written; what is gone already is passed over.

    The rewind leaves its record there, so that it is known when the commit log has forgotten it. `reach` opens the
    output directory at a URL. May be called again, and by two processes at once.
    """
    with contextlib.suppress(FileExistsError):
        reach(record.output).create(manifest_of(record.load_id), record.to_bytes())
    for undone in reversed(rewind.undone):
        output, source = reach(undone.output), published_directory(undone.load_id)
        aside = aside_of(record.load_id, undone.load_id)
        try:
            output.rename(source, aside)
        except FileNotFoundError:
            continue  # moved by an earlier try, or taken away by hand long ago
        except FileExistsError as error:
            if output.exists(source):
                raise LoadError(
                    f"rewind {record.load_id}: {output.url_of(source)} and {output.url_of(aside)} are both there: "
                    "remove the one that should not be"
                ) from error
    if rewind.delete:
        for undone in rewind.undone:
            reach(undone.output).remove(aside_of(record.load_id, undone.load_id))


def _starts(later: Iterable[LoadRecord]) -> dict[TopicPartition, int]:
    starts: dict[TopicPartition, int] = {}
    for load in later:
        for range in _moved(load):
            starts.setdefault(range.tp, range.start)
    return starts


def _moved(load: LoadRecord) -> list[LoadRange]:
    """The ranges that have moved the group's offsets; a re-run leaves those alone that it has found."""
    return [range for range in load.ranges if load.rerun_of is None or range.stored is None]


def _topic_ids(later: Sequence[LoadRecord]) -> dict[str, str]:
    """Those that the offsets to go back to belong to: of each topic the first that was loaded."""
    ids = dict(later[-1].topic_ids)
    for load in reversed(later):
        ids.update(
            {range.topic: load.topic_ids[range.topic] for range in _moved(load) if range.topic in load.topic_ids}
        )
    return ids


def _back_to(offsets: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, int]) -> tuple[LoadRange, ...]:
    """Empty ranges: their ends are what the commit stores, `stored` is what it must find."""
    return tuple(
        LoadRange(tp.topic, tp.partition, offset, offset, stored.get(tp), 0) for tp, offset in sorted(offsets.items())
    )
