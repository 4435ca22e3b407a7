"""The commands of `pykafka`: finds the one that a command line names, and gives it to typer.

Only the module of the named command is imported, so `pykafka --help` starts fast and a missing library breaks only the
command that needs it. Commands of other packages are found through the entry point group `pykafka.commands`, and never
imported by name. Output that is not a terminal is never wrapped.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from broker.control_characters import escaped
from broker.tools.kafka_scripts import command_meant, line_meant, option_meant, options_for
from broker.tools.spelling import speak_for, spoken

BUILT_IN = {
    "broker": "broker.tools.broker:app",
    "users": "broker.tools.users:app",
    "quotas": "broker.tools.quotas:app",
    "acls": "broker.tools.acls:app",
    "delegation-tokens": "broker.tools.delegation_tokens:app",
    "zookeeper": "broker.tools.zookeeper:app",
    "cluster": "broker.tools.cluster:app",
    "topics": "broker.tools.topics:app",
    "produce": "broker.tools.produce:produce",
    "consume": "broker.tools.consume:consume",
    "groups": "broker.tools.groups:app",
    "offsets": "broker.tools.offsets:app",
    "configs": "broker.tools.configs:app",
    "transactions": "broker.tools.transactions:app",
    "mirror": "broker.tools.mirror:mirror",
    "log": "broker.tools.log_command:app",
    "perf": "broker.tools.perf:app",
    "doctor": "broker.tools.doctor:doctor",
}
PLUGIN_GROUP = "pykafka.commands"
EXAMPLES = """Run a broker, write three records, read them again, see what is there.

\b
Examples:
  pykafka broker start
  seq 3 | pykafka produce --topic numbers
  pykafka consume --topic numbers --from-beginning --exit-at-end
  pykafka topics describe --topic numbers
"""
COMPLETED_LINE = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")
"""Where the completion scripts put the typed line: zsh, fish and PowerShell; bash."""
_NO_WRAP = 10_000
_TERMINAL_MAX = 120


def fail(message: str, status: int = 1) -> NoReturn:
    """Print a red line on standard error and exit."""
    typer.secho(f"pykafka: {escaped(spoken(message))}", fg=typer.colors.RED, err=True)
    raise SystemExit(status)


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command tree: only the command that `arguments` name, or all names with their summaries."""
    width = None if sys.stdout.isatty() else _NO_WRAP
    app = typer.Typer(
        cls=OneValueGroup,
        help=f"A log broker that speaks Apache Kafka's protocol, and its tools.\n\n{EXAMPLES}",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich draws boxes, cuts long names, and wraps at 80 columns in a pipe
        context_settings={
            "help_option_names": ["-h", "--help"],
            "terminal_width": width,
            "max_content_width": width or _TERMINAL_MAX,
        },
    )
    app.callback()(_global_options)
    named = next((word for word in [*arguments, *_line_to_complete()] if not word.startswith("-")), None)
    known = BUILT_IN if named in BUILT_IN else commands()  # reading the entry points of all packages takes time
    if named in known:
        _attach(app, named, _load(named, known[named]))
    else:
        for name, target in known.items():
            app.command(name, help=summary(target))(_placeholder)
    return app


def _line_to_complete() -> list[str]:
    """The words after `pykafka` on the line to complete, if a shell's completion script has started us."""
    if "_PYKAFKA_COMPLETE" not in os.environ:
        return []
    return next((os.environ[name].split()[1:] for name in COMPLETED_LINE if os.environ.get(name)), [])


def commands() -> dict[str, str]:
    """Command name → `module:attribute`: the built-in commands, then those of installed packages."""
    found = sorted(importlib.metadata.entry_points(group=PLUGIN_GROUP), key=lambda point: point.name)
    return BUILT_IN | {point.name: point.value for point in found if point.name not in BUILT_IN}


def summary(target: str) -> str:
    """The summary line of a command, read from its source without importing it.

    For a function: the first line of its docstring. For a group: the first line of `app = typer.Typer(help="…")`.
    """
    module, _, attribute = target.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        return f"(not available: there is no module {module})"
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) if name == attribute:
                return (ast.get_docstring(node) or "").partition("\n")[0]
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(keywords=keywords)) if name == attribute:
                text = "".join(ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg == "help")
                return text.partition("\n")[0]
    return ""


