"""The options that say which loads a command of `pykafka loads` is about, declared once for all of them.

A command takes a `Place`; `@placed` gives it the options instead. They may stand before the sub-command or behind it,
where they count before those. Raises ConfigError when it is not said which loads.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import typer

from broker.errors import ConfigError
from broker.tools.client_options import parse_pairs
from spark_connector.loads.request import FORMATS, OFFSET_KINDS, Target

__all__ = ["Place", "placed"]


@dataclass(frozen=True)
class Place:
    """What was given; what is empty was not."""

    to: Annotated[
        str | None,
        typer.Option(help="Where the loads go: a directory, local or hdfs://, or a database.", metavar="DIR|URL"),
    ] = None
    group: Annotated[str | None, typer.Option(help="Name of the sequence of loads.", metavar="NAME")] = None
    format: Annotated[
        str | None,
        typer.Option(help=f"As the loads had it: {', '.join(FORMATS)}. Needed for delta only.", metavar="NAME"),
    ] = None
    table: Annotated[
        str | None, typer.Option(help="Table of the database, where --to does not end in #TABLE.", metavar="NAME")
    ] = None
    offsets: Annotated[
        str | None,
        typer.Option(
            help=f"Where the offsets are kept: {', '.join(OFFSET_KINDS)}. Default: the format's.",
            metavar="KIND",
        ),
    ] = None
    zookeeper: Annotated[
        str | None, typer.Option(help="ZooKeeper for --offsets zookeeper.", metavar="HOST:PORT[/CHROOT]")
    ] = None
    hadoop: Annotated[
        list[str] | None, typer.Option("--hadoop", help="Hadoop client setting; may be repeated.", metavar="NAME=VALUE")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False

    @property
    def target(self) -> Target:
        if self.to is None or self.group is None:
            raise ConfigError("say which loads: --to DIR and --group NAME")
        hadoop = parse_pairs(self.hadoop, "--hadoop")
        offsets = self.offsets or ("zookeeper" if self.zookeeper else None)
        return Target(self.to, self.group, offsets, self.zookeeper, hadoop, self.format, self.table)

    def after(self, before: Place | None) -> Place:
        """This one, with what was only given before it."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(before or Place(), **{name: value for name, value in given.items() if value})


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose argument `place` typer fills from options of its own."""
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
