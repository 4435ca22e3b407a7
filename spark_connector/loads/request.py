"""What the caller of `load` asks for, checked before anything is opened.

Built by load.py from its arguments. Everything wrong raises ConfigError saying what to set. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.errors import ConfigError
from spark_connector.loads.database_url import DatabaseAddress, is_database_url
from spark_connector.loads.layout import DERIVED, parse_partition_by
from spark_connector.loads.reading import DEFAULTS, reading_of
from spark_connector.offset_store.base import check_group
from spark_connector.options.read_options import Mode, SourceOptions, parse_options

__all__ = ["FILE_FORMATS", "FORMATS", "OFFSET_KINDS", "LoadRequest", "Target"]

FILE_FORMATS = ("parquet", "json", "orc", "avro")
FORMATS = (*FILE_FORMATS, "delta", "sql")
OFFSET_KINDS = ("files", "zookeeper", "table")
"""`table`: in the Delta table's log, or in the database; the only kind for these two, and for no other."""

_PATIENCE_MS = 3_000
_PLACES = ("subscribe", "subscribepattern", "assign")
_STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_STRATEGY = "startingoffsetsbytimestampstrategy"  # says nothing about where to start by itself
_ENDS = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")
_STORES = ("offsetstore", "offsetstore.path", "offsetstore.zookeeper.connect", "group", "kafka.group.id")


@dataclass(frozen=True)
class Target:
    """Where a group's loads go and where its offsets are kept; all that a repair needs.

    `to` is a directory or a database URL, whose password is not shown. `format` and `offsets` may be left to be told
    from it: `check` fills them in.
    """

    to: str = field(repr=False)
    group: str
    offsets: str | None = None
    zookeeper_connect: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    format: str | None = None
    table: str | None = None

    @property
    def is_table(self) -> bool:
        """Whether data and offsets are one thing: a Delta table or a database."""
        return self.format in ("delta", "sql")

    @property
    def address(self) -> DatabaseAddress:
        """The database. Raises ConfigError when `to` is none."""
        return DatabaseAddress.parse(self.to, self.table)

    def check(self) -> Target:
        """Itself, with format and offsets filled in, when it can be used; else ConfigError."""
        if not self.to.strip():
            raise ConfigError("load needs 'to': a directory, local or hdfs://, or a database URL, that the loads go to")
        check_group(self.group)
        format = self.format or _natural_format(self)
        if format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, not '{format}'")
        if format != "sql" and is_database_url(self.to):
            raise ConfigError(f"'to' is a database: format must be sql, not {format}")
        is_table = format in ("delta", "sql")
        offsets = self.offsets or ("table" if is_table else "files")
        checked = replace(self, format=format, offsets=offsets)
        if format == "sql":
            _ = checked.address
        elif self.table is not None:
            raise ConfigError(f"table (--table) names a table of a database; it has no effect with format={format}")
        checked._check_offsets(offsets, is_table)
        return checked

    def _check_offsets(self, offsets: str, is_table: bool) -> None:
        if offsets not in OFFSET_KINDS:
            raise ConfigError(
                f"offsets must be files or zookeeper, or table for format=delta and sql, not '{offsets}': a load "
                "commits its offsets and its data in one act, which a consumer group cannot"
            )
        if is_table and offsets != "table":
            raise ConfigError(
                f"format={self.format} keeps its offsets in the table itself, where they commit with the data: leave "
                f"out offsets={offsets}"
            )
        if not is_table and offsets == "table":
            raise ConfigError(f"offsets=table goes with format=delta or sql; {self.format} takes files or zookeeper")
        if offsets == "zookeeper" and not self.zookeeper_connect:
            raise ConfigError("offsets=zookeeper needs 'zookeeper_connect' (--zookeeper): host:port[/chroot]")
        if offsets != "zookeeper" and self.zookeeper_connect:
            raise ConfigError(
                f"zookeeper_connect (--zookeeper) has no effect with offsets={offsets}; leave one of them out"
            )


