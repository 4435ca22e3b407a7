"""The words of a command in messages that were written for Python.

A command such as `pykafka load` is a thin layer on a function of Python, whose errors and warnings name its arguments:
`publish_offsets=False`, `from_load (--from)`, `option 'valueFormat'`. Who sits at a terminal has options. So the names
are spelt anew where a message is printed, and only there, by the options that the running command declares:
`--no-publish-offsets`, `--from`, `--option valueFormat`.

A message names an argument by one of these forms: with its option in parentheses; with a value; with an underscore in
it; in quotes, at its beginning, after `needs` or after `argument`. tests/tools/test_spelling.py reads all messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_VALUE: Final = r"=(?![A-Z]+\b)([^\s,;:()'\"]+)"
"""What is given to an argument. In capitals it is of the reader's option `mode`."""


@dataclass(frozen=True)
class Spelt:
    """An option as it is typed: its name, how it is switched off, and whether it takes one word, or NAME=VALUE."""

    name: str
    off: str = ""
    is_flag: bool = False
    takes_word: bool = False
    takes_pair: bool = False

    def given(self, value: str | None) -> str:
        if value is None:
            return self.name
        if self.is_flag:
            return self.name if value == "True" else self.off or f"no {self.name}"
        return f"{self.name} {value}"


class Spelling:
    """The options of one command, by the names of its parameters."""

    def __init__(self, options: Mapping[str, Spelt]) -> None:
        plurals = {f"{name}s": one for name, one in options.items() if one.takes_pair or "_" in name}
        self._options = {**plurals, **{one.name[2:].replace("-", "_"): one for one in options.values()}, **options}
        names, spellings = _any(self._options), _any(one for each in options.values() for one in (each.name, each.off))
        whole = _any(name for name in self._options if "_" in name)
        words = _any(name for name, one in options.items() if one.takes_word or one.is_flag)
        forms = [
            (rf"'?(?:{names}|\w+_\w+)'?(?:{_VALUE})? \(({spellings})(?: \w+)?\)", self._in_parentheses),
            (rf"(?<![\w-])(?:{names}), (?=(?:{spellings})\b)", lambda found: ""),
            (r"(?<![\w'.=/-])(\w+) \(--option\)", self._pair("--option")),
            (r"\bwrite option '([\w.]+)'", self._pair("--write-option")),
            (r"\b(?:the )?[Oo]ption '([\w.]+)'", self._pair("--option")),
            (r"(?<=\()option (\w+(?:=\w+)?)(?=\))", self._pair("--option")),
            (rf"(?<![\w'.=/-])({whole})(?:{_VALUE})?(?![\w'=])", self._named),
            (rf"(?<!option )(?<![\w'.=/-])({words}){_VALUE}", self._named),
            (rf"(?<=and )({names}){_VALUE}", self._named),
            (rf"(?:(?<=^)|(?<=: ))({words})(?= must be )", self._named),
            (rf"(?:(?<=^)|(?<=needs ))'({words})'", self._named),
            (rf"the arguments? '({words})'(?: and '({words})')?", self._both),
            (r"the argument (?=--)", lambda found: ""),
        ]
        self._forms = [(re.compile(pattern), spell) for pattern, spell in forms]

    @classmethod
    def of(cls, context: Any) -> Spelling:
        """Of the command that click runs in this context, and of those above it."""
        options: dict[str, Spelt] = {}
        while context is not None:
            for one in context.command.get_params(context):
                if one.param_type_name == "option" and one.name and one.opts[-1].startswith("--"):
                    options.setdefault(one.name, _spelt(one))
            context = context.parent
        return cls(options)

    def __call__(self, text: str) -> str:
        for pattern, spell in self._forms:
            text = pattern.sub(spell, text)
        return text

    def _named(self, found: re.Match[str]) -> str:
        return self._options[found[1]].given(found[2] if found.re.groups > 1 else None)

    def _in_parentheses(self, found: re.Match[str]) -> str:
        value, name = found.groups()
        option = next(one for one in self._options.values() if name in (one.name, one.off))
        return option.given(value)

    def _both(self, found: re.Match[str]) -> str:
        return " and ".join(self._options[name].name for name in found.groups() if name)

    def _pair(self, name: str) -> Callable[[re.Match[str]], str]:
        """Spells `NAME` as what an option takes that is given as NAME=VALUE."""
        is_there = any(one.name == name for one in self._options.values())
        return lambda found: f"{name} {found[1]}" if is_there else found[0]


def _any(names: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, filter(None, names)), key=len, reverse=True)) or r"(?!)"


def _spelt(option: Any) -> Spelt:
    name = next(one for one in reversed(option.opts) if one.startswith("--"))
    shape = option.metavar or ""
    is_word = bool(shape) and not option.multiple and "," not in shape and not shape.startswith("COLUMN")
    off = next(iter(option.secondary_opts), "")
    return Spelt(name, off, bool(option.is_flag), is_word, option.multiple and shape == "NAME=VALUE")


_spelling: Spelling | None = None


def speak_for(context: Any) -> None:
    """From now on, messages are for who runs the command of this context."""
    global _spelling
    _spelling = Spelling.of(context)


def spoken(message: str) -> str:
    """The message in the words of the command that runs."""
    return message if _spelling is None else _spelling(message)
