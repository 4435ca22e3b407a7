"""Options that several commands for loads share: the brokers, and which loads a command is about.

A command of `pykafka loads` takes a `Place`, and `@placed` replaces it with the options. They may be given before or
after the sub-command; those after it win. Raises ConfigError when the loads are not named.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.errors import ConfigError
from broker.tools.client_options import BootstrapServer, ConfigFile, given_properties, parse_pairs
from spark_connector.loads.addresses import storage_options_for
from spark_connector.loads.request import FORMATS, OFFSET_KINDS, Target

__all__ = [
    "WHERE",
    "BootstrapServer",
    "CatalogOption",
    "ConfigFile",
    "OffsetsOption",
    "Place",
    "RewindableOption",
    "StorageOption",
    "TableOption",
    "ZooKeeperOption",
    "cluster_options",
    "placed",
]

_OF_CONSUMERS = ("group.id", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms")
"""The file may be that of a consumer; a load has its own group, start and commits."""


TableOption = Annotated[
    str | None, typer.Option(help="Table of the database, where --to does not end in #TABLE.", metavar="NAME")
]
OffsetsOption = Annotated[
    str | None,
    typer.Option(help=f"Where the offsets are kept: {', '.join(OFFSET_KINDS)}. Default: the format's.", metavar="KIND"),
]
ZooKeeperOption = Annotated[
    str | None, typer.Option(help="ZooKeeper for --offsets zookeeper.", metavar="HOST:PORT[/CHROOT]")
]
RewindableOption = Annotated[
    str | None,
    typer.Option(help="Files of loads that are younger are not compacted. Default: 24h.", metavar="TIME"),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(help="Option of the object store in --to; may be repeated.", metavar="NAME=VALUE"),
]
CatalogOption = Annotated[
    str | None,
    typer.Option(help="Catalog of an Iceberg table: a name of pyiceberg's configuration.", metavar="NAME"),
]
WHERE = (
    "Where the loads go: a directory, local or hdfs://, a Delta table also on s3://, gs:// or abfs://; "
    "iceberg:NAMESPACE.TABLE, or a database."
)


@dataclass(frozen=True)
class Place:
    """The given options; an option that was not given is empty."""

    to: Annotated[str | None, typer.Option(help=WHERE, metavar="DIR|URL")] = None
    group: Annotated[str | None, typer.Option(help="Name of the sequence of loads.", metavar="NAME")] = None
    format: Annotated[
        str | None,
        typer.Option(help=f"As the loads had it: {', '.join(FORMATS)}. Needed for delta only.", metavar="NAME"),
    ] = None
    table: TableOption = None
    catalog: CatalogOption = None
    offsets: OffsetsOption = None
    zookeeper: ZooKeeperOption = None
    hadoop: Annotated[
        list[str] | None, typer.Option("--hadoop", help="Hadoop client setting; may be repeated.", metavar="NAME=VALUE")
    ] = None
    storage_option: StorageOption = None
    dead_letters: Annotated[
        list[str] | None,
        typer.Option(
            help="Table of dead letters that the loads name in another storage than --to; may be repeated.",
            metavar="delta:URL",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False

    @property
    def target(self) -> Target:
        if self.to is None or self.group is None:
            raise ConfigError("say which loads: --to DIR and --group NAME")
        given, hadoop = parse_pairs(self.storage_option, "--storage-option"), parse_pairs(self.hadoop, "--hadoop")
        if hadoop and not self.to.startswith("hdfs://"):
            raise ConfigError("--hadoop has settings of Hadoop's clients, which go with --to hdfs://…")
        storage = storage_options_for(self.to, given, hadoop)
        offsets = self.offsets or ("zookeeper" if self.zookeeper else None)
        place = (self.to, self.group, offsets, self.zookeeper, storage, self.format, self.table, self.catalog)
        return Target(*place, dead_letters=tuple(self.dead_letters or ()))

    def after(self, before: Place | None) -> Place:
        """This place, completed with options that were only given `before`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(before or Place(), **{name: value for name, value in given.items() if value})


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Place` in place of its argument `place`."""
    own = inspect.signature(command, eval_str=True).parameters
    options = inspect.signature(Place, eval_str=True).parameters

    @functools.wraps(command)
    def run(context: typer.Context, **given: Any) -> None:
        place = Place(**{name: given.pop(name) for name in options}).after(context.obj)
        context.obj = place
        command(**given, place=place, **({"context": context} if "context" in own else {}))

    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    given = [parameter for name, parameter in own.items() if name not in ("context", "place")]
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*options.values(), *given)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def cluster_options(bootstrap: str | None, file: Path | None, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """(bootstrap servers, options of the reader): the properties of `file` as `kafka.…`; `options` win over them.

    Raises ConfigError for a file that cannot be read.
    """
    properties = given_properties(file)
    servers = properties.pop("bootstrap.servers")
    for name in _OF_CONSUMERS:
        properties.pop(name, None)
    return bootstrap or servers, {f"kafka.{name}": value for name, value in properties.items()} | dict(options)
