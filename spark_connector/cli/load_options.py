"""The options of commands for loads, made from what is declared of arguments (loads/arguments.py), and those that
several of these commands share.

A command of `pykafka loads` takes a `Place`, and `@placed` replaces it with the options. They may be given before or
after the sub-command; those after it win. Raises ConfigError when the loads are not named.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from broker.errors import ConfigError
from broker.tools.client_options import given_properties, parse_pairs, refuse_no_brokers
from spark_connector.loads.arguments import REQUIRED, Argument, Arguments, Declared, argument, arguments_of, meaning
from spark_connector.loads.request import FORMATS, Target

_OF_CONSUMERS = ("group.id", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms")
"""The file may be that of a consumer; a load has its own group, start and commits."""

REWINDABLE = ("Files of loads that are younger are not compacted. Default: 24h.", "TIME")


def options_of(cls: type, *others: type) -> list[inspect.Parameter]:
    """The fields of a class as options: those that are arguments, and those that have an option of typer. `others` have
    further arguments that the texts name."""
    declared, hints, found = arguments_of(cls, *others), get_type_hints(cls, include_extras=True), []
    own = arguments_of(cls)
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in own and own[name].argument.option is not None:
            found.append(as_option(own[name], declared))
        elif name not in own and get_origin(hints[name]) is Annotated:
            found.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
    return found


def as_option(one: Declared, declared: Arguments) -> inspect.Parameter:
    """An argument as an option of a command, for typer."""

    def name(other: str, value: str) -> str:
        return f"{declared[other].option} {value}".rstrip()

    said, kinds = one.argument, get_args(one.type) or (one.type,)
    text = meaning(one, name)
    names, value, kind = [one.option], said.value or None, str if str in kinds else kinds[0]
    if any(get_origin(each) in (Mapping, list) for each in kinds):
        kind, value, text = list[str], value or "NAME=VALUE", f"{text} May be repeated."
    elif kind is bool and one.default:
        names = [f"{one.option}/--no-{one.option[2:]}"]
    option = typer.Option(*names, help=text, metavar=value, min=said.least)
    annotation: Any = Annotated[kind | None if one.default is None else kind, option]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation)


def given_arguments(declared: Arguments, typed: dict[str, Any]) -> dict[str, Any]:
    """Takes the values of these arguments out of what typer gives for options; NAME=VALUE become mappings."""
    given = {}
    for name, one in declared.items():
        if name in typed:
            is_pairs = any(get_origin(kind) is Mapping for kind in get_args(one.type))
            value = typed.pop(name)
            given[name] = parse_pairs(value, one.option) if is_pairs else value
    return given


@dataclass(frozen=True)
class Beside:
    """What says which loads a command is about, beside the arguments of a target."""

    hadoop: list[str] | None = argument("Hadoop client setting.")
    dead_letters: list[str] | None = argument(
        "Table of dead letters that the loads name in another storage than {to}.", "delta:URL"
    )
    as_json: bool = argument("Print JSON.", option="--json", default=False)


def _place_options() -> list[inspect.Parameter]:
    """Those of `Place`: none is required."""
    declared = dict(arguments_of(Target, Beside))
    del declared["keep_snapshots"]
    had = f"As the loads had it: {', '.join(FORMATS)}. Default: that of what is there."
    declared["format"] = declared["format"]._replace(argument=Argument(had, "NAME"))
    optional = (one._replace(default=None) if one.default is REQUIRED else one for one in declared.values())
    return [as_option(one, declared) for one in optional]


@dataclass(frozen=True)
class Place(Beside):
    """The given options; one that was not given is empty. `given` are the arguments of a target."""

    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> Target:
        to = self.given.get("to")
        if to is None or self.given.get("group") is None:
            raise ConfigError("say which loads: --to DIR and --group NAME")
        hadoop = parse_pairs(self.hadoop, "--hadoop")
        if hadoop and not to.startswith("hdfs://"):
            raise ConfigError("--hadoop has settings of Hadoop's clients, which go with --to hdfs://…")
        offsets = self.given.get("offsets") or ("zookeeper" if self.given.get("zookeeper_connect") else None)
        return Target.of(self.given, hadoop, offsets=offsets, dead_letters=tuple(self.dead_letters or ()))

    def after(self, before: Place | None) -> Place:
        """This place, completed with options that were only given `before`."""
        if before is None:
            return self
        given = {**before.given, **{name: value for name, value in self.given.items() if value}}
        own = {one.name: getattr(self, one.name) or getattr(before, one.name) for one in fields(Beside)}
        return Place(**own, given=given)


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Place` in place of its argument `place`."""
    own = inspect.signature(command, eval_str=True).parameters
    options = _place_options()

    @functools.wraps(command)
    def run(context: typer.Context, **given: Any) -> None:
        beside = {one.name: given.pop(one.name) for one in fields(Beside)}
        place = Place(**beside, given=given_arguments(arguments_of(Target), given)).after(context.obj)
        context.obj = place
        command(**given, place=place, **({"context": context} if "context" in own else {}))

    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    given = [parameter for name, parameter in own.items() if name not in ("context", "place")]
    parameters += [*options, *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in given)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def cluster_options(bootstrap: str | None, file: Path | None, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """(bootstrap servers, options of the reader): the properties of `file` as `kafka.…`; `options` win over them.

    Raises ConfigError for a file that cannot be read.
    """
    refuse_no_brokers(bootstrap)
    properties = given_properties(file)
    servers = properties.pop("bootstrap.servers")
    for name in _OF_CONSUMERS:
        properties.pop(name, None)
    return bootstrap or servers, {f"kafka.{name}": value for name, value in properties.items()} | dict(options)
