"""The console command `pykafka`: finds the sub-command and turns errors into one line.

The entry point of the distribution. A sub-command's module is imported only when it is the one named on the
command line, so that `pykafka --help` starts at once and a missing library breaks only the command that needs
it. Commands of other packages are found by the entry point group `pykafka.commands`; the broker's side never
imports them by name.

Exit status: 0 done, 1 failed (one line on standard error; `--debug` shows the traceback), 2 wrong usage.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

__all__ = ["main"]

BUILT_IN = {
    "broker": "broker.tools.broker:app",
    "users": "broker.tools.users:app",
    "zookeeper": "broker.tools.zookeeper:app",
    "topics": "broker.tools.topics:app",
    "produce": "broker.tools.produce:produce",
    "consume": "broker.tools.consume:consume",
    "groups": "broker.tools.groups:app",
    "offsets": "broker.tools.offsets:app",
    "configs": "broker.tools.configs:app",
    "transactions": "broker.tools.transactions:app",
    "log": "broker.tools.log:app",
    "perf": "broker.tools.perf:app",
}
PLUGIN_GROUP = "pykafka.commands"
NOBODY_THERE = "; `pykafka broker start` runs a broker, --bootstrap-server names one that runs"
COMPLETED_LINE = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")
"""Where the shells' completion scripts leave what is typed so far: zsh, fish and PowerShell, and bash."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build(given)(given, prog_name="pykafka")
    except Exception as error:
        # Only here, so that a start without an error does not pay for it.
        from broker.errors import ConnectionFailed, PykafkaError

        if "--debug" in given or not isinstance(error, (PykafkaError, OSError)):
            raise
        hint = NOBODY_THERE if isinstance(error, ConnectionFailed) and "bootstrap.servers" in str(error) else ""
        fail(f"{error}{hint}", getattr(error, "exit_status", 1))


def fail(message: str, status: int = 1) -> NoReturn:
    """One red line on standard error, then the exit status: 2 for a UsageError."""
    typer.secho(f"pykafka: {message}", fg=typer.colors.RED, err=True)
    raise SystemExit(status)


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command tree: the one command that `arguments` name, or the help of all."""
    app = typer.Typer(
        help="A log broker that speaks Apache Kafka's protocol, and its tools.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_global_options)
    known = commands()
    named = next((word for word in [*arguments, *_line_to_complete()] if not word.startswith("-")), None)
    if named in known:
        _attach(app, named, _load(named, known[named]))
    else:
        for name, target in known.items():
            app.command(name, help=summary(target))(_placeholder)
    return app


def _line_to_complete() -> list[str]:
    """The words behind `pykafka` on the line that a shell asks to complete, when this is what we were started for."""
    if "_PYKAFKA_COMPLETE" not in os.environ:
        return []
    return next((os.environ[name].split()[1:] for name in COMPLETED_LINE if os.environ.get(name)), [])


def commands() -> dict[str, str]:
    """Command name → `module:attribute`: our own, then those of installed packages by name."""
    found = sorted(importlib.metadata.entry_points(group=PLUGIN_GROUP), key=lambda point: point.name)
    return BUILT_IN | {point.name: point.value for point in found if point.name not in BUILT_IN}


def summary(target: str) -> str:
    """One line on the command, read from its source: nothing is imported.

    The first line of a function's docstring; of a group of sub-commands the text in `app = typer.Typer(help="…")`.
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
                return "".join(ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg == "help")
    return ""


def _load(name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        fail(f"the command {name!r} cannot be loaded: {error}")


def _attach(app: typer.Typer, name: str, command: typer.Typer | Callable[..., None]) -> None:
    """A group of sub-commands comes as a Typer app, a single command as a function."""
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)


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
    """`--debug` is looked for by `main`; declared here for the help."""


def _placeholder() -> None:
    """Stands for a command that was not named; never runs."""


if __name__ == "__main__":
    main()