@dataclass(frozen=True)
class LoadRequest:
    """One call of `load`. `options` are the reader's, names in lower case, without those that `load` sets."""

    target: Target
    format: str
    source: SourceOptions
    options: Mapping[str, str]
    write_options: Mapping[str, str]
    partition_by: tuple[str, ...] = ()
    max_records: int | None = None
    from_load: str | None = None
    from_directory: str | None = None
    allow_changed_options: bool = False
    new_group: bool = False
    publish_offsets: bool = True

    @property
    def reading(self) -> dict[str, str]:
        """The options that decide what is loaded (loads/reading.py)."""
        return reading_of(self.options)

    def impatient(self) -> LoadRequest:
        """For a service, which tries again by itself: planning waits a few seconds for brokers, so that an outage is
        told, and a stop heeded, soon. What Spark's own planning waits is not changed."""
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
        starting_offsets: str,
        max_records: int | None,
        options: Mapping[str, str],
        write_options: Mapping[str, str],
        from_load: str | None,
        from_directory: str | None,
        format: str | None = None,
        partition_by: str | Sequence[str] | None = None,
        allow_changed_options: bool = False,
        new_group: bool = False,
        publish_offsets: bool = True,
    ) -> LoadRequest:
        """Check the arguments of `load` and put the reader's options together."""
        target = replace(target, format=format or target.format).check()
        layout = parse_partition_by(partition_by)
        if layout and target.format == "sql":
            raise ConfigError("partition_by (--partition-by) is for files and Delta, not for tables of a database")
        if max_records is not None and max_records < 1:
            raise ConfigError(f"max_records must be at least 1, not {max_records}")
        _check_rerun(target, from_load, from_directory)
        given = {name.lower(): str(value) for name, value in {**DEFAULTS, **options}.items()}
        for name in _STORES:
            if name in given:
                raise ConfigError(f"option '{name}' has no place in a load: use its arguments 'group' and 'offsets'")
        given["kafka.bootstrap.servers"] = bootstrap_servers
        if topic is not None:
            given["subscribe"] = topic if isinstance(topic, str) else ",".join(topic)
        if not any(name in given for name in _STARTS):
            given["startingoffsets"] = starting_offsets
        source = parse_options(given, Mode.BATCH)
        _check_columns(source.columns, layout)
        reader = {name: value for name, value in given.items() if name not in (*_PLACES, *_STARTS, _STRATEGY, *_ENDS)}
        return cls(
            target,
            str(target.format),
            source,
            reader,
            write_options,
            layout,
            max_records,
            from_load,
            from_directory,
            allow_changed_options,
            new_group,
            publish_offsets and from_load is None,  # a re-run leaves the group where it is
        )


def _natural_format(target: Target) -> str:
    return "sql" if target.table is not None or is_database_url(target.to) else "parquet"


def _check_columns(columns: Sequence[str], partition_by: Sequence[str]) -> None:
    """What a load counts its rows by, and what its directories are named by, must be read."""
    needed = ["topic", "partition", "offset"]
    if any(name in DERIVED for name in partition_by):
        needed.append("timestamp")
    missing = [name for name in needed if name not in columns]
    if missing:
        raise ConfigError(f"option 'columns' leaves out {', '.join(missing)}, which a load needs to count its rows")


def _check_rerun(target: Target, from_load: str | None, from_directory: str | None) -> None:
    if from_load is None:
        if from_directory is not None:
            raise ConfigError("from_directory (--from-dir) goes with from_load (--from)")
        return
    if target.is_table:
        raise ConfigError(f"from_load (--from) is for files; format={target.format} cannot load again")
    if target.offsets == "files" and from_directory is None:
        raise ConfigError(
            "from_load with offsets=files needs from_directory (--from-dir): the output directory that holds that load"
        )
