"""Rewinding a group: set it back to an earlier load, and take back the output of the later loads.

A rewind is an entry of the commit log, like a load, under the next number. One atomic step stores it with the offsets
to go back to (L9). A load that runs at the same time has the same number, so one of the two gets OffsetConflict; a load
that starts later repairs first.

Tables remove the rows in the same commit. For files the rewind is committed first; then its process, or any later
repair, moves the directories of the undone loads aside (files/directory.py), the newest first: a reader in between
sees the state after some earlier load, never a gap.

Called by maintenance.py. Pure.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import (
    BEGINNING,
    LoadId,
    LoadRange,
    LoadRecord,
    Rewind,
    UndoneLoad,
    published_directory,
)
from spark_connector.loads.request import TABLE_FORMATS

REWOUND = "_rewound"
"""Below the output directory; hidden from readers."""


def standing(records: Iterable[LoadRecord]) -> list[LoadRecord]:
    """The loads that no rewind has taken back, without the rewinds. `records` are in order of number."""
    given = list(records)
    undone = undone_by(given)
    return [record for record in given if record.rewind is None and record.load_id not in undone]


def undone_by(records: Iterable[LoadRecord]) -> dict[str, LoadRecord]:
    """Id of each load that was taken back → its rewind."""
    return {gone.load_id: record for record in records if record.rewind for gone in record.rewind.undone}


def aside_of(rewind_id: str, load_id: str) -> str:
    """Where a rewind moves the directory of a load, below the load's output directory."""
    return f"{REWOUND}/{rewind_id}/{published_directory(load_id)}"


def manifest_of(rewind_id: str) -> str:
    """Where a rewind writes its record."""
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
    """The entry with this `number` that takes back every load after `to_load`; all of them for BEGINNING.

    `loads` are the loads that stand, in order; `stored` are the group's offsets. A partition goes back to the start of
    its first undone load. Raises ConfigError when `to_load` is not among the loads, or is the newest.
    """
    ids = [BEGINNING, *(load.load_id for load in loads)]
    if to_load not in ids or not loads:
        newest = f"the newest that stands is {ids[-1]}" if loads else "there is none that stands"
        raise ConfigError(f"there is no load '{to_load}' to rewind to; {newest}")
    later = loads[ids.index(to_load) :]
    if not later:
        raise ConfigError(f"'{to_load}' is the newest load; there is nothing to take back")
    newest_load, back = later[-1], None if to_load == BEGINNING else loads[ids.index(to_load) - 1]
    if back is None and newest_load.upsert is not None:
        raise ConfigError(
            f"a table with one row per key goes back to a load, not to {BEGINNING}: drop the table, which holds the "
            "group's offsets, too, and load again"
        )
    starts: dict[TopicPartition, int] = {}
    for range in itertools.chain.from_iterable(map(_moved, later)):
        starts.setdefault(range.tp, range.start)
    ranges = tuple(  # empty: the commit stores their ends and must find `stored`
        LoadRange(tp.topic, tp.partition, start, start, stored.get(tp), 0) for tp, start in sorted(starts.items())
    )
    stands = {**stored, **{range.tp: range.end for range in ranges}}
    return LoadRecord(
        load_id=str(LoadId(newest_load.id.group, number, secrets.token_hex(4))),
        output=newest_load.output,
        format=newest_load.format,
        offsets=newest_load.offsets,
        created_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        ranges=ranges,
        topic_ids=_topic_ids(later),
        columns=back.columns if back else (),
        reading=back.reading if back else None,
        origin=(back or newest_load).origin,
        positions=back.positions_at(stands) if back else {},
        dead_letters=tuple(sorted({name for load in later for name in load.dead_letters})),
        rewind=Rewind(to_load, tuple(UndoneLoad(load.load_id, load.output) for load in later), delete),
        upsert=newest_load.upsert,
        fields=back.fields if back else None,
        partitions=back.partitions if back else None,
        pattern=back.pattern if back else None,
    )


def fates(plan: LoadRecord) -> list[str]:
    """What a rewind does to the output of each load, newest first, in words."""
    assert plan.rewind is not None
    if plan.upsert is not None:
        text = "the rows that {id} has changed in {output} are as before it"
    elif plan.format in TABLE_FORMATS:
        text = "the rows of {id} in {output} are deleted"
        text += {
            "delta": "; VACUUM deletes their files",
            "iceberg": "; their files go when the snapshots before expire",
        }.get(plan.format, "")
    elif plan.rewind.delete:
        text = "{output}/{directory} is deleted"
    else:
        text = "{output}/{directory} is moved to " + f"{REWOUND}/{plan.load_id}/"
    text += f"; so are its dead letters in {', '.join(plan.dead_letters)}" if plan.dead_letters else ""
    return [
        text.format(id=gone.load_id, output=gone.output, directory=published_directory(gone.load_id))
        for gone in reversed(plan.rewind.undone)
    ]


def _moved(load: LoadRecord) -> list[LoadRange]:
    """The ranges that have moved the group's offsets. A re-run does not move offsets that it found."""
    return [range for range in load.ranges if load.rerun_of is None or range.stored is None]


def _topic_ids(later: Sequence[LoadRecord]) -> dict[str, str]:
    """The topic ids that belong to the offsets to go back to: of each topic the id that was loaded first."""
    ids = dict(later[-1].topic_ids)
    for load in reversed(later):
        moved = {range.topic for range in _moved(load)}
        ids.update({topic: id_ for topic, id_ in load.topic_ids.items() if topic in moved})
    return ids
