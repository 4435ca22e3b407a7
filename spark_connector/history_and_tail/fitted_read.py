"""The two sides of a read with `history`, fitted to each other: the table's columns, and the topics' records decoded as
the loads have decoded them.

A load's record keeps the options that decide which records are rows and what they become, and what the table's columns
are made of. The topics are read in the same way, so the user gives none of these options; other values are refused,
because the rows would not show which were used.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.destinations import existing_format, open_destination
from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.history_and_tail.conform import common_type, conform_batch
from spark_connector.loads.addresses import is_database_url, storage_options_for
from spark_connector.loads.column_checks import columns_to_read
from spark_connector.loads.destination import LoadedDestination
from spark_connector.loads.grammar import parse_columns
from spark_connector.loads.plan import unknown_group
from spark_connector.loads.reading import DEFAULTS, describe_changes, reading_of, with_columns
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import Target
from spark_connector.loads.table_snapshot import TableSnapshot
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.options.history_options import HistoryOptions
from spark_connector.options.read_options import COLUMNS, Mode, SourceOptions, parse_options
from spark_connector.read.arrow_batches import arrow_schema
from spark_connector.read.schema import with_schemas

logger = logging.getLogger("pykafka.spark")

_DELTA = "delta:"
_LETTERS = "dead_letters"  # in a load's reading: bad records are in a table of their own


@dataclass(frozen=True)
class FittedRead:
    """One read: where the table is, how the topics are read, and the columns of both. Picklable.

    `columns` are those of the result; `history.column` comes behind them. `made`: how the batches of the topics become
    these columns; None where they have them. `reading` are the options of the loads' record, with its columns; None
    where the table has forgotten it. `options` are those of the topics.
    """

    history: HistoryOptions
    topics: SourceOptions
    columns: pa.Schema
    made: TableColumns | None
    reading: Mapping[str, str] | None
    options: Mapping[str, str]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        name = self.history.column
        return self.columns if name is None else self.columns.append(pa.field(name, pa.bool_()))

    def rows_of_topics(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the result from a batch of the topics."""
        if self.made is None:
            return batch
        rows = self.made.apply(pa.Table.from_batches([batch])).combine_chunks()
        return conform_batch(rows.to_batches()[0], self.columns)


@contextlib.contextmanager
def open_table(history: HistoryOptions) -> Iterator[LoadedDestination]:
    """The table that the loads fill. Raises ConfigError, LoadError; also for a group that has no load in it."""
    with open_destination(_target(history)) as destination:
        if not destination.log.newest().sequence:
            raise unknown_group(destination, history.group)
        yield destination


def fit_read(history: HistoryOptions, mode: Mode) -> FittedRead:
    """Open the table and fit the read of the topics to it. Raises ConfigError, LoadError, ConnectorError."""
    with open_table(history) as destination:
        found = destination.snapshot(())
    newest = found.newest
    if found.one_row_per_key:
        raise ConfigError(
            f"option 'history': {found.shown} has one row per key (mode=upsert), which later records change and "
            "delete: rows and records cannot be put side by side. Read the table alone, or keep a table of all records"
        )
    if newest is None or newest.reading is None:
        logger.warning(
            "%s has no record of how the loads of group '%s' were read: the topics are read with the options given",
            *(found.shown, history.group),
        )
    given = _options(history, None if newest is None else newest.reading)
    fitted = _fitted_columns(history, found, given, mode)
    name = history.column
    if name is not None and name.lower() in {column.lower() for column in fitted.columns.names}:
        raise ConfigError(f"Option 'historyColumn': the read has a column '{name}' already")
    return fitted


def refuse_changed_reading(fitted: FittedRead, newest: LoadRecord | None) -> None:
    """Raise ConfigError when a load since `fit_read` was read with other options."""
    now = _reading(newest)
    if now is None or fitted.reading is None:
        return
    if newest is not None and (changes := describe_changes(fitted.reading, now)):
        raise ConfigError(
            f"load {newest.load_id} was read with {changes}, since this DataFrame was made: make it again"
        )


def for_query(fitted: FittedRead, mode: Mode) -> FittedRead:
    """The same read with the options checked for this kind of query. Raises ConfigError."""
    topics = replace(parse_options(fitted.options, mode), formats=fitted.topics.formats)
    if mode is Mode.STREAM and (fitted.history.column is not None or fitted.made is not None):
        topics = replace(topics, max_prefetched_records=0)  # rows that come with the plan are as they were fetched
    return replace(fitted, topics=topics)


def gone_since_plan(fitted: FittedRead, error: DataLoss, *, batch: bool) -> ConnectorError:
    """The error for records that the topics had when the query was planned: the table may have them by now."""
    how = "run the query again" if batch else "run it with a new checkpoint and an empty output"
    text = (
        f"{error.message} If a load of group '{fitted.history.group}' has copied these records into the table since "
        f"the query was planned, nothing is lost: {how}, and it reads them from there."
    )
    return ConnectorError("PYKAFKA_HISTORY_GONE", text) if batch else DataLoss(error.condition, text)


