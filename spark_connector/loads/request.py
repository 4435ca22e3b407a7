"""What the caller of `load` asks for: which records, where they go, how they are laid out there, and where the group's
offsets are kept. Checked before anything is opened.

The arguments are the fields of `Target` and `Load`, and all that is said of one is said there (arguments.py): the
signature of `load`, the options of commands, the reference page and what is refused follow. Everything wrong raises
ConfigError saying what to set. Pure: SQLAlchemy is not imported, because those who load into files need not have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from broker.errors import ConfigError
from broker.storage.object_stores import object_store_of
from spark_connector.loads.addresses import (
    DatabaseAddress,
    IcebergName,
    is_database_url,
    is_iceberg,
    storage_options_for,
)
from spark_connector.loads.arguments import REQUIRED, argument, arguments_of, given_to, refuse
from spark_connector.loads.bad_record_options import TOPIC, DeadLetterPlace, MaxBad
from spark_connector.loads.column_checks import check_columns, columns_to_read
from spark_connector.loads.grammar import (
    ColumnItem,
    Evolution,
    PartitionItem,
    SortItem,
    parse_columns,
    parse_partition_by,
    parse_sort_by,
)
from spark_connector.loads.reading import BESIDE, as_loads_read, decodes, reading_of
from spark_connector.loads.upsert import ENVELOPES, MODES, Upsert, parse_upsert
from spark_connector.loads.write_options import FILES, ORC, SQL, Writing, parse_write_options
from spark_connector.offset_store.base import check_group
from spark_connector.options.read_options import Mode, SourceOptions, parse_options

FILE_FORMATS = tuple(format for format in FILES if format != SQL)
LAKE_FORMATS = ("delta", "iceberg")
"""Tables of files and a log: loads may add columns to them, and small files can become large ones."""
TABLE_FORMATS = (*LAKE_FORMATS, SQL)
FORMATS = (*FILE_FORMATS, *TABLE_FORMATS)
_SORTED = tuple(format for format in FORMATS if format not in (ORC, SQL))
OFFSET_KINDS = ("files", "zookeeper", "table")
"""`table`: in the table itself: Delta, Iceberg or a database. These have no other kind; files never have this one."""


_FOR_ICEBERG = "goes with format=iceberg (to=iceberg:NAMESPACE.TABLE), not {format}"
_AS_THE_RECORDS = (
    "goes with mode=append: mode=upsert writes the rows as the records have them: leave out columns (--columns) and "
    "sort_by (--sort-by)"
)


@dataclass(frozen=True)
class Target:
    """Where a group's loads go and where its offsets are kept. A repair needs no more.

    `to` is not printed, because a URL may hold a password. `dead_letters`: tables of dead letters (`delta:URL`) in
    another storage than `to`, which are opened only because they are named here. `check` fills in `format` and
    `offsets` when they are None.
    """

    to: str = argument(
        "Where the loads go: a directory, local or hdfs://, a Delta table also on s3://, gs:// or abfs://; "
        "iceberg:NAMESPACE.TABLE, or a database, a URL of SQLAlchemy that ends in #TABLE.",
        "DIR|URL",
        default=REQUIRED,
        is_secret=True,
    )
    group: str = argument("Name of this sequence of loads.", "NAME", default=REQUIRED)
    offsets: str | None = argument(
        f"Where the offsets are kept: {', '.join(OFFSET_KINDS)}. Default: the format's.", "KIND"
    )
    zookeeper_connect: str | None = argument(
        "ZooKeeper for {offsets=zookeeper}.",
        "HOST:PORT[/CHROOT]",
        option="--zookeeper",
        goes_with=("offsets", "zookeeper"),
        otherwise="has no effect with offsets={offsets}; leave one of them out",
        needed="host:port[/chroot]; without a ZooKeeper (a standalone broker, KRaft) use offsets=files, or "
        "offsets=table for format=delta, iceberg and sql",
    )
    storage_options: Mapping[str, str] | None = argument(
        "Options of the object store in {to}, such as key, secret and endpoint_url; of hdfs:// Hadoop settings, by "
        "default Spark's.",
        option="--storage-option",
        is_secret=True,
    )
    format: str | None = argument(
        f"Output format: {', '.join(FORMATS)}. Default: by {{to}}, or parquet.", "NAME", choices=FORMATS
    )
    table: str | None = argument(
        "Table of the database, where {to} does not end in #TABLE.",
        "NAME",
        goes_with=("format", "sql"),
        otherwise="names a table of a database; it has no effect with format={format}",
    )
    catalog: str | None = argument(
        "Catalog of an Iceberg table: a name of pyiceberg's configuration.",
        "NAME",
        goes_with=("format", "iceberg"),
        otherwise=_FOR_ICEBERG,
        needed="the name of a catalog of pyiceberg's configuration (.pyiceberg.yaml, PYICEBERG_CATALOG__<NAME>__TYPE)",
    )
    keep_snapshots: int | None = argument(
        "Snapshots that an Iceberg table keeps. Default: 100.",
        "N",
        least=1,
        goes_with=("format", "iceberg"),
        otherwise=_FOR_ICEBERG,
    )
    dead_letters: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any], hadoop: Mapping[str, str] | None = None, **more: Any) -> Target:
        """That of the arguments `given`, and `more` of its fields; on HDFS with these settings, over which its options
        win. Raises ConfigError for options that nothing there takes."""
        storage = storage_options_for(given["to"], given.get("storage_options") or {}, hadoop or {})
        return cls(**given_to(cls, given) | more | {"storage_options": storage})

    @property
    def is_table(self) -> bool:
        """Whether data and offsets are one thing: a Delta or Iceberg table, or a database."""
        return self.format in TABLE_FORMATS

    @property
    def hadoop(self) -> Mapping[str, str]:
        """The storage options that are Hadoop settings; those of an object store are none."""
        return {} if object_store_of(self.to) else self.storage_options or {}

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
        if self.to.startswith("~"):
            raise ConfigError(
                f"'to' is {self.to}: a shell replaces ~ only at the begin of a word that is not quoted. Give the whole "
                f"path, or ./{self.to} for a directory of this name"
            )
        check_group(self.group)
        format = self.format or self._natural_format
        offsets = self.offsets or ("table" if format in TABLE_FORMATS else "files")
        checked = replace(self, format=format, offsets=offsets)
        if format in FORMATS:
            checked._check_place(format)
        refuse(arguments_of(Target), vars(checked))
        return checked

    @property
    def _natural_format(self) -> str:
        if is_iceberg(self.to):
            return "iceberg"
        return "sql" if self.table is not None or is_database_url(self.to) else "parquet"

    def _check_place(self, format: str) -> None:
        if format == "iceberg":
            _ = self.iceberg_name
        elif is_iceberg(self.to):
            raise ConfigError(f"'to' is an Iceberg table: format must be iceberg, not {format}")
        if format == "sql":
            _ = self.address
        elif is_database_url(self.to):
            raise ConfigError(f"'to' is a database: format must be sql, not {format}")
        self._check_offsets(str(self.offsets))

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


TARGET_FILE_SIZE = 128 << 20
"""Bytes of a file at which a task begins the next one; what other writers of tables aim at, too."""

LOAD_COLUMN = "load"
"""Names the load that wrote a row, by its load id: the directory `load=<load id>` of files, a column in tables."""

_SIZE = re.compile(r"(?P<number>\d+)\s*(?P<unit>[kmg]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_file_size(given: int | str | None) -> int:
    """Bytes, by default 128 MiB; a text is a number with kb, mb or gb, which are powers of 1,024 as in Spark.

    Raises ConfigError.
    """
    found = _SIZE.fullmatch(str(TARGET_FILE_SIZE if given is None else given).strip())
    size = int(found["number"]) * _UNITS[found["unit"].lower()] if found else 0
    if not size:
        raise ConfigError(f"target_file_size (--target-file-size) must be a size such as 128MB, not '{given}'")
    return size


_PATIENCE_MS = 3_000
_STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_STORES = ("offsetstore", "offsetstore.path", "offsetstore.zookeeper.connect", "group", "kafka.group.id")


@dataclass(frozen=True, kw_only=True)
class Load:
    """The arguments of `load` beside those of its target, as they are given."""

    bootstrap_servers: str = argument("Brokers to contact first.", "HOST:PORT,…", option=None, default=REQUIRED)
    topic: str | Sequence[str] | None = argument(
        "Topics, comma-separated; or set subscribePattern or assign in {options}.", "NAME,…"
    )
    columns: str | Sequence[str] | None = argument(
        "Columns of the output, such as value.*,key,offset as position. Default: all that are read.",
        "COLUMN,…",
        goes_with=("mode", "append"),
        otherwise=_AS_THE_RECORDS,
    )
    partition_by: str | Sequence[str] | None = argument(
        "Columns that become directories, such as date or day(at),bucket(16,customer).", "COLUMN,…"
    )
    sort_by: str | Sequence[str] | None = argument(
        "Columns that a file is sorted by, such as customer,at desc.",
        "COLUMN,…",
        goes_with=("mode", "append"),
        otherwise=_AS_THE_RECORDS,
    )
    starting_offsets: str = argument(
        "Where a partition begins that was never loaded: earliest or JSON.", "OFFSETS", default="earliest"
    )
    max_records: int | None = argument("Offsets in this load at most.", "N", least=1)
    shared_mount: bool = argument(
        "A local path in {to} or {dead_letters} is one network file system, mounted at this path on every host.",
        default=False,
    )
    options: Mapping[str, str] | None = argument(
        "Options of the reader, such as valueFormat and kafka.security.protocol.", option="--option"
    )
    write_options: Mapping[str, str] | None = argument(
        "Options of the output format, such as compression; for sql text: columns of bytes that are UTF-8.",
        option="--write-option",
    )
    from_load: str | None = argument(
        "Load again from this load on, into an empty {to}, up to the group's offsets.",
        "LOAD_ID",
        option="--from",
        goes_with=("format", *FILE_FORMATS),
        otherwise="is for files; format={format} cannot load again",
    )
    from_directory: str | None = argument(
        "Where that load lies ({offsets=files}).", "DIR", option="--from-dir", goes_with=("from_load",)
    )
    allow_changed_options: bool = argument(
        "Go on although {options} read otherwise than the group's loads so far.", default=False
    )
    new_group: bool = argument("Load what other groups have loaded there, once more beside it.", default=False)
    publish_offsets: bool = argument(
        "Commit the offsets to the brokers' consumer group, too, where lag tools see them.", default=True
    )
    target_file_size: int | str | None = argument("Size at which a task begins another file. Default: 128MB.", "SIZE")
    schema_evolution: str = argument(
        "What a load may change in its table: none, add (columns) or add,widen (types that grow, too).",
        "POLICY",
        goes_with=("format", *LAKE_FORMATS),
        otherwise=f"is for {' and '.join(LAKE_FORMATS)}, not for format={{format}}: files have columns of their "
        "own, and a database is altered by its own means",
        default="none",
    )
    dead_letters: str | None = argument(
        "Where records go that cannot be decoded: topic:NAME, or exactly once to delta:URL or iceberg:NAMESPACE.TABLE.",
        "PLACE",
    )
    max_bad: str | int | None = argument(
        "Fail a load with more bad records: a number, or a share of them (0.1%).", "N|P%"
    )
    mode: str = argument(
        f"What a load does with a table: {', '.join(MODES)}.",
        "NAME",
        choices=MODES,
        goes_with=("format", *LAKE_FORMATS),
        default="append",
    )
    key: str | Sequence[str] | None = argument(
        "The table has one row per key.", "COLUMN,…", goes_with=("mode", "upsert")
    )
    envelope: str | None = argument(
        f"{', '.join(ENVELOPES)} around the rows. Default: none.",
        "NAME",
        choices=ENVELOPES,
        goes_with=("mode", "upsert"),
    )
    order_by: str | None = argument(
        "What orders the records of a key in several partitions.", "COLUMN", goes_with=("mode", "upsert")
    )


@dataclass(frozen=True)
class LoadRequest:
    """A load whose arguments are checked: those that are given, and in properties what they mean.

    `time_zone`: of times in text, if no write option names it. `is_impatient`: for a service, which retries by itself.
    Its planning has a short time-out: an outage is reported, and a stop obeyed, within seconds. Spark's own planning
    keeps its time-out. `master`: that of Spark, by which executors may run on other hosts; a URL of Spark Connect for
    one that its server knows. `case_sensitive`: whether Spark tells apart names that differ only in case.
    """

    target: Target
    given: Load
    time_zone: str = "UTC"
    is_impatient: bool = False
    master: str = "local[*]"
    case_sensitive: bool = False

    @classmethod
    def build(
        cls,
        target: Target,
        *,
        time_zone: str = "UTC",
        is_impatient: bool = False,
        master: str = "local[*]",
        case_sensitive: bool = False,
        **given: Any,
    ) -> LoadRequest:
        """Raises ConfigError for arguments (those of `Load`) that cannot be used, before anything is opened."""
        return cls(target.check(), Load(**given), time_zone, is_impatient, master, case_sensitive)

    def __post_init__(self) -> None:
        refuse(arguments_of(Load), {**vars(self.target), **vars(self.given)})
        _check_format(self.format, self.partitioned, self.sorted)
        check_columns(self.source, self.picked, self.partitioned if self.upsert is None else (), self.sorted)
        _ = self.target_file_size, self.evolution, self.writing
        if self.given.from_load and self.target.offsets == "files" and not self.given.from_directory:
            raise ConfigError(
                "from_load with offsets=files needs from_directory (--from-dir): the output directory that holds that "
                "load"
            )

    @property
    def format(self) -> str:
        return str(self.target.format)

    @cached_property
    def picked(self) -> tuple[ColumnItem, ...]:
        return parse_columns(self.given.columns)

    @cached_property
    def partitioned(self) -> tuple[PartitionItem, ...]:
        return parse_partition_by(self.given.partition_by)

    @cached_property
    def sorted(self) -> tuple[SortItem, ...]:
        return parse_sort_by(self.given.sort_by)

    @property
    def columns(self) -> tuple[str, ...]:
        """Items in the spelling of grammar.py."""
        return tuple(map(str, self.picked))

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(map(str, self.partitioned))

    @cached_property
    def target_file_size(self) -> int:
        """Bytes."""
        return parse_file_size(self.given.target_file_size)

    @cached_property
    def evolution(self) -> Evolution:
        return Evolution.parse(self.given.schema_evolution)

    @cached_property
    def dead_letters(self) -> DeadLetterPlace | None:
        return None if self.given.dead_letters is None else DeadLetterPlace.parse(self.given.dead_letters)

    @cached_property
    def max_bad(self) -> MaxBad | None:
        return None if self.given.max_bad is None else MaxBad.parse(self.given.max_bad)

    @cached_property
    def upsert(self) -> Upsert | None:
        """None for a load that appends."""
        given = self.given
        return parse_upsert(given.key, given.envelope, given.order_by) if given.mode == "upsert" else None

    @cached_property
    def tasks_source(self) -> SourceOptions:
        """How tasks read."""
        return parse_options(self._reader, Mode.BATCH)

    @cached_property
    def source(self) -> SourceOptions:
        """How the driver looks up what to read."""
        client = self.tasks_source.client
        if self.is_impatient:
            client = replace(client, default_api_timeout_ms=min(client.default_api_timeout_ms, _PATIENCE_MS))
        return replace(self.tasks_source, client=client)

    @cached_property
    def _reader(self) -> dict[str, str]:
        """The reader's options, names in lower case."""
        given = as_loads_read({name.lower(): str(value) for name, value in (self.given.options or {}).items()})
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
        given["kafka.bootstrap.servers"] = self.given.bootstrap_servers
        if self.given.topic is not None:
            given["subscribe"] = self.given.topic if isinstance(self.given.topic, str) else ",".join(self.given.topic)
        if not any(name in given for name in _STARTS):
            given["startingoffsets"] = self.given.starting_offsets
        if given.get("columnnameofcorruptrecord", "").strip().lower() == LOAD_COLUMN:
            raise ConfigError(
                f"option 'columnNameOfCorruptRecord' cannot be '{LOAD_COLUMN}': this column names the load of a row; "
                "choose another name"
            )
        given |= _about_bad_records(given, self.dead_letters, self.max_bad)
        if self.picked:
            given["columns"] = ",".join(columns_to_read(self.picked, self.partitioned, given))
        return given

    @cached_property
    def writing(self) -> Writing:
        """How tasks write. Raises ConfigError for write options that the format does not have."""
        return parse_write_options(self.format, self.given.write_options or {})

    @property
    def dead_letter_table(self) -> DeadLetterPlace | None:
        """Where the bad records go that the rows leave out; None for a topic."""
        return self.dead_letters if self.dead_letters is not None and self.dead_letters.is_table else None

    @property
    def reading(self) -> dict[str, str]:
        """The reader's options that each load's record keeps (`reading_of`). With a table of dead letters the mode is
        none of them: whatever it is, each record is in one of the two."""
        if self.dead_letter_table is None:
            return reading_of(self._reader)
        return reading_of({name: value for name, value in self._reader.items() if name != "mode"}) | BESIDE

    @property
    def fails_on_bad(self) -> bool:
        """Whether one bad record fails the load: nobody has said what becomes of them."""
        corrupt = set(self.source.formats.corrupt_columns.values())
        said = {"mode", "badrecordstopic", "columnnameofcorruptrecord"} & self._reader.keys()
        picked = any(item.path[0] in corrupt for item in self.picked)
        return decodes(self._reader) and not said and not picked and self.dead_letters is None and self.max_bad is None


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
