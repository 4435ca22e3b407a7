"""Arguments of a load are declared once: what is refused, and the signature and text of `load`, follow from fields."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest

from broker.errors import ConfigError
from spark_connector.cli.load_command import LoadOptions
from spark_connector.load import load
from spark_connector.loads.arguments import REQUIRED, Declared, argument, arguments_of, meaning, refuse
from spark_connector.loads.request import Load, Target
from tests.support.load_arguments import ARGUMENTS, PAGE, in_python, written
from tests.tools.test_spelling import spelling_of

COMMAND = arguments_of(Target, Load, LoadOptions)
DEFAULTS = {name: None if one.default is REQUIRED else one.default for name, one in COMMAND.items()}
DEFAULTS |= {"format": "parquet", "offsets": "files"}
GOING_WITH = [one for one in COMMAND.values() if one.argument.goes_with]
SPEAK, _ = spelling_of("load")


def said_of(given: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        refuse(COMMAND, DEFAULTS | given)
    return str(refused.value)


def test_the_signature_of_load_is_the_declaration() -> None:
    spark, *parameters, on_phase = inspect.signature(load, eval_str=True).parameters.values()
    assert (spark.name, on_phase.name) == ("spark", "on_phase")
    assert {one.kind for one in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    shown = {one.name: (one.annotation, one.default) for one in parameters}
    assert shown == {one.name: (one.type, one.default) for one in ARGUMENTS.values()}


def test_the_text_of_load_is_the_declaration() -> None:
    source = PAGE.read_text(encoding="utf-8")
    assert written(source) == source, "run `make reference`"
    assert written(source.replace("schema_evolution: str", "schema: str")) == source
    text = " ".join((load.__doc__ or "").split())
    assert [name for name in ARGUMENTS if f"`{name}`: " not in text] == []
    assert "`from_directory`: With `from_load`: where that load lies (`offsets=files`)." in text


@pytest.mark.parametrize(
    "one", [one for one in COMMAND.values() if one.argument.least is not None], ids=lambda o: o.name
)
def test_a_number_that_is_too_small_is_refused(one: Declared) -> None:
    assert SPEAK(said_of({one.name: 0})) == f"{one.option} must be at least 1, not 0"


@pytest.mark.parametrize("one", [one for one in COMMAND.values() if one.argument.choices], ids=lambda one: one.name)
def test_a_value_that_there_is_not_is_refused(one: Declared) -> None:
    assert SPEAK(said_of({one.name: "odd"})) == (
        f"{one.option} must be one of {', '.join(one.argument.choices)}, not 'odd'"
    )


@pytest.mark.parametrize("one", GOING_WITH, ids=lambda one: one.name)
def test_an_argument_without_what_it_goes_with_is_refused_in_the_words_of_the_command(one: Declared) -> None:
    values_of_it: Collection[Any] = one.argument.choices or [5]
    value = next(choice for choice in values_of_it if choice != one.default)
    name, *values = one.argument.goes_with
    without: dict[str, Any] = {name: None}
    if values:
        without[name] = {"format": "delta" if "parquet" in values else "json", "mode": "upsert"}.get(name, "files")
        if values == ["upsert"]:
            without[name] = "append"
    given = DEFAULTS | {one.name: value} | without
    with pytest.raises(ConfigError) as refused:
        refuse({one.name: one, name: COMMAND[name]._replace(argument=argument_alone(COMMAND[name]))}, given)
    said = SPEAK(str(refused.value))
    assert said.startswith((one.option, f"{one.option} {value}")), said
    assert f"{one.name} (" not in said
    refuse({one.name: one}, given | {name: values[0] if values else "given"})


def argument_alone(one: Declared) -> Any:
    """What is declared of it, without what it goes with itself."""
    return type(one.argument)(one.argument.meaning, option=one.argument.option)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "iceberg"}, "--format iceberg needs --catalog: the name of a catalog"),
        ({"offsets": "zookeeper"}, "--offsets zookeeper needs --zookeeper: host:port"),
    ],
)
def test_what_is_needed_is_asked_for(given: dict[str, Any], said: str) -> None:
    assert SPEAK(said_of(given)).startswith(said)


def test_a_new_argument_is_one_field() -> None:
    @dataclass(frozen=True, kw_only=True)
    class More:
        mode: str = argument("What a load does.", default="append", choices=("append", "upsert"))
        patience: int | None = argument("How long {mode=upsert} waits.", "N", least=2, goes_with=("mode", "upsert"))

    declared = arguments_of(More)
    assert meaning(declared["patience"], in_python) == "With `mode=upsert`: how long `mode=upsert` waits."
    for patience, mode, said in ((1, "upsert", "at least 2, not 1"), (2, "append", r"goes with mode=upsert \(--mode")):
        with pytest.raises(ConfigError, match=rf"^patience \(--patience\) .*{said}"):
            refuse(declared, vars(More(patience=patience, mode=mode)))
    refuse(declared, vars(More(patience=2, mode="upsert")))
