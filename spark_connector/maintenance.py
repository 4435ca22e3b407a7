"""Maintenance of a group's loads: list, verify, rewind, prune and recover them, and compact their table.

    from spark_connector.loads.request import Target
    from spark_connector.maintenance import compact, history, rewind, tables, targets, verify
    target = Target("/data/flights", "nightly")

Only `verify` needs a broker, and Spark for orc and json. Every function opens the destination itself. A group without
loads there is a ConfigError that names the groups that have some. Raises ConfigError, LoadError, OffsetConflict and
OffsetStoreError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.errors import ConfigError, PykafkaError
from spark_connector.destinations import (
    existing_format,
    loaded_tables,
    open_all_dead_letters,
    open_destination,
)
from spark_connector.loads.audit.verify import OnLoad, Verification, verify_loads
from spark_connector.loads.compaction import CompactionOptions, CompactionResult
from spark_connector.loads.dead_letters import DeadLetters, is_of_dead_letters
from spark_connector.loads.destination import LoadedDestination, NewSession
from spark_connector.loads.history import History, LoadedTable, LoadState
from spark_connector.loads.plan import newest_record, next_number, refuse_unknown_group
from spark_connector.loads.record import BEGINNING, LoadRecord, LoadResult
from spark_connector.loads.request import LAKE_FORMATS, Target
from spark_connector.loads.rewind import plan_rewind, standing
from spark_connector.loads.table_snapshot import TableSnapshot, TableVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ANY = "any"
"""A group, where a destination is opened and none is meant."""


def targets(
    to: str,
    *,
    table: str | None = None,
    catalog: str | None = None,
    zookeeper_connect: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> list[Target]:
    """A target for each group that has loads at `to`, by name. Changes nothing.

    Dead letters are a part of loads that are elsewhere: who commits them in a table has no target.
    Its format is that of what is there. The offsets of a group may be kept in ZooKeeper; without `zookeeper_connect`
    such a target can be shown, but not opened. Raises ConfigError, LoadError and OffsetStoreError.
    """
    place = Target(to, _ANY, storage_options=dict(storage_options or {}), table=table, catalog=catalog)
    place = replace(place, format=existing_format(place))
    with open_destination(place.check()) as destination:
        kinds = destination.groups()
    return [
        replace(place, group=group, offsets=kind, zookeeper_connect=zookeeper_connect if kind == "zookeeper" else None)
        for group, kind in sorted(kinds.items())
        if not is_of_dead_letters(group)
    ]


def tables(catalog: str, namespace: str | None = None) -> list[LoadedTable]:
    """Every table that loads write in a catalog of Iceberg, or in one namespace of it and those below. Changes nothing.

    One for each group of a table. A table that cannot be read does not hide the others. Raises ConfigError, LoadError.
    """
    return loaded_tables(catalog, namespace)


def history(target: Target) -> History:
    """Every load of the group that has left a trace. Changes nothing."""
    with _open_known(target) as destination:
        return destination.history()


def table_versions(target: Target, most: int) -> list[TableVersion]:
    """The newest states that the table of the group had, the oldest first. Changes nothing."""
    with _open_known(target) as destination:
        return destination.versions(most)


def table_snapshot(target: Target) -> TableSnapshot:
    """Columns and files of the table of the group as it is now, and how to read them. Changes nothing.

    Raises ConfigError for a place that is no table of files.
    """
    with _open_known(target) as destination:
        return destination.snapshot(())


def verify(
    target: Target,
    bootstrap_servers: str,
    *,
    only: Collection[str] = (),
    options: Mapping[str, str] | None = None,
    session: NewSession | None = None,
    on_load: OnLoad = lambda done, of: None,
) -> Verification:
    """Recount the loads that stand, or those of the ids `only`, against Kafka's log; see loads/audit/verify.py.

    Each load is read with the options in its record. `options` of the reader (`kafka.*`, logins) win over these.
    `session` gives the Spark session that reads orc and json; by default the active one, or a new one. `on_load` hears
    how many loads are checked.
    """
    with _open_known(target) as destination, contextlib.ExitStack() as opened:
        try:
            return verify_loads(
                destination,
                bootstrap_servers,
                dead_letters=lambda names: open_all_dead_letters(names, target, destination, opened),
                only=only,
                options=options or {},
                session=session or _active_session,
                on_load=on_load,
            )
        except Exception as error:
            plain = destination.plain_error(error)
            if plain is None:
                raise
            raise plain from error


def rewind(
    target: Target,
    to_load: str | None,
    *,
    delete: bool = False,
    confirm: Callable[[LoadRecord], bool] = lambda plan: True,
) -> LoadRecord | None:
    """Set the group back to the load `to_load`, or before its first one for None; gives the entry of the commit log.

    Directories of the later loads are moved to `_rewound/` or, with `delete`, deleted. Rows of a table are deleted; for
    a database `delete` must be set. The next load loads their records again. `confirm` gets the plan; when it returns
    False, nothing is changed and the result is None. Killed loads are finished first. Raises ConfigError for an unknown
    load, or loads that cannot be taken back, and OffsetConflict when a load commits at the same time. Dead letters of
    the later loads are removed right after the commit; if that is interrupted, by the next load.
    """
    with _open_known(target) as destination, contextlib.ExitStack() as opened:
        destination.repair()
        _settle(target, destination, opened)
        plan, tables = _planned(target, destination, opened, to_load, delete=delete)
        if not confirm(plan):
            return None
        destination.commit(plan)
        for table in tables:
            table.settle()
        return plan


def preview_rewind(target: Target, to_load: str | None, *, delete: bool = False) -> LoadRecord:
    """The plan that `rewind` would confirm, but for what killed loads have left. Changes nothing, raises the same."""
    with _open_known(target) as destination, contextlib.ExitStack() as opened:
        return _planned(target, destination, opened, to_load, delete=delete)[0]


def prune(target: Target, keep: int) -> list[int]:
    """Remove all but the newest `keep` entries of the commit log; gives their numbers.

    Data is not changed, and manifests beside files keep their loads in the list. The newest entry has the offsets and
    always stays. Killed loads are finished first. Raises ConfigError for `keep` below 1 and for a Delta table.
    """
    if keep < 1:
        raise ConfigError(f"keep (--keep) must be at least 1, not {keep}: the newest entry holds the offsets")
    with _open_known(target) as destination:
        destination.repair()
        return destination.log.prune(keep)


def recover(target: Target) -> list[str]:
    """Finish loads and rewinds that were killed; gives their ids."""
    with _open_known(target) as destination, contextlib.ExitStack() as opened:
        finished = destination.repair()
        _settle(target, destination, opened)
        return finished


def _planned(
    target: Target, destination: LoadedDestination, opened: contextlib.ExitStack, to_load: str | None, *, delete: bool
) -> tuple[LoadRecord, list[DeadLetters]]:
    """The checked plan of a rewind, and the tables of dead letters that it concerns."""
    number, to_load = next_number(destination), to_load or BEGINNING
    loads = _standing_without_gap(destination.history(), to_load)
    stored = destination.log.offsets({range.tp for load in loads for range in load.ranges})
    plan = plan_rewind(loads, stored, to_load, number=number, delete=delete)
    destination.check_rewind(plan)
    tables = open_all_dead_letters(plan.dead_letters, target, destination, opened)
    for table in tables:
        table.check_rewind(plan)
    return plan, tables


def _settle(target: Target, destination: LoadedDestination, opened: contextlib.ExitStack) -> None:
    """Decide about what killed loads and rewinds have left in tables of dead letters."""
    entries = [entry.record for entry in destination.history().entries if entry.state.is_staged]
    newest = newest_record(destination.log)
    names = {name for record in (*entries, newest) if record is not None for name in record.dead_letters}
    for table in open_all_dead_letters(sorted(names), target, destination, opened):
        table.settle()


def compact(
    target: Target,
    *,
    rewindable: str | None = None,
    target_file_size: int | str | None = None,
    vacuum: bool = False,
) -> CompactionResult:
    """Make large files of the small ones in a Delta or Iceberg table; rows, loads and offsets stay as they are.

    Files of loads that are younger than `rewindable` (24h) stay, and so do files of about `target_file_size` (128MB).
    Loads may run at the same time. When another program replaces the files first, nothing is done. `vacuum`: also
    delete the files that the table has not needed for its own retention time. Raises ConfigError for other formats.
    """
    options = CompactionOptions.parse(rewindable, target_file_size, vacuum=vacuum)
    with _open_known(target) as destination:
        return destination.compaction().run(options)


class TableCare:
    """Compacts the table of a service after every so many loads; `say` is told. A failure does not end the service:
    `warn` is told."""

    def __init__(
        self,
        target: Target,
        every: int | None,
        options: CompactionOptions,
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        """`every` None: never. Raises ConfigError for a format that cannot be compacted."""
        if every is not None and target.format not in LAKE_FORMATS:
            raise ConfigError(
                f"compact_every (--compact-every) is for {' and '.join(LAKE_FORMATS)}, not for format={target.format}"
            )
        if every is not None and every < 1:
            raise ConfigError(f"compact_every (--compact-every) must be at least 1, not {every}")
        self._target = target
        self._every = every
        self._options = options
        self._say = say
        self._warn = warn
        self._loads = 0

    def loaded(self, result: LoadResult) -> None:
        """Called after each load."""
        if self._every is None or result.load_id is None:
            return
        self._loads += 1
        if self._loads % self._every:
            return
        try:
            with _open_known(self._target) as destination:
                done = destination.compaction().run(self._options)
        except PykafkaError as error:
            self._warn(f"Cannot compact, the next time again: {error}")
        else:
            if done != CompactionResult():
                self._say(str(done))


@contextlib.contextmanager
def _open_known(target: Target) -> Iterator[LoadedDestination]:
    """The destination of a group that has loads there, in the format that they have if the target names none."""
    if target.format is None:
        target = replace(target, format=existing_format(target))
    with open_destination(target.check()) as destination:
        refuse_unknown_group(destination, target.group)
        yield destination


def _standing_without_gap(known: History, to_load: str) -> list[LoadRecord]:
    """The loads that stand, in order. Raises ConfigError when a load after `to_load` is unknown."""
    entries = [entry for entry in known.entries if not entry.state.is_staged]
    for entry in entries:
        if entry.state is LoadState.UNKNOWN:
            raise ConfigError(
                f"{entry.directory} is visible, but not a load of this commit log; move it away before a rewind"
            )
        if not entry.record.format and not entry.record.rewind:
            raise ConfigError(f"load '{entry.record.load_id}' is unknown: it is pruned and has no manifest")
    records = [replace(entry.record, files=()) for entry in entries]
    gone = {entry.record.load_id for entry in entries if entry.state is LoadState.REWOUND}
    ids = {BEGINNING: 0, **{record.load_id: record.id.sequence for record in records}}
    first = ids.get(to_load)
    missing = [number for number, _ in known.forgotten if first is not None and number > first]
    if missing:
        raise ConfigError(
            f"cannot rewind to '{to_load}': load number {missing[0]} has been pruned from the commit log, and "
            "there is no manifest of it"
        )
    return [record for record in standing(records) if record.load_id not in gone]


def _active_session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()