def _fitted_columns(history: HistoryOptions, found: TableSnapshot, given: Mapping[str, str], mode: Mode) -> FittedRead:
    """Columns that both sides have, of those that the user names or, without, of all."""
    items = parse_columns(found.newest.columns if found.newest else ())
    wanted, options = given.get("columns") if items else None, dict(given)
    if items:
        options.pop("columns", None)
        options["columns"] = ",".join(columns_to_read(items, (), {n: v for n, v in options.items() if n != "columns"}))
    topics = _loaded(parse_options(options, mode))
    made = TableColumns.of(items, _source(topics))
    names, named = made.schema.names, "columns" in given or "includeheaders" in given
    if wanted is not None:
        names = [name.strip() for name in wanted.split(",")]
        if unknown := [name for name in names if name not in made.schema.names]:
            raise ConfigError(
                f"Option 'columns' names {', '.join(unknown)}; the loads of group '{history.group}' make the columns "
                f"{', '.join(made.schema.names)}"
            )
    fields = _both(names, made.schema, found, named=named)
    if not items:
        kept = [field.name for field in fields if field.name in COLUMNS]
        if len(kept) < len(topics.columns):
            options = {**given, "columns": ",".join(kept)}
            options.pop("includeheaders", None)
            topics = _loaded(parse_options(options, mode))
            made = TableColumns.of((), _source(topics))
    columns = pa.schema(fields)
    picks = {pick.name: pick for pick in made.picks}
    made = TableColumns(
        tuple(picks[name] for name in columns.names), pa.schema([made.schema.field(name) for name in columns.names])
    )
    is_as_read = columns.equals(_source(topics))
    return FittedRead(history, topics, columns, None if is_as_read else made, _reading(found.newest), options)


def _both(names: Sequence[str], made: pa.Schema, found: TableSnapshot, *, named: bool) -> list[pa.Field]:
    """The columns of the result. `named`: the user wants every one of them. Raises ConfigError."""
    if found.columns is None:
        return [made.field(name) for name in names]
    missing = [name for name in names if name not in (*found.columns.names, *found.in_paths)]
    changed = [name for name in missing if name in found.former_columns]
    if changed and not named:
        now = found.former_columns[changed[0]]
        what = f"renamed it to '{now}'" if now else "dropped it"
        raise ConfigError(
            f"{found.shown} no longer has the column '{changed[0]}', which the records of the topics have: another "
            f"program has {what}. Undo that, or name the columns to read (option columns)"
        )
    if missing and (named or len(missing) == len(names)):
        raise ConfigError(
            f"{found.shown} has no column {', '.join(missing)}, which the read of the topics has: leave it out (option "
            "columns)"
        )
    fields = []
    for name in names:
        if name in found.in_paths:
            fields.append(made.field(name))
        elif name not in missing:
            there, here = found.columns.field(name).type, made.field(name).type
            type = common_type(there, here)
            if type is None:
                raise ConfigError(
                    f"{found.shown} has column '{name}' as {there}, the records of the topics have it as {here}: leave "
                    "it out (option columns), or read both sides apart"
                )
            fields.append(pa.field(name, type))
    return fields


def _reading(newest: LoadRecord | None) -> dict[str, str] | None:
    if newest is None or newest.reading is None:
        return None
    return with_columns(newest.reading, newest.columns)


def _source(options: SourceOptions) -> pa.Schema:
    """The columns of the topics' batches."""
    source = arrow_schema(options.columns)
    if not options.formats.columns:
        return source
    from spark_connector.formats.record_decoder import decoded_schema

    return decoded_schema(options.formats, source)


def _target(history: HistoryOptions) -> Target:
    place = history.place
    storage_options_for(place.removeprefix(_DELTA), history.storage_options, {})  # raises where none would be used
    if place.startswith(_DELTA):
        _refuse_zookeeper(history)
        target = Target(place[len(_DELTA) :], history.group, format="delta", storage_options=history.storage_options)
        return target.check()
    if history.catalog is not None:
        _refuse_zookeeper(history)
        return Target(place, history.group, catalog=history.catalog).check()
    if is_database_url(place):
        raise ConfigError(
            "Option 'history' names a database, which is not read file by file: read it with Spark's JDBC source, and "
            "the topics from the offsets of its loads (startingOffsets)"
        )
    target = Target(place, history.group, storage_options=history.storage_options)
    if existing_format(target) == "delta":
        _refuse_zookeeper(history)
        return replace(target, format="delta").check()
    if history.zookeeper is not None:
        target = replace(target, offsets="zookeeper", zookeeper_connect=history.zookeeper)
    return target.check()


def _refuse_zookeeper(history: HistoryOptions) -> None:
    if history.zookeeper is not None:
        raise ConfigError("Option 'offsetStore' goes with a directory of loads: this table keeps its offsets itself")


def _options(history: HistoryOptions, reading: Mapping[str, str] | None) -> dict[str, str]:
    """The options of the topics: the user's, and those that the loads were read with."""
    kept = {name.lower(): value for name, value in (DEFAULTS if reading is None else reading).items()}
    beside = {_LETTERS: kept.pop(_LETTERS)} if _LETTERS in kept else {}
    options = {**kept, **history.topics}
    changes = "" if reading is None else describe_changes(reading, reading_of(options) | beside)
    if changes:
        raise ConfigError(
            f"the loads of group '{history.group}' were read with other options; this read has {changes}. Leave these "
            "options out: the records of the topics are read as the loads have read theirs"
        )
    return {**options, "mode": "DROPMALFORMED"} if beside else options


def _loaded(options: SourceOptions) -> SourceOptions:
    return replace(options, formats=with_schemas(options))
