"""What the caller of `load` asks for: which records, where they go, how they are laid out there, and where the group's
offsets are kept. Checked before anything is opened.

Built by load.py from its arguments. Everything wrong raises ConfigError saying what to set. Pure: SQLAlchemy is not
imported, because those who load into files need not have it.

Each load's record keeps how it reads (reading.py).

The column `load` names the load of a row. `topic` and `partition` are columns of every record; `date` and `hour` are
made from its timestamp, always in UTC.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from broker.errors import ConfigError
from broker.storage.object_stores import object_store_of
from spark_connector.loads.addresses import DatabaseAddress, IcebergName, is_database_url, is_iceberg
from spark_connector.loads.bad_record_options import TOPIC, DeadLetterPlace, MaxBad
from spark_connector.loads.grammar import (
    NO_CHANGES,
    POSITION,
    ColumnItem,
    Evolution,
    Given,
    PartitionItem,
    SortItem,
    parse_columns,
    parse_partition_by,
    parse_sort_by,
    refuse_unknown_column,
)
from spark_connector.loads.reading import BESIDE, as_loads_read, decodes, reading_of
from spark_connector.loads.upsert import Upsert, parse_upsert
from spark_connector.loads.write_options import FILES, ORC, SQL, Writing, parse_write_options
from spark_connector.offset_store.base import check_group
from spark_connector.options.option_table import did_you_mean
from spark_connector.options.read_options import COLUMNS, Mode, SourceOptions, parse_options

FILE_FORMATS = tuple(format for format in FILES if format != SQL)
LAKE_FORMATS = ("delta", "iceberg")
"""Tables of files and a log: loads may add columns to them, and small files can become large ones."""
TABLE_FORMATS = (*LAKE_FORMATS, SQL)
FORMATS = (*FILE_FORMATS, *TABLE_FORMATS)
_SORTED = tuple(format for format in FORMATS if format not in (ORC, SQL))
OFFSET_KINDS = ("files", "zookeeper", "table")
"""`table`: in the table itself: Delta, Iceberg or a database. These have no other kind; files never have this one."""


@dataclass(frozen=True)
class Target:
    """Where a group's loads go and where its offsets are kept. A repair needs no more.

    `to` is a directory, a database URL or `iceberg:NAMESPACE.TABLE`, with its `catalog`; it is not printed, because a
    URL may hold a password. An Iceberg table keeps the newest `keep_snapshots`. `dead_letters`: tables of dead letters
    (`delta:URL`) in another storage than `to`, which are opened only because they are named here. `check` fills in
    `format` and `offsets` when they are None.
    """

    to: str = field(repr=False)
    group: str
    offsets: str | None = None
    zookeeper_connect: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    format: str | None = None
    table: str | None = None
    catalog: str | None = None
    keep_snapshots: int | None = None
    dead_letters: tuple[str, ...] = ()

    @property
    def is_table(self) -> bool:
        """Whether data and offsets are one thing: a Delta or Iceberg table, or a database."""
        return self.format in TABLE_FORMATS

    @property
    def hadoop(self) -> Mapping[str, str]:
        """The storage options that are Hadoop settings; those of an object store are none."""
        return {} if object_store_of(self.to) else self.storage_options

    @property
    def address(self) -> DatabaseAddress:
        """The table in the database. Raises ConfigError when `to` is no database URL."""
        return DatabaseAddress.parse(self.to, self.table)

    @property
    def iceberg_name(self) -> IcebergName:
        """The table in the catalog. Raises ConfigError when `to` names none."""
        return IcebergName.parse(self.to)

    def check(self) -> Target:
        """This target with format and offsets filled in. Raises ConfigError when it cannot be used."""
        if not self.to.strip():
            raise ConfigError(
                "load needs 'to', where the loads go: a directory, local or on hdfs://, s3://, gs:// or abfs://, a "
                "database URL or iceberg:NAMESPACE.TABLE"
            )
        check_group(self.group)
        format = self.format or self._natural_format
        if format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, not '{format}'")
        if format != "sql" and is_database_url(self.to):
            raise ConfigError(f"'to' is a database: format must be sql, not {format}")
        self._check_catalog(format)
        offsets = self.offsets or ("table" if format in TABLE_FORMATS else "files")
        checked = replace(self, format=format, offsets=offsets)
        if format == "sql":
            _ = checked.address
        elif self.table is not None:
            raise ConfigError(f"table (--table) names a table of a database; it has no effect with format={format}")
        checked._check_offsets(offsets)
        return checked

    @property
    def _natural_format(self) -> str:
        if is_iceberg(self.to):
            return "iceberg"
        return "sql" if self.table is not None or is_database_url(self.to) else "parquet"

    def _check_catalog(self, format: str) -> None:
        if format == "iceberg":
            _ = self.iceberg_name
            if not self.catalog:
                raise ConfigError(
                    "format=iceberg needs 'catalog' (--catalog): the name of a catalog of pyiceberg's configuration "
                    "(.pyiceberg.yaml, PYICEBERG_CATALOG__<NAME>__TYPE)"
                )
            if self.keep_snapshots is not None and self.keep_snapshots < 1:
                raise ConfigError(f"keep_snapshots (--keep-snapshots) must be at least 1, not {self.keep_snapshots}")
            return
        if is_iceberg(self.to):
            raise ConfigError(f"'to' is an Iceberg table: format must be iceberg, not {format}")
        for name, option, value in (
            ("catalog", "--catalog", self.catalog),
            ("keep_snapshots", "--keep-snapshots", self.keep_snapshots),
        ):
            if value is not None:
                raise ConfigError(
                    f"{name} ({option}) goes with format=iceberg (to=iceberg:NAMESPACE.TABLE), not {format}"
                )

    def _check_offsets(self, offsets: str) -> None:
        if offsets not in OFFSET_KINDS:
            raise ConfigError(
                f"offsets must be files or zookeeper, or table for format=delta, iceberg and sql, not '{offsets}': a "
                "load commits its offsets and its data in one step, which a consumer group cannot"
            )
        if self.is_table and offsets != "table":
            raise ConfigError(
                f"format={self.format} keeps its offsets in the table itself, where they commit with the data: leave "
                f"out offsets={offsets}"
            )
        if not self.is_table and offsets == "table":
            raise ConfigError(
                f"offsets=table goes with format=delta, iceberg or sql; {self.format} takes files or zookeeper"
            )
        if offsets == "zookeeper" and not self.zookeeper_connect:
            raise ConfigError(
                "offsets=zookeeper needs 'zookeeper_connect' (--zookeeper): host:port[/chroot]; without a ZooKeeper (a "
                "standalone broker, KRaft) use offsets=files, or offsets=table for format=delta, iceberg and sql"
            )
        if offsets != "zookeeper" and self.zookeeper_connect:
            raise ConfigError(
                f"zookeeper_connect (--zookeeper) has no effect with offsets={offsets}; leave one of them out"
            )


TARGET_FILE_SIZE = 128 << 20
"""Bytes of a file at which a task begins the next one; what other writers of tables aim at, too."""

LOAD_COLUMN = "load"
"""Names the load that wrote a row, by its load id: the directory `load=<load id>` of files, a column in tables."""

DERIVED = ("date", "hour")
"""Columns that a record does not have."""

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Spark's directory for rows without a value."""

