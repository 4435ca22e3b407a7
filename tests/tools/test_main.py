"""The console's frame: finding commands, errors as one line, starting quickly."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.errors import ConfigError
from broker.tools import console, kafka_scripts
from broker.tools.main import main
from tests.support.console import answer_of, error_of
from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "broker.tools.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_help_lists_every_command_with_a_line_about_it() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name in console.commands():
        assert name in done.stdout
    assert "not available" not in done.stdout


def test_help_imports_no_command(tmp_path: Path) -> None:
    """The weight of the client, the server or Spark is not paid for by `pykafka --help`."""
    program = (
        "import sys, broker.tools.main as entry\n"
        "try: entry.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*(name for name in sys.modules if name.split('.')[0] in {'kio', 'kazoo', 'numpy', 'pyarrow', 'pyspark'}"
        " or name in {'broker.client', 'broker.server', 'asyncio'}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


def test_the_version_is_told() -> None:
    assert run("--version").stdout == importlib.metadata.version("pykafka-spark") + "\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("topics --list", "pykafka topics list"),
        ("topics --bootstrap-server b --create --topic t", "pykafka topics create --bootstrap-server b --topic t"),
        ("topics --describe --topic t", "pykafka topics describe --topic t"),
        ("topics --topic t --delete", "pykafka topics delete --topic t"),
        ("topics --alter --topic t --partitions 3", "pykafka topics alter --topic t --partitions 3"),
        ("groups --list", "pykafka groups list"),
        ("groups --group g --reset-offsets --execute", "pykafka groups reset-offsets --group g --execute"),
        ("configs --describe --entity-type topics", "pykafka configs describe --entity-type topics"),
        ("configs --add-config a=b --alter", "pykafka configs alter --add-config a=b"),
        ("acls --bootstrap-server b --list", "pykafka acls list --bootstrap-server b"),
        ("transactions --bootstrap-server b --list", "pykafka transactions list --bootstrap-server b"),
        ("log --describe", "pykafka log dirs"),
        ("log --files 0.log", "pykafka log dump 0.log"),
        ("users --describe", "pykafka users list"),
        ("topics --topic t", "is one of create, list, "),
        ("kafka-topics.sh --list", "`pykafka topics`"),
        ("consumer-groups", "`pykafka groups`"),
        ("kafka-console-consumer --topic t", "`pykafka consume`"),
        ("console-producer", "`pykafka produce`"),
        ("kafka-server-start.sh", "`pykafka broker start`"),
        ("broker README.md", "pykafka broker start README.md"),
        ("topics --list --zookeeper z:2181", "pykafka topics list --bootstrap-server HOST:PORT"),
        ("topics --zookeeper=z:2181 --describe", "pykafka topics describe --bootstrap-server HOST:PORT"),
        ("offsets --broker-list b:9092 --list", "pykafka offsets list --bootstrap-server b:9092"),
        ("topics list --zookeeper z:2181", "No such option: --zookeeper. Clients ask the brokers"),
        ("produce --broker-list b:9092 --topic t", "It is --bootstrap-server HOST:PORT here."),
        ("configs describe --topic t", "It is --entity-type topics --entity-name NAME here."),
        ("broker start --port 9093", "by --override: --override listeners=PLAINTEXT://127.0.0.1:9093"),
        (
            "broker start --listeners PLAINTEXT://:9093",
            "by --override: --override listeners=PLAINTEXT://127.0.0.1:9093",
        ),
        ("broker start --log.dirs=/data", "by --override: --override log.dirs=VALUE"),
        ("broker stop", "Ctrl-C where it runs, or SIGTERM"),
        ("kafka-server-stop.sh", "Ctrl-C where it runs, or SIGTERM"),
        ("topics ls", "Did you mean 'list'?"),
        ("topics nonsense", "It is one of create, list, "),
    ],
)
def test_what_users_of_kafkas_scripts_type_is_answered_with_the_line_they_mean(typed: str, meant: str) -> None:
    said = error_of(*shlex.split(typed), status=2).splitlines()[-1]
    assert meant in said, said


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("topics create flights", "Unexpected argument: flights. Name it by an option: --topic flights"),
        ("topics create flights --partitions 2", "Name it by an option: --topic flights"),
        ("topics describe 'my topic'", "Name it by an option: --topic 'my topic'"),
        ("produce flights", "Name it by an option: --topic flights"),
        ("consume flights", "Name it by an option: --topic flights or --group flights"),
        ("consume --topic flights readers", "Name it by an option: --group readers"),
        ("groups describe readers", "--group readers"),
        ("configs describe flights", "Name it by an option: --entity-name flights"),
        ("topics list localhost:9092", "Name it by an option: --bootstrap-server localhost:9092"),
        ("transactions describe t1", "Name it by an option: --transactional-id t1"),
        ("doctor nonsense", "Unexpected argument: nonsense."),
    ],
)
def test_a_name_without_an_option_is_answered_with_the_option(typed: str, meant: str) -> None:
    said = error_of(*shlex.split(typed), status=2).splitlines()[-1]
    assert said.endswith(meant), said


def test_every_command_that_is_named_for_a_script_is_there() -> None:
    for meant in set(kafka_scripts._SCRIPTS.values()):
        answer_of(*meant.split(), "--help")


def test_version_and_help_are_commands_as_well() -> None:
    assert answer_of("version") == answer_of("--version")
    assert answer_of("help", "topics", "list") == answer_of("topics", "list", "--help")
    assert answer_of("help") == answer_of("--help")


def test_an_error_is_one_line_and_status_1_after_a_warning_while_no_broker_answers() -> None:
    done = run("topics", "list", "-b", "127.0.0.1:1")
    assert done.returncode == 1
    warning, *more, error = done.stderr.splitlines()
    unreachable = "pykafka: no broker of bootstrap.servers could be reached: no connection to 127.0.0.1:1: "
    assert warning.startswith(unreachable)
    assert warning.endswith("; trying again")
    assert not more
    assert error.startswith(unreachable)
    assert error.endswith("--bootstrap-server names a running one")
    assert done.stdout == ""


def test_a_mirror_without_brokers_names_its_own_options(tmp_path: Path) -> None:
    impatient = tmp_path / "client.properties"
    impatient.write_text("socket.connection.setup.timeout.ms=1")
    address = ("--from", "127.0.0.1:1", "--to", "127.0.0.1:1", "--topics", "t")
    error = error_of("mirror", *address, "--source-config", str(impatient), "--target-config", str(impatient))
    assert error.endswith("`pykafka broker start` starts a broker, --from or --to names a running one\n")


def test_ctrl_c_while_modules_are_imported_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "kio").mkdir()
    (tmp_path / "kio" / "__init__.py").write_text("raise KeyboardInterrupt")
    for words in (["broker", "start"], ["topics", "list"]):
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-m", "broker.tools.main", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (130, "")


def test_debug_shows_the_traceback() -> None:
    done = run("--debug", "topics", "create", "--topic", "t", "--config", "nonsense")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ConfigError" in done.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["topics", "delete", "--topic", "a", "-t", "b"], "--topic"),
        (["produce", "-b", "127.0.0.1:1", "--topic", "a", "--topic", "b"], "--topic"),
        (["topics", "list", "-b", "127.0.0.1:1", "--bootstrap-server", "127.0.0.1:2"], "--bootstrap-server"),
        (["loads", "--to", "a", "--to", "b", "--group", "c"], "--to"),
        (["broker", "start", "--logging", "a", "--logging", "b"], "--logging"),
    ],
)
def test_an_option_that_takes_one_value_is_refused_when_it_is_given_twice(words: list[str], name: str) -> None:
    """Else the last would win, and `topics delete` would leave a topic that it was told to delete."""
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr.endswith(f"Error: {name} is given 2 times, and takes one value\n")


def test_flags_and_lists_may_be_repeated() -> None:
    done = run(
        "topics", "create", "-t", "a", "--json", "--json", "--config", "a=1", "--config", "b", "-b", "127.0.0.1:1"
    )
    assert "--config b" in done.stderr


def test_help_is_shown_all_the_same() -> None:
    assert "Name of the topic" in run("topics", "delete", "--topic", "a", "--topic", "b", "--help").stdout


def test_wrong_usage_is_status_2() -> None:
    done = run("topics", "create")
    assert done.returncode == 2
    assert "--topic" in done.stderr
    done = run("topics", "create", "--topic", "t", "--config", "nonsense")
    assert done.returncode == 2
    assert done.stderr == "pykafka: --config nonsense: expected KEY=VALUE\n"


@pytest.mark.parametrize("command", ["topics list", "doctor", "users list", "load --topic t --to d --group g"])
def test_an_empty_address_is_not_the_default_one(command: str) -> None:
    """As of a variable of the shell that is not set: what follows would happen in another cluster."""
    assert "--bootstrap-server is empty: name a broker" in error_of(
        *command.split(), "--bootstrap-server", "", status=2
    )


def test_a_name_that_is_not_text_is_wrong_usage(broker: Kafka) -> None:
    """Python makes such characters of bytes that are not of the terminal's encoding."""
    told = error_of("topics", "describe", "--topic", "caf\udce9", "-b", broker.bootstrap, status=2)
    assert (
        told
        == "pykafka: 'caf\\udce9' is not text in this terminal's encoding: set LC_ALL=C.UTF-8, and write it in UTF-8\n"
    )


