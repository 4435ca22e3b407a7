"""The two sides of a read with `history`, fitted to each other: the table's columns, and the topics' records decoded as
the loads have decoded them.

A load's record keeps the options that decide which records are rows and what they become. The topics are read with the
same options, so the user gives none of them; other values are refused, because the rows would not show which were used.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.destinations import existing_format, open_destination
from spark_connector.formats.value_format import ReadFormats
from spark_connector.loads.destination import Destination
from spark_connector.loads.plan import unknown_group
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import DEFAULTS, Target, describe_changes, is_database_url, reading_of
from spark_connector.options.history_options import HistoryOptions
from spark_connector.options.read_options import COLUMNS, Mode, SourceOptions, parse_options
from spark_connector.read.arrow_batches import arrow_schema
from spark_connector.read.schema import with_schemas
from spark_connector.union_read.conform import fits

logger = logging.getLogger("pykafka.spark")

_DELTA = "delta:"


@dataclass(frozen=True)
class Sides:
    """One read: where the table is, how the topics are read, and the columns of both. Picklable.

    `columns` are those of the topics' batches; `history.column` comes behind them. `reading` are the options of the
    loads' record, None where the table has forgotten it.
    """

    history: HistoryOptions
    topics: SourceOptions
    columns: pa.Schema
    reading: Mapping[str, str] | None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        name = self.history.column
        return self.columns if name is None else self.columns.append(pa.field(name, pa.bool_()))


@contextlib.contextmanager
def open_table(history: HistoryOptions) -> Iterator[Destination]:
    """The table that the loads fill. Raises ConfigError, LoadError; also for a group that has no load in it."""
    with open_destination(_target(history)) as destination:
        if not destination.log.newest().sequence:
            raise unknown_group(destination, history.group)
        yield destination


def fit_sides(history: HistoryOptions, mode: Mode) -> Sides:
    """Open the table and fit the read of the topics to it. Raises ConfigError, LoadError, ConnectorError."""
    with open_table(history) as destination:
        found = destination.snapshot(())
    reading = found.newest.reading if found.newest else None
    if reading is None:
        logger.warning(
            "%s has no record of how the loads of group '%s' were read: the topics are read with the options given",
            *(found.shown, history.group),
        )
    given = _options(history, reading)
    topics = _loaded(parse_options(given, mode))
    columns = _columns_of(topics)
    if found.columns is not None:
        kept = _kept(columns, found.columns, found.shown, named="columns" in given or "includeheaders" in given)
        if len(kept) < len(topics.columns):
            topics = _loaded(parse_options({**given, "columns": ",".join(kept)}, mode))
            columns = _columns_of(topics)
    if history.column is not None and history.column.lower() in {name.lower() for name in columns.names}:
        raise ConfigError(f"Option 'historyColumn': the read has a column '{history.column}' already")
    return Sides(history, topics, columns, reading)


def refuse_changed_reading(sides: Sides, newest: LoadRecord | None) -> None:
    """Raise ConfigError when a load since `fit_sides` was read with other options."""
    if newest is None or newest.reading is None or sides.reading is None:
        return
    if changes := describe_changes(sides.reading, newest.reading):
        raise ConfigError(
            f"load {newest.load_id} was read with {changes}, since this DataFrame was made: make it again"
        )


def for_stream(sides: Sides) -> Sides:
    """The same read with the options checked for a stream. Raises ConfigError."""
    given = {**_options(sides.history, sides.reading), "columns": ",".join(sides.topics.columns)}
    given.pop("includeheaders", None)
    topics = replace(parse_options(given, Mode.STREAM), formats=sides.topics.formats)
    if sides.history.column is not None:
        topics = replace(topics, max_prefetched_records=0)  # rows that come with the plan would lack the column
    return replace(sides, topics=topics)


def _target(history: HistoryOptions) -> Target:
    place = history.place
    if place.startswith(_DELTA):
        target = Target(place[len(_DELTA) :], history.group, format="delta", storage_options=history.storage_options)
        return target.check()
    if is_database_url(place):
        raise ConfigError(
            "Option 'history' names a database, which is not read file by file: read it with Spark's JDBC source, and "
            "the topics from the offsets of its loads (startingOffsets)"
        )
    target = Target(place, history.group, storage_options=history.storage_options)
    if existing_format(target) == "delta":
        return replace(target, format="delta").check()
    if history.zookeeper is not None:
        target = replace(target, offsets="zookeeper", zookeeper_connect=history.zookeeper)
    return target.check()


def _options(history: HistoryOptions, reading: Mapping[str, str] | None) -> dict[str, str]:
    """The options of the topics: the user's, and those that the loads were read with."""
    kept = DEFAULTS if reading is None else reading
    options = {**{name.lower(): value for name, value in kept.items()}, **history.topics}
    changes = "" if reading is None else describe_changes(reading, reading_of(options))
    if changes:
        raise ConfigError(
            f"the loads of group '{history.group}' were read with other options; this read has {changes}. Leave these "
            "options out: the records of the topics are read as the loads have read theirs"
        )
    return options


def _loaded(options: SourceOptions) -> SourceOptions:
    return replace(options, formats=with_schemas(options))


def _columns_of(options: SourceOptions) -> pa.Schema:
    source = arrow_schema(options.columns)
    if options.formats == ReadFormats() or not options.formats.columns:
        return source
    from spark_connector.formats.record_decoder import decoded_schema

    return decoded_schema(options.formats, source)


def _kept(wanted: pa.Schema, table: pa.Schema, shown: str, *, named: bool) -> list[str]:
    """Those of the source's columns that the table has. `named`: the user wants every one of them."""
    missing = [name for name in wanted.names if name not in table.names]
    needed = missing if named else [name for name in missing if name not in COLUMNS]
    if needed:
        raise ConfigError(
            f"{shown} has no column {', '.join(needed)}, which the read of the topics has: leave it out (option "
            "columns)"
        )
    kept = [name for name in wanted.names if name in table.names]
    for name in kept:
        if not fits(table.field(name).type, wanted.field(name).type):
            raise ConfigError(
                f"{shown} has column '{name}' as {table.field(name).type}, the records of the topics have it as "
                f"{wanted.field(name).type}: leave it out (option columns), or read both sides apart"
            )
    if not kept:
        raise ConfigError(f"{shown} has none of the columns {', '.join(wanted.names)}")
    return [name for name in kept if name in COLUMNS]