_COPYING = "._COPYING_"

_NOT_TEXT = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[df]?"  # 2024, 007, 1.5, 1e5, 2d
    r"|[+-]?0x[0-9a-f]*\.?[0-9a-f]*p[+-]?\d+[df]?"
    r"|[+-]?(nan|infinity)[df]?"
    r"|\d{2}:\d{2}:\d{2}(\.\d*)?"  # 12:30:00, a TIME since Spark 4.3
    r"|[+-]?\d{4,}-\d{1,2}(-\d{1,2}([t ].*)?)?",  # 2024-01-31, 2024-01-31 10:00, -2024-01-31, a year before Christ
    re.IGNORECASE | re.DOTALL,
)
"""Names of directories that Spark reads as a number, a date or a time (and a few more, to be safe)."""

_BLANKS = "".join(map(chr, (*range(33), *range(127, 160))))
"""What Java and Spark pass over at both ends of a number or a date."""


_SIZE = re.compile(r"(?P<number>\d+)\s*(?P<unit>[kmg]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_file_size(given: int | str) -> int:
    """Bytes; a text is a number with kb, mb or gb, which are powers of 1,024 as in Spark. Raises ConfigError."""
    found = _SIZE.fullmatch(str(given).strip())
    size = int(found["number"]) * _UNITS[found["unit"].lower()] if found else 0
    if not size:
        raise ConfigError(f"target_file_size (--target-file-size) must be a size such as 128MB, not '{given}'")
    return size


def check_topics(partition_by: Sequence[str], topics: Iterable[str]) -> None:
    """Raise ConfigError when Spark would not read a topic's directory back as the topic's name.

    Spark guesses the type of a directory's value: 007 becomes 7. A table has a type for the column and needs no check.
    """
    if "topic" not in partition_by:
        return
    for topic in sorted(topics):
        if topic.endswith(_COPYING):
            raise ConfigError(
                f"topic '{topic}' cannot be a directory: Spark's readers pass over names that end in {_COPYING}. Leave "
                "'topic' out of partition_by (--partition-by)"
            )
        if read_as := misread_directory(topic):
            raise ConfigError(
                f"topic '{topic}' cannot be a directory of files: Spark would read topic={topic} back as "
                f"{read_as}. Leave 'topic' out of partition_by "
                "(--partition-by), or use format=delta, where the column keeps its type"
            )


def misread_directory(value: str) -> str | None:
    """What Spark would take a directory's value for that is another text; None when it reads the text back."""
    if value.endswith(_COPYING):
        return "nothing at all"
    if value == NO_VALUE:
        return "null"
    return "a number, a date or a time" if _NOT_TEXT.fullmatch(value.strip(_BLANKS)) else None


def values_in_path(name: str) -> dict[str, str | None]:
    """Column → value of the directories in a file's name: `date=2026-11-21/part-0` → {"date": "2026-11-21"}."""
    segments = (segment.partition("=") for segment in posixpath.dirname(name).split("/"))
    found = ((unquote(key), unquote(value)) for key, separator, value in segments if separator)
    return {key: None if value == NO_VALUE else value for key, value in found}


_PATIENCE_MS = 3_000
_PLACES = ("subscribe", "subscribepattern", "assign")
_STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_STRATEGY = "startingoffsetsbytimestampstrategy"  # does not choose a start by itself
_ENDS = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")
_STORES = ("offsetstore", "offsetstore.path", "offsetstore.zookeeper.connect", "group", "kafka.group.id")


@dataclass(frozen=True)
class LoadRequest:
    """One call of `load`. `options` are the reader's, names in lower case, without those that `load` sets.

    `columns`, `partition_by` and `sort_by` are items in the spelling of grammar.py. `time_zone`: of times in text,
    if no write option names it.
    """

    target: Target
    source: SourceOptions
    options: Mapping[str, str]
    columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    write_options: Mapping[str, str] = field(default_factory=dict)
    max_records: int | None = None
    from_load: str | None = None
    from_directory: str | None = None
    allow_changed_options: bool = False
    new_group: bool = False
    publish_offsets: bool = True
    target_file_size: int = TARGET_FILE_SIZE
    evolution: Evolution = NO_CHANGES
    dead_letters: DeadLetterPlace | None = None
    max_bad: MaxBad | None = None
    upsert: Upsert | None = None
    time_zone: str = "UTC"

    @property
    def format(self) -> str:
        return str(self.target.format)

    @property
    def writing(self) -> Writing:
        """How tasks write. Raises ConfigError for write options that the format does not have."""
        return parse_write_options(self.format, self.write_options)

    @property
    def dead_letter_table(self) -> DeadLetterPlace | None:
        """Where the bad records go that the rows leave out; None for a topic."""
        return self.dead_letters if self.dead_letters is not None and self.dead_letters.is_table else None

    @property
    def reading(self) -> dict[str, str]:
        """The reader's options that each load's record keeps (`reading_of`). With a table of dead letters the mode is
        none of them: whatever it is, each record is in one of the two."""
        if self.dead_letter_table is None:
            return reading_of(self.options)
        return reading_of({name: value for name, value in self.options.items() if name != "mode"}) | BESIDE

    @property
    def decodes(self) -> bool:
        """Whether keys or values become columns with types."""
        return decodes(self.options)

    @property
    def fails_on_bad(self) -> bool:
        """Whether one bad record fails the load: nobody has said what becomes of them."""
        corrupt = set(self.source.formats.corrupt_columns.values())
        said = {"mode", "badrecordstopic", "columnnameofcorruptrecord"} & self.options.keys()
        picked = any(item.path[0] in corrupt for item in parse_columns(self.columns))
        return self.decodes and not said and not picked and self.dead_letters is None and self.max_bad is None

    def impatient(self) -> LoadRequest:
        """This request with a short time-out for planning, for a service, which retries by itself.

        An outage is then reported, and a stop obeyed, within seconds. Spark's own planning keeps its time-out.
        """
        client = self.source.client
        patience = min(client.default_api_timeout_ms, _PATIENCE_MS)
        return replace(self, source=replace(self.source, client=replace(client, default_api_timeout_ms=patience)))

    @classmethod
    def build(
        cls,
        target: Target,
        *,
        bootstrap_servers: str,
        topic: str | Sequence[str] | None,
        starting_offsets: str = "earliest",
        options: Mapping[str, str] | None = None,
        columns: Given = None,
        partition_by: Given = None,
        sort_by: Given = None,
        target_file_size: int | str | None = None,
        schema_evolution: str = "none",
        dead_letters: str | None = None,
        max_bad: str | int | None = None,
        mode: str | None = None,
        key: str | Sequence[str] | None = None,
        envelope: str | None = None,
        order_by: str | None = None,
        **others: Any,
    ) -> LoadRequest:
        """Check the arguments of `load` and put the reader's options together. `others`: the fields of these names."""
        target = target.check()
        picked, layout, order = parse_columns(columns), parse_partition_by(partition_by), parse_sort_by(sort_by)
        _check_format(str(target.format), layout, order)
        upsert = parse_upsert(mode, key, envelope, order_by, str(target.format))
        if upsert is not None and (picked or order):
            raise ConfigError(
                "mode=upsert writes the rows as the records have them: leave out columns (--columns) and sort_by "
                "(--sort-by)"
            )
        given = as_loads_read({name.lower(): str(value) for name, value in (options or {}).items()})
        for name in _STORES:
            if name in given:
                raise ConfigError(f"option '{name}' cannot be used in a load: use the arguments 'group' and 'offsets'")
        if "history" in given:
            raise ConfigError("option 'history' cannot be used in a load: it reads a table that loads have written")
        if "filterkeypartitioner" in given:
            raise ConfigError(
                "option 'filterKeyPartitioner' cannot be used in a load: later loads would miss what the old partition "
                "of a key still gets while the topic grows"
            )
        given["kafka.bootstrap.servers"] = bootstrap_servers
        if topic is not None:
            given["subscribe"] = topic if isinstance(topic, str) else ",".join(topic)
        if not any(name in given for name in _STARTS):
            given["startingoffsets"] = starting_offsets
        if given.get("columnnameofcorruptrecord", "").strip().lower() == LOAD_COLUMN:
            raise ConfigError(
                f"option 'columnNameOfCorruptRecord' cannot be '{LOAD_COLUMN}': this column names the load of a row; "
                "choose another name"
            )
        letters = None if dead_letters is None else DeadLetterPlace.parse(dead_letters)
        limit = None if max_bad is None else MaxBad.parse(max_bad)
        given |= _about_bad_records(given, letters, limit)
        if picked:
            given["columns"] = ",".join(columns_to_read(picked, layout, given))
        source = parse_options(given, Mode.BATCH)
        _check_columns(source, picked, layout if upsert is None else (), order)
        reader = {name: value for name, value in given.items() if name not in (*_PLACES, *_STARTS, _STRATEGY, *_ENDS)}
        size = TARGET_FILE_SIZE if target_file_size is None else parse_file_size(target_file_size)
        evolution = Evolution.parse(schema_evolution)
        if evolution != NO_CHANGES and target.format not in LAKE_FORMATS:
            raise ConfigError(
                f"schema_evolution (--schema-evolution) is for {' and '.join(LAKE_FORMATS)}, not for "
                f"format={target.format}: files have columns of their own, and a database is altered by its own means"
            )
        return cls(
            target,
            source,
            reader,
            columns=tuple(map(str, picked)),
            partition_by=tuple(map(str, layout)),
            sort_by=tuple(map(str, order)),
            target_file_size=size,
            evolution=evolution,
            dead_letters=letters,
            max_bad=limit,
            upsert=upsert,
            **others,
        )

    def __post_init__(self) -> None:
        _ = self.writing
        if self.max_records is not None and self.max_records < 1:
            raise ConfigError(f"max_records must be at least 1, not {self.max_records}")
        if self.from_load is None and self.from_directory is not None:
            raise ConfigError("from_directory (--from-dir) goes with from_load (--from)")
        if self.from_load is None:
            return
        if self.target.is_table:
            raise ConfigError(f"from_load (--from) is for files; format={self.format} cannot load again")
        if self.target.offsets == "files" and self.from_directory is None:
            raise ConfigError(
                "from_load with offsets=files needs from_directory (--from-dir): the output directory that holds that "
                "load"
            )


def _about_bad_records(
    given: Mapping[str, str], letters: DeadLetterPlace | None, limit: MaxBad | None
) -> dict[str, str]:
    """What the options about bad records make of the reader's options (names in lower case). Raises ConfigError."""
    named = "dead_letters (--dead-letters)" if letters is not None else "max_bad (--max-bad)"
    if letters is None and limit is None:
        return {}
    if not decodes(given):
        raise ConfigError(
            f"{named} has no effect: no record is decoded, so none is bad. Set the option 'valueFormat' or 'keyFormat'"
        )
    topic = letters is not None and letters.kind == TOPIC
    if topic and "badrecordstopic" in given:
        raise ConfigError(f"{named} and the option 'badRecordsTopic' both name a topic: leave one of them out")
    if limit is not None and (topic or "badrecordstopic" in given):
        raise ConfigError(
            "max_bad (--max-bad) does not go with a topic of bad records, which would get them again from each load "
            "that fails: set dead_letters to a table, or leave one of them out"
        )
    if letters is not None and topic:
        return {"badrecordstopic": letters.name}
    if given.get("mode", "").strip().lower() == "failfast":
        raise ConfigError(f"{named} has no effect in mode FAILFAST: the first bad record ends the load. Leave out mode")
    if letters is None:
        return {}
    for name in ("badRecordsTopic", "columnNameOfCorruptRecord"):
        if name.lower() in given:
            raise ConfigError(
                f"option '{name}' has no effect beside {named}: bad records are in {letters}, and only there, with "
                "their bytes. Leave it out"
            )
    return {"mode": "dropmalformed"}


def _check_format(format: str, partition_by: Sequence[PartitionItem], sort_by: Sequence[SortItem]) -> None:
    """Raise ConfigError for what a format does not have."""
    if sort_by and format not in _SORTED:
        raise ConfigError(f"sort_by (--sort-by) goes with format={', '.join(_SORTED)}, not with format={format}")
    if partition_by and format == SQL:
        raise ConfigError("partition_by (--partition-by) is for files and tables of files, not for those of a database")


def columns_to_read(
    columns: Sequence[ColumnItem], partition_by: Sequence[PartitionItem], options: Mapping[str, str]
) -> list[str]:
    """The reader's columns that the table's columns are made of, and those that rows are counted by."""
    if "columns" in options:
        raise ConfigError("columns (--columns) says what is read, too: leave out the reader's option 'columns'")
    corrupt = options.get("columnnameofcorruptrecord", "_corrupt_record").strip()
    known = {**{name: name for name in COLUMNS}, corrupt: "value", f"{corrupt}_key": "key"}
    needed = {*POSITION}
    for item in columns:
        if item.path[0] not in known:
            similar = did_you_mean(item.path[0], {name.lower(): name for name in known})
            hint = f"{similar} Columns are: {', '.join(COLUMNS)}".lstrip()
            raise ConfigError(f"columns (--columns) {item}: the read has no column '{item.path[0]}'. {hint}")
        needed.add(known[item.path[0]])
    if any(str(item) in DERIVED for item in partition_by):
        needed.add("timestamp")
    return [name for name in COLUMNS if name in needed]


def _check_columns(
    source: SourceOptions,
    columns: Sequence[ColumnItem],
    partition_by: Sequence[PartitionItem],
    sort_by: Sequence[SortItem],
) -> None:
    """Raise ConfigError unless the columns are there that a load counts, partitions and sorts its rows by.

    Which fields a value has is known later.
    """
    needed = [*POSITION]
    if any(str(item) in DERIVED for item in partition_by):
        needed.append("timestamp")
    missing = [name for name in needed if name not in source.columns]
    if missing:
        raise ConfigError(
            f"option 'columns' leaves out {', '.join(missing)}, which a load needs to count its rows; the argument "
            "columns (--columns) says which of the columns the table gets"
        )
    if any(item.every for item in columns):
        return
    names = [item.name for item in columns] or [*source.columns, *source.formats.corrupt_columns.values()]
    named: tuple[PartitionItem | SortItem, ...] = (*partition_by, *sort_by)
    for one in named:
        if str(one) not in DERIVED:
            refuse_unknown_column(one, names)
