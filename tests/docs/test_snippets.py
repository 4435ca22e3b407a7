"""Every snippet of README.md and docs/ names what exists: imports, names, options, commands and settings.

Only parsers run here. tests/docs/test_snippets_run.py runs the snippets of README.md and the tutorials.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import typer.main

from broker.client.client_settings import ClientSettings
from broker.config.archive_settings import OPTIONS_PREFIX
from broker.config.broker_config import BrokerConfig
from broker.settings import settings_of
from broker.tools.console import build
from spark_connector.load import load
from spark_connector.options.history_options import parse_history
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.options.write_options import parse_write_options
from tests.support.snippets import Snippet, pages, snippets

SERVER = "kafka.bootstrap.servers"
ELSEWHERE = ("airflow",)
"""Packages with an environment of their own, in which another test runs the snippet (test_orchestrators.py)."""
ANY_ADDRESS = "http://host:8081"
"""For an option whose value a snippet computes."""
SNIPPETS = [one for page in pages() for one in snippets(page)]


def of(language: str) -> Any:
    """A parameter for each snippet of the language."""
    found = [one for one in SNIPPETS if one.language == language]
    return pytest.mark.parametrize("snippet", found, ids=[f"{one.page}-{n}" for n, one in enumerate(found)])


def commands() -> Iterator[Any]:
    for one in SNIPPETS:
        if one.language in {"sh", "bash"}:
            for line in one.text.replace("\\\n", " ").splitlines():
                for part in line.split(" | "):
                    if part.split()[:1] == ["pykafka"]:  # other programs' quotes may go over lines
                        words = shlex.split(re.sub(r"\s#.*|\s[<>] ?[\w.$]+", "", part))
                        yield pytest.param(words[1:], id=" ".join(words[1:])[:60])


class Chain(NamedTuple):
    """`spark.read.format("pykafka").option(…)…`: the names of it, what it is called with, its options."""

    attributes: frozenset[str]
    formats: frozenset[str]
    options: dict[str, str]


def chains(tree: ast.AST) -> Iterator[Chain]:
    """Every stretch of a chain that belongs to one `.format(…)`: a query may read by one and write by another."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in inner:
            yield from _stretches(node)


def _stretches(node: ast.expr) -> Iterator[Chain]:
    options: dict[str, str] = {}
    formats, attributes = set[str](), set[str]()
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Attribute | ast.Name)
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            values = [ast.literal_eval(one) for one in node.args if isinstance(one, ast.Constant)]
            if called == "option":
                options[values[0]] = str(values[1]) if values[1:] else ANY_ADDRESS
            if called == "options":
                options |= {one.arg: str(ast.literal_eval(one.value)) for one in node.keywords if one.arg}
            if called == "format":
                formats.add(values[0])
            node = node.func
        else:
            attributes.add(node.attr)
            if node.attr in {"read", "readStream", "write", "writeStream"}:
                yield Chain(frozenset(attributes), frozenset(formats), options)
                options, formats, attributes = {}, set(), set()
            node = node.value


def test_there_are_snippets_of_every_kind() -> None:
    assert {one.language for one in SNIPPETS} >= {"python", "sh", "bash", "properties"}
    assert sum(1 for _ in commands()) > 12


@of("python")
def test_what_is_imported_exists(snippet: Snippet) -> None:
    for node in ast.walk(ast.parse(snippet.text)):
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith(ELSEWHERE):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}"), (
                    alias.name
                )


@pytest.mark.parametrize("page", sorted({one.page for one in SNIPPETS}))
def test_what_a_snippet_uses_has_been_made_on_the_page(page: str) -> None:
    """One pastes from the top: a name comes from a snippet before, or from its own."""
    made = set(dir(builtins))
    for tree in (ast.parse(one.text) for one in SNIPPETS if one.page == page and one.language == "python"):
        nodes = list(ast.walk(tree))
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        made |= {alias.asname or alias.name for node in imports for alias in node.names}
        made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        named = [node for node in nodes if isinstance(node, ast.Name)]
        made |= {node.id for node in named if isinstance(node.ctx, ast.Store)}
        assert {node.id for node in named} <= made


@of("python")
def test_options_of_reads_and_writes_are_taken(snippet: Snippet) -> None:
    for chain in chains(ast.parse(snippet.text)):
        if "pykafka" not in chain.formats:
            continue
        options = {SERVER: "host:9092", **chain.options}
        if chain.attributes & {"read", "readStream"}:
            if (history := parse_history(options)) is not None:
                options = dict(history.topics)
            parse_options(options, Mode.STREAM if "readStream" in chain.attributes else Mode.BATCH)
        else:
            parse_write_options(options, stream="writeStream" in chain.attributes)


@of("python")
def test_dictionaries_of_client_settings_and_arguments_of_load_are_taken(snippet: Snippet) -> None:
    for node in ast.walk(ast.parse(snippet.text)):
        if isinstance(node, ast.Dict) and all(isinstance(one, ast.Constant) for one in [*node.keys, *node.values]):
            named = ast.literal_eval(node)
            if named.keys() & {"endpoint_url", "aws_endpoint", "bootstrap.servers"}:
                continue  # storage options, or another client's settings
            if "bootstrap_servers" in named:
                inspect.signature(load).bind(None, **named)
            else:
                parse_options({SERVER: "host:9092", "subscribe": "t", **named}, Mode.ANY)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load":
            named = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(load).bind_partial(*node.args, **named)


@pytest.mark.parametrize("words", list(commands()))
def test_commands_and_their_options_exist(words: list[str]) -> None:
    command: Any = typer.main.get_command(build(words))
    context = command.make_context("pykafka", list(words))
    while hasattr(command, "resolve_command") and (rest := [*context._protected_args, *context.args]):
        name, command, words = command.resolve_command(context, rest)
        context = command.make_context(name, list(words), parent=context)


@of("properties")
def test_settings_exist(snippet: Snippet) -> None:
    known = {one.name for cls in (BrokerConfig, ClientSettings) for one in settings_of(cls).values()}
    handler = "oauthbearer.sasl.server.callback.handler.class"  # of a listener only
    aliases = {"ssl.ca.location", "sasl.username", "sasl.password", handler}
    for line in re.sub(r"\\\n", "", snippet.text).splitlines():
        name = re.sub(r"^listener\.name\.[a-z]+\.", "", line.partition("=")[0])
        is_free = name.endswith(".sasl.jaas.config") or name.startswith(OPTIONS_PREFIX)
        assert name in known | aliases or is_free, name
