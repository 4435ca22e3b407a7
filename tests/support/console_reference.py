"""The console's reference page, made from the commands themselves: usage, help and options of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from broker.tools.console import build, commands
from tests.support.markdown_table import table

_TITLES = {"Example:", "Examples:"}


def console() -> str:
    """A section for each command of `pykafka`, in the order of its help."""
    return "\n".join(section for name in commands() for section in _sections(name))


def _sections(name: str) -> Iterator[str]:
    root: Any = typer.main.get_command(build([name]))
    context = root.make_context("pykafka", [name], resilient_parsing=True)
    yield from _section(root.get_command(context, name), f"pykafka {name}", level=2)


def _section(command: Any, path: str, level: int) -> Iterator[str]:
    """The command's own text, then those of its sub-commands."""
    context = command.context_class(command, info_name=path)
    parts = [f"{'#' * level} `{path}`", _prose(command.help)]
    children = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        parts += [f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```", _parameters(command)]
    yield "\n\n".join(part for part in parts if part) + "\n"
    for name, child in children.items():
        if not child.hidden:
            yield from _section(child, f"{path} {name}", level + 1)


def _prose(text: str | None) -> str:
    """Help as Markdown. click's mark for text that is not to be wrapped begins a block: examples become a fence."""
    plain, *blocks = (text or "").split("\b\n")
    parts = [plain.strip()]
    for block in blocks:
        lines, _, rest = block.partition("\n\n")
        shown = "\n".join(line.strip() for line in lines.splitlines() if line.strip() not in _TITLES)
        parts += [f"```sh\n{shown}\n```", rest.strip()]
    return "\n\n".join(part for part in parts if part)


def _parameters(command: Any) -> str:
    rows = []
    for one in command.params:
        if getattr(one, "hidden", False) or one.name == "help":
            continue
        if one.param_type_name == "argument":
            rows.append([f"`{(one.metavar or one.name).upper()}`", "", _cell(one.help or "")])
        else:
            names = ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts])
            value = "" if one.is_flag else f"`{one.metavar or _type(one)}`"
            rows.append([names, value, _cell(one.help or "") + _default(one)])
    return table(["option", "value", "meaning"], rows).rstrip()


def _type(option: Any) -> str:
    kind = option.bare_type()
    for part in getattr(kind, "__args__", ()):
        kind = part
    return "TEXT" if kind is str else str(getattr(kind, "__name__", kind)).upper()


def _default(one: Any) -> str:
    if one.required:
        return " Required."
    shown = one.default
    if one.is_flag or callable(shown) or shown in (None, "", [], ()) or "Sentinel" in type(shown).__name__:
        return ""
    return f" Default: `{getattr(shown, 'value', shown)}`."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")
