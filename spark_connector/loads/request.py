"""What the caller of `load` asks for, checked before anything is opened.

Built by load.py from its arguments. Everything wrong raises ConfigError saying what to set. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.errors import ConfigError
from spark_connector.offset_store.base import check_group
from spark_connector.options.read_options import Mode, SourceOptions, parse_options

__all__ = ["FORMATS", "OFFSET_KINDS", "LoadRequest", "Target"]

FORMATS = ("parquet", "json", "orc", "avro")
OFFSET_KINDS = ("files", "zookeeper")

_PLACES = ("subscribe", "subscribepattern", "assign")
_STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_ENDS = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")
_STORES = ("offsetstore", "offsetstore.path", "offsetstore.zookeeper.connect", "group", "kafka.group.id")


@dataclass(frozen=True)
class Target:
    """Where a group's loads go and where its offsets are kept; all that a repair needs."""

    to: str
    group: str
    offsets: str = "files"
    zookeeper_connect: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> Target:
        """Itself when it can be used; else ConfigError."""
        if not self.to.strip():
            raise ConfigError("load needs 'to': the directory, local or hdfs://, that the loads go to")
        check_group(self.group)
        if self.offsets not in OFFSET_KINDS:
            raise ConfigError(
                f"offsets must be {' or '.join(OFFSET_KINDS)}, not '{self.offsets}': a load commits its offsets and "
                "its data in one act, which a consumer group cannot"
            )
        if self.offsets == "zookeeper" and not self.zookeeper_connect:
            raise ConfigError("offsets=zookeeper needs 'zookeeper_connect' (--zookeeper): host:port[/chroot]")
        if self.offsets == "files" and self.zookeeper_connect:
            raise ConfigError("zookeeper_connect (--zookeeper) has no effect with offsets=files; leave one of them out")
        return self


@dataclass(frozen=True)
class LoadRequest:
    """One call of `load`. `options` are the reader's, names in lower case, without those that `load` sets."""

    target: Target
    format: str
    source: SourceOptions
    options: Mapping[str, str]
    write_options: Mapping[str, str]
    max_records: int | None = None
    from_load: str | None = None
    from_directory: str | None = None

    @classmethod
    def build(
        cls,
        target: Target,
        *,
        bootstrap_servers: str,
        topic: str | Sequence[str] | None,
        format: str,
        starting_offsets: str,
        max_records: int | None,
        options: Mapping[str, str],
        write_options: Mapping[str, str],
        from_load: str | None,
        from_directory: str | None,
    ) -> LoadRequest:
        """Check the arguments of `load` and put the reader's options together."""
        if format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, not '{format}'")
        if max_records is not None and max_records < 1:
            raise ConfigError(f"max_records must be at least 1, not {max_records}")
        _check_rerun(target, from_load, from_directory)
        given = {name.lower(): str(value) for name, value in options.items()}
        for name in _STORES:
            if name in given:
                raise ConfigError(f"option '{name}' has no place in a load: use its arguments 'group' and 'offsets'")
        given["kafka.bootstrap.servers"] = bootstrap_servers
        if topic is not None:
            given["subscribe"] = topic if isinstance(topic, str) else ",".join(topic)
        if not any(name in given for name in _STARTS):
            given["startingoffsets"] = starting_offsets
        source = parse_options(given, Mode.BATCH)
        reader = {name: value for name, value in given.items() if name not in _PLACES + _STARTS + _ENDS}
        return cls(target.check(), format, source, reader, write_options, max_records, from_load, from_directory)


def _check_rerun(target: Target, from_load: str | None, from_directory: str | None) -> None:
    if from_load is None:
        if from_directory is not None:
            raise ConfigError("from_directory (--from-dir) goes with from_load (--from)")
        return
    if target.offsets == "files" and from_directory is None:
        raise ConfigError(
            "from_load with offsets=files needs from_directory (--from-dir): the output directory that holds that load"
        )