def _load(name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        fail(f"the command {name!r} cannot be loaded: {error}")


class OneValueCommand(TyperCommand):
    """Refuses an option that takes one value and is given twice, as Kafka's tools do: typer takes the last value.

    It also names the option that is meant by one of Kafka's scripts, and by a name that is given without an option.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and not set(args) & set(ctx.help_option_names):
            self._name_the_option_meant(ctx, args)
        return _parse_once(self, super().parse_args, ctx, args)

    def _name_the_option_meant(self, ctx: Any, args: list[str]) -> None:
        declared = {name for option in self.get_params(ctx) for name in option.opts}
        for word in args:
            meant = option_meant(word, declared)
            if meant is not None:
                ctx.fail(f"No such option: {word.partition('=')[0]}. {meant}")
        _, left, given = self.make_parser(ctx).parse_args(args=list(args))
        if left:
            open_ = declared - {name for option in given for name in option.opts}
            options = " or ".join(options_for(left[0], open_))
            ctx.fail(
                f"Unexpected argument: {' '.join(left)}." + (f" Name it by an option: {options}" if options else "")
            )


class OneValueGroup(TyperGroup):
    """The same for the options before a sub-command; and it names the command that a user of Kafka's scripts means."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for option in self.get_params(ctx) for name in option.opts}
        if args and args[0].startswith("-") and args[0] not in known and not ctx.resilient_parsing:
            self._name_the_line_meant(ctx, args)
        return _parse_once(self, super().parse_args, ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            meant = command_meant(args[0]) if ctx.parent is None else None
            if meant is not None:
                ctx.fail(f"No such command {args[0]!r}. It is `pykafka {meant}` here.")
            if ctx.info_name == "broker" and Path(args[0]).is_file():
                ctx.fail(f"No such command {args[0]!r}. To run a broker: pykafka broker start {args[0]}")
            if args[0].removesuffix(".sh").endswith("stop"):
                ctx.fail(f"No such command {args[0]!r}. Ctrl-C where it runs, or SIGTERM, stops a server cleanly.")
            commands = self.list_commands(ctx)
            if ctx.parent is not None and not difflib.get_close_matches(args[0], commands):
                ctx.fail(f"No such command {args[0]!r}. It is one of {', '.join(commands)}.")
        return super().resolve_command(ctx, args)

    def _name_the_line_meant(self, ctx: Any, args: list[str]) -> None:
        commands = self.list_commands(ctx)
        line = line_meant(ctx.info_name, args, commands)
        if line is not None:
            ctx.fail(f"No such option: {args[0]}. Commands are words here, before all options: {line}")
        if ctx.parent is not None:
            ctx.fail(f"No such option: {args[0]}. Options follow a command, which is one of {', '.join(commands)}.")


class LibraryCommand(OneValueCommand):
    """A command of another package: a layer on a function of Python, whose messages name its arguments."""

    def invoke(self, ctx: Any) -> Any:
        speak_for(ctx)
        return super().invoke(ctx)


class LibraryGroup(OneValueGroup):
    """Such a group, which does something without a sub-command, too."""

    def invoke(self, ctx: Any) -> Any:
        speak_for(ctx)
        return super().invoke(ctx)


def _parse_once(command: Any, parse: Callable[[Any, list[str]], list[str]], ctx: Any, args: list[str]) -> list[str]:
    given = command.make_parser(ctx).parse_args(args=list(args))[2]  # each as often as it is on the command line
    rest = parse(ctx, args)  # --help ends here
    for option in given:
        takes_one = isinstance(option, TyperOption) and not option.multiple and not option.is_flag
        if takes_one and given.count(option) > 1 and not ctx.resilient_parsing:
            ctx.fail(f"{max(option.opts, key=len)} is given {given.count(option)} times, and takes one value")
    return rest


def _attach(app: typer.Typer, name: str, command: typer.Typer | Callable[..., None]) -> None:
    """Add a group of sub-commands (a Typer app) or a single command (a function)."""
    kind = OneValueCommand if name in BUILT_IN else LibraryCommand
    if isinstance(command, typer.Typer):
        _set_classes(command, kind)
        app.add_typer(command, name=name, cls=OneValueGroup if name in BUILT_IN else LibraryGroup)
    else:
        app.command(name, cls=kind)(command)


def _set_classes(group: typer.Typer, kind: type[OneValueCommand]) -> None:
    for registered in group.registered_commands:
        registered.cls = kind
    for below in group.registered_groups:
        below.cls = OneValueGroup
        assert below.typer_instance is not None
        _set_classes(below.typer_instance, kind)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(importlib.metadata.version("pykafka-spark"))
        raise typer.Exit


def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Declares the global options for the help; `main` looks for `--debug` itself."""


def _placeholder() -> None:
    """Stands for a command that was not named. Never called."""