def test_an_unknown_command_is_wrong_usage() -> None:
    done = run("nonsense")
    assert done.returncode == 2
    assert "No such command 'nonsense'" in done.stderr


def test_a_command_of_another_package_is_found_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "commands", lambda: {"greet": "tests.tools.greeting:greet"})
    with pytest.raises(ConfigError, match="a greeting needs a name"):
        console.build(["greet"])(["greet"], standalone_mode=False)
    assert console.summary("tests.tools.greeting:greet") == "Greet nobody."


def test_a_command_whose_library_is_missing_breaks_only_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "commands", lambda: {"broken": "tests.tools.no_such_module:run"})
    with pytest.raises(SystemExit) as ended:
        main(["broken"])
    assert ended.value.code == 1
    assert (
        "the command 'broken' cannot be loaded: No module named 'tests.tools.no_such_module'" in capsys.readouterr().err
    )
    assert console.summary("tests.tools.no_such_module:run").startswith("(not available")


def completions(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What bash is told when Tab is pressed at the end of `line`."""
    words = line.split(" ")
    monkeypatch.setenv("_PYKAFKA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    return subprocess.run(
        [sys.executable, "-m", "broker.tools.main"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()


def test_the_shell_completes_commands_options_and_names(
    broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completions("pykafka top", monkeypatch) == ["topics"]
    assert completions("pykafka topics desc", monkeypatch) == ["describe"]
    assert completions("pykafka topics describe --bootst", monkeypatch) == ["--bootstrap-server"]
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic)
    line = f"pykafka topics describe -b {broker.bootstrap} --topic {topic[:-1]}"
    assert topic in completions(line, monkeypatch)
    assert completions("pykafka topics describe -b 127.0.0.1:1 --topic x", monkeypatch) == []


def test_every_command_that_talks_to_a_broker_finds_it_in_the_same_ways() -> None:
    """By --bootstrap-server, a file of the client's properties, or the environment, which a default would hide."""
    talking = {}
    for name in console.commands():
        command = typer.main.get_command(console.build([name]))
        for path, leaf in leaves(command, (name,)):
            flags = {flag: parameter for parameter in leaf.params for flag in parameter.opts}
            if "--bootstrap-server" in flags:
                talking[" ".join(path)] = flags
    assert {"load", "loads verify", "topics list", "produce", "consume", "perf produce"} <= talking.keys()
    for words, flags in talking.items():
        assert "--command-config" in flags, words
        assert flags["--config"] is flags["--command-config"] or words in ("topics create", "topics alter"), words
        assert flags["--bootstrap-server"].default is None, words


def help_texts() -> dict[str, str]:
    """What every `--help` prints into a pipe, by the words before it."""
    texts = {}
    for name in ["", *console.commands()]:
        app = typer.main.get_command(console.build([name]))
        for path, command in nodes(app, ("pykafka",)):
            with app.make_context("pykafka", [*path[1:], "--help"], resilient_parsing=True) as context:
                context.info_name = " ".join(path)
                texts[" ".join(path)] = command.get_help(context)
    return texts


def test_every_help_has_examples_that_are_right() -> None:
    """Each example names a command and options that exist, as its own parser says."""
    for words, text in help_texts().items():
        lines = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
        assert lines, f"{words} --help has no examples"
        commands = [line for line in lines if "pykafka " in line]
        assert commands, words
        for line in commands:
            given = re.search(r"(?<![\w/])pykafka ([^|<>]*)", line)
            assert given, line
            rest = shlex.split(given[1])
            command = typer.main.get_command(console.build(rest))
            while (below := getattr(command, "commands", None)) is not None and rest and rest[0] in below:
                command = below[rest.pop(0)]
            command.make_context("pykafka", rest)
        if words != "pykafka":
            assert all(words in line for line in commands) or " " not in words, words


def test_a_flag_has_no_value_in_any_help_and_no_line_wraps() -> None:
    for words, text in help_texts().items():
        options = text.partition("Options:\n")[2]
        assert not re.search(r" <[a-z]+|TEXT$|INTEGER", options), (words, text)
        for line in options.splitlines():
            assert re.match(r"  -|  \w| {10,}\S|$|\w+:$", line), (words, line)


def nodes(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A click command and all commands below it, but not the placeholders of commands that were not named."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        if below.callback is not console._placeholder:
            yield from nodes(below, (*path, name))


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands below a click command that are no groups, with the words they are called by."""
    commands = getattr(command, "commands", None)
    if commands is None:
        yield path, command
        return
    for name, below in commands.items():
        yield from leaves(below, path if name == path[-1] else (*path, name))
