"""What an argument is: declared once, by a field of a dataclass, and followed by all that has to do with it.

    keep_snapshots: int | None = argument("Snapshots that the table keeps.", "N", least=1)

From it follow what `refuse` refuses, the options of commands (cli/load_options.py), the signature and the text of
`load` (load.py), and the table in docs/reference/options.md. Pure.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from broker.errors import ConfigError

_NAMED = re.compile(r"\{(\w+)(?:=(\w+))?\}")


@dataclass(frozen=True)
class Argument:
    """What is declared of an argument beside its name, type and default.

    `meaning`: a sentence, in which `{to}` and `{mode=upsert}` are other arguments. `value`: what stands for a value in
    a command's help. `option`: as a command spells it, if not as the name; None where no command has it. `choices`,
    `least`: the values that it may have.

    `goes_with`: an argument without which it has no effect, and the values of that one, if not any. `otherwise`: what
    is said where they differ, with the values of `{format}` and others in it. `needed`: what goes with it needs it;
    says what it is.
    """

    meaning: str
    value: str = ""
    option: str | None = ""
    choices: Collection[str] = ()
    least: int | None = None
    goes_with: tuple[str, ...] = ()
    otherwise: str = ""
    needed: str = ""


REQUIRED: Any = inspect.Parameter.empty


def argument(meaning: str, value: str = "", *, default: Any = None, is_secret: bool = False, **declared: Any) -> Any:
    """A field of a dataclass that is an argument; `declared` are those of `Argument`. What is secret is not printed."""
    metadata = {"argument": Argument(meaning, value, **declared)}
    return field(default=MISSING if default is REQUIRED else default, repr=not is_secret, metadata=metadata)


class Declared(NamedTuple):
    """An argument and its name, type and default (`REQUIRED` for none)."""

    name: str
    type: Any
    default: Any
    argument: Argument

    @property
    def option(self) -> str:
        return self.argument.option or f"--{self.name.replace('_', '-')}"

    @property
    def label(self) -> str:
        """Its name for Python and for commands, as messages have it."""
        return f"{self.name} ({self.option})"

    def is_given(self, value: object) -> bool:
        return bool(value) and value != self.default


Arguments = Mapping[str, Declared]


@cache
def arguments_of(*classes: type) -> Arguments:
    """The arguments that fields of these dataclasses declare, by name."""
    found = {}
    for cls in classes:
        hints = get_type_hints(cls)
        for one in fields(cls):
            if one.metadata:
                default = REQUIRED if one.default is MISSING else one.default
                found[one.name] = Declared(one.name, hints[one.name], default, one.metadata["argument"])
    return found


def given_to(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are arguments of this class."""
    return {name: given[name] for name in arguments_of(cls) if name in given}


def meaning(one: Declared, name: Callable[[str, str], str]) -> str:
    """What an argument means, with other arguments as `name(argument, value)` spells them."""
    text = _NAMED.sub(lambda found: name(found[1], found[2] or ""), one.argument.meaning)
    if not one.argument.goes_with or one.argument.otherwise or one.default:
        return text
    other, *values = one.argument.goes_with
    return f"With {name(other, ' or '.join(values))}: {text[0].lower()}{text[1:]}"


def refuse(declared: Arguments, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value that its argument cannot have, for an argument without what it goes with, and for
    what goes with one without it. `given` has a value for each of them, and for those that they go with."""
    for one in declared.values():
        value, argument = given[one.name], one.argument
        if argument.choices and value is not None and value not in argument.choices:
            raise ConfigError(f"{one.label} must be one of {', '.join(argument.choices)}, not '{value}'")
        if argument.least is not None and value is not None and value < argument.least:
            raise ConfigError(f"{one.label} must be at least {argument.least}, not {value}")
    for one in declared.values():
        if not one.argument.goes_with:
            continue
        name, *values = one.argument.goes_with
        holds = given[name] in values if values else bool(given[name])
        if one.is_given(given[one.name]) and not holds:
            raise ConfigError(refusal(one, declared, given))
        if holds and one.argument.needed and not given[one.name]:
            raise ConfigError(f"{name}={given[name]} needs '{one.name}' ({one.option}): {one.argument.needed}")


def refusal(one: Declared, declared: Arguments, given: Mapping[str, Any]) -> str:
    """Why an argument is refused without what it goes with."""
    argument = one.argument
    if argument.otherwise:
        return f"{one.label} {argument.otherwise.format_map(given)}"
    name, *values = argument.goes_with
    if not values:
        return f"{one.label} goes with {declared[name].label}"
    label = f"{one.name}={given[one.name]}" if argument.choices and one.default else one.label
    if len(values) == 1:
        return f"{label} goes with {name}={values[0]} ({declared[name].option} {values[0]})"
    return f"{label} goes with {name} {', '.join(values[:-1])} or {values[-1]}, not {given[name]}"
