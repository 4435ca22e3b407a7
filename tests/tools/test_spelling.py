"""Messages of Python in the words of a command: all that name an argument, and each form of them."""

from __future__ import annotations

import ast
import logging
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from broker.tools import spelling
from broker.tools.console import build
from broker.tools.main import main
from broker.tools.spelling import Spelling
from tests.support.console import error_of
from tests.support.source_tree import ROOT

COMMANDS = [("load",), *(("loads", one) for one in ("verify", "rewind", "prune", "compact", "recover", "show"))]


@pytest.fixture(autouse=True)
def nobody_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command in this process has set is of that command only."""
    monkeypatch.setattr(spelling, "_spelling", None)


@cache
def spelling_of(*words: str) -> tuple[Spelling, dict[str, str]]:
    """That of a command, and its options by the names of the parameters."""
    command: Any = typer.main.get_command(build(words))
    context, options = command.make_context("pykafka", [], resilient_parsing=True), dict[str, str]()
    for word in words:
        command = command.get_command(context, word)
        context = command.make_context(word, [], parent=context, resilient_parsing=True)
        options |= {one.name: one.opts[-1] for one in command.params if one.name and one.opts[-1].startswith("--")}
    return Spelling.of(context), options


def text_of(node: ast.expr) -> str:
    """What an error says, with `…` for what is put in; empty for what is no text."""
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or "…" for part in parts)
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
    return ""


def messages() -> dict[str, str]:
    """Every text of an error or warning of the connector: where it is → what it says."""
    found = {}
    for path in sorted((ROOT / "spark_connector").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.search("Error$|Conflict$|Failed$|warn|^refuse", _name(node.func)):
                for text in filter(None, map(text_of, node.args)):
                    found[f"{path.relative_to(ROOT)}:{node.lineno} {text}"] = text
    return found


def _name(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def test_every_refusal_that_names_an_argument_names_the_option_instead() -> None:
    wrong, spelt = [], 0
    texts = messages()
    for words in COMMANDS:
        speak, options = spelling_of(*words)
        names = [name for name in options if "_" in name and name not in {"as_json", "load_id", "to_load"}]
        python = re.compile(rf"(?<![\w'=.-])(?:{'|'.join(names)})\b(?!')" if names else r"(?!)")
        spellings = "|".join(re.escape(one) for one in options.values() if one not in {"--option", "--load"})
        twice = re.compile(rf"\b(?:{'|'.join(options)}|\w+_\w+)'? \((?:{spellings})\)")
        for where, text in texts.items():
            said = speak(text)
            spelt += said != text
            if python.search(said) or twice.search(said):
                wrong.append(f"{' '.join(words)}: {where}\n  -> {said}")
    assert not wrong, "\n".join(wrong)
    assert spelt > 200, "the walk has found the messages"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("rename the group, or set publish_offsets=False", "rename the group, or set --no-publish-offsets"),
        ("key (--key) names 'key' twice", "--key names 'key' twice"),
        ("from_load (--from) is for files; format=delta cannot", "--from is for files; --format delta cannot"),
        ("from_load with offsets=files needs", "--from with --offsets files needs"),
        ("needs 'zookeeper_connect' (--zookeeper): host", "needs --zookeeper: host"),
        ("--to, --key and --mode go with --group", "--to, --key and --mode go with --group"),
        ("max_records must be at least 1, not 0", "--max-records must be at least 1, not 0"),
        ("format must be one of a, b", "--format must be one of a, b"),
        ("'to' is a database: format must be sql", "--to is a database: --format must be sql"),
        ("goes with mode=upsert (--mode upsert)", "goes with --mode upsert"),
        ("set mode=upsert and key=id", "set --mode upsert and --key id"),
        ("apart (dead_letters, --dead-letters), or", "apart (--dead-letters), or"),
        ("leave them out (option mode=DROPMALFORMED)", "leave them out (--option mode=DROPMALFORMED)"),
        ("to null, set the option 'mode' to it", "to null, set --option mode to it"),
        ("takes the write option 'text' only", "takes the --write-option text only"),
        ("use the arguments 'group' and 'offsets'", "use --group and --offsets"),
        ("set schema_evolution=add,widen", "set --schema-evolution add,widen"),
        ("Spark would read topic=007 back as 7", "Spark would read topic=007 back as 7"),
        ("the value 'from_load' of column 'max_bad'", "the value 'from_load' of column 'max_bad'"),
        ("group 'key' has no load 'mode'", "group 'key' has no load 'mode'"),
        ("/data/max_records/x is gone; try /data/format=1", "/data/max_records/x is gone; try /data/format=1"),
    ],
)
def test_the_forms_in_which_a_message_names_an_argument(message: str, said: str) -> None:
    assert spelling_of("load")[0](message) == said


def test_errors_and_warnings_of_a_command_are_in_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--to", str(tmp_path / "x"), "--group", "g", "--topic", "t", "-b", "127.0.0.1:1")
    assert error_of("load", *place, "--envelope", "debezium", status=2) == (
        "pykafka: --envelope goes with --mode upsert\n"
    )
    assert logging.lastResort is not None
    record = logging.LogRecord("x", logging.WARNING, "", 0, "set publish_offsets=False", None, None)
    assert logging.lastResort.format(record) == "pykafka: set --no-publish-offsets"


def test_commands_of_the_broker_speak_as_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["topics", "list", "-b", "x"])
    assert spelling.spoken("set publish_offsets=False, max_records=1") == "set publish_offsets=False, max_records=1"
