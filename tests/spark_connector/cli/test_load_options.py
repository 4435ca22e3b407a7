"""The options of commands that load: those of the declaration, and what a properties file gives to the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.main

from broker.errors import ConfigError
from broker.tools.console import build
from spark_connector.cli.load_options import cluster_options, given_arguments
from spark_connector.loads.arguments import REQUIRED, arguments_of
from spark_connector.loads.request import Load, Target
from spark_connector.options.read_options import Mode, SourceOptions, parse_options

CONSUMERS = """\
bootstrap.servers=h:1
group.id=reports
auto.offset.reset=earliest
enable.auto.commit=false
auto.commit.interval.ms=1000
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
fetch.min.bytes=5
"""


def parsed(file: Path, **options: str) -> SourceOptions:
    servers, given = cluster_options(None, file, {f"kafka.{name.replace('_', '.')}": options[name] for name in options})
    return parse_options({"kafka.bootstrap.servers": servers, "subscribe": "t", **given}, Mode.BATCH)


def test_a_consumers_file_is_taken_and_what_would_say_where_to_start_left_out(tmp_path: Path) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text(CONSUMERS, encoding="utf-8")
    settings = parsed(file).client
    assert (settings.bootstrap_servers, settings.fetch_min_bytes) == (("h:1",), 5)
    for name, value in (("auto_offset_reset", "earliest"), ("enable_auto_commit", "false")):
        with pytest.raises(ConfigError, match="is not supported"):
            parsed(file, **{name: value})


def test_a_command_has_an_option_for_each_argument_of_a_load_with_its_default() -> None:
    command: Any = typer.main.get_command(build(["load"])).get_command(None, "load")  # type: ignore[attr-defined]
    options = {one.name: one for one in command.params}
    declared = {name: one for name, one in arguments_of(Target, Load).items() if one.argument.option is not None}
    assert {name: options[name].opts for name in declared} == {name: [one.option] for name, one in declared.items()}
    assert {name: options[name].default for name, one in declared.items() if one.default is not REQUIRED} == {
        name: one.default for name, one in declared.items() if one.default is not REQUIRED
    }
    assert {name for name, one in declared.items() if options[name].required} == {"to", "group"}


def test_pairs_and_flags_are_given_as_python_has_them() -> None:
    typed: dict[str, Any] = {"options": ["a=1", "b=x=y"], "write_options": None, "new_group": True, "master": "local"}
    assert given_arguments(arguments_of(Load), typed) == {
        "options": {"a": "1", "b": "x=y"},
        "write_options": {},
        "new_group": True,
    }
    assert typed == {"master": "local"}, "what is no argument of a load is left"
