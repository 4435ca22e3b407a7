"""Which records a page shows: those that hold a text, or whose value has something at a JSON path (RFC 9535)."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import jsonpath_rfc9535 as jsonpath
from jsonpath_rfc9535.filter_expressions import FilterExpression
from jsonpath_rfc9535.parse import Parser

from broker.errors import ConfigError
from broker.records.record import Record
from pykafka_ui.records.json_text import json_text
from pykafka_ui.records.values import Decoder
from spark_connector.formats.json_number import Number

PLACES = ("key", "value", "headers")
MOST_STEPS = 200_000
"""Of a path in one value: a node that is looked at, also within a filter, is one. Some paths of 20 characters would
take more of them than a browser lives to see."""
_MOST_SECONDS = 1.0
"""For a path in one value."""
_LOOKS_AT_CLOCK = 1_000
"""Steps from one look at the clock to the next."""
_STEP_CHARACTERS = 64
"""So many characters of a node that is written as text take a step."""
_STEP_CHILDREN = 16
"""So many children of a node take a step: a path that goes below it passes them all, and makes nodes of some."""

_LONGEST_PATH = 1_000
_LARGEST = 8 << 20
"""Bytes of a value that is looked into."""


class _TooManySteps(Exception):
    """A path has taken all the steps that it may take in a value."""


class _Steps:
    """What the path of one filter has left for the value that it is at. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.renew()

    def renew(self) -> None:
        self._taken, self._look_at = 0, _LOOKS_AT_CLOCK
        self._deadline = self._clock() + _MOST_SECONDS

    def take(self, count: int = 1) -> None:
        """Raises _TooManySteps."""
        self._taken += count
        if self._taken > MOST_STEPS:
            raise _TooManySteps
        if self._taken >= self._look_at:
            self.look()

    def take_node(self, value: Any) -> None:
        """Raises _TooManySteps."""
        self.take(1 + len(value) // _STEP_CHILDREN if isinstance(value, list | dict) else 1)

    def look(self) -> None:
        """At the clock. Raises _TooManySteps."""
        self._look_at = self._taken + _LOOKS_AT_CLOCK
        if self._clock() > self._deadline:
            raise _TooManySteps


class _Node(jsonpath.JSONPathNode):
    """A node that counts itself: every node that a path looks at is made by `new_child`."""

    __slots__ = ("steps",)
    steps: _Steps

    @classmethod
    def root_of(cls, value: Any, steps: _Steps) -> _Node:
        node = cls(value=value, location=(), parent=None, root=value)
        node.steps = steps
        return node

    def new_child(self, value: object, key: int | str, parent: jsonpath.JSONPathNode | None) -> _Node:
        self.steps.take_node(value)
        child = _Node(value=value, location=(key,), parent=None, root=self.root)
        child.steps = self.steps
        return child


class _Query(jsonpath.JSONPathQuery):
    """A path, or one within a filter, whose nodes are counted by its environment."""

    __slots__ = ()
    env: _Paths

    def finditer(self, value: Any) -> Iterable[jsonpath.JSONPathNode]:
        self.env.steps.take_node(value)
        nodes: Iterable[jsonpath.JSONPathNode] = [_Node.root_of(value, self.env.steps)]
        for segment in self.segments:
            nodes = segment.resolve(nodes)
        return nodes


class _Parser(Parser):
    """Makes the paths within filters counted ones, and each use of a filter a step."""

    env: _Paths

    def parse_root_query(self, stream: Any) -> Any:
        return self._counted(super().parse_root_query(stream))

    def parse_relative_query(self, stream: Any) -> Any:
        return self._counted(super().parse_relative_query(stream))

    def parse_filter_selector(self, stream: Any) -> Any:
        selector = super().parse_filter_selector(stream)
        selector.expression = _Filter(selector.expression.token, selector.expression.expression)
        return selector

    def _counted(self, found: Any) -> Any:
        found.query = _Query(env=self.env, segments=found.query.segments)
        return found


class _Filter(FilterExpression):
    """A filter of which each use is a step, and a look at the clock: it may compare all of a value with all of it."""

    __slots__ = ()

    def evaluate(self, context: Any) -> bool:
        context.env.steps.take()
        context.env.steps.look()
        return super().evaluate(context)


class _Paths(jsonpath.JSONPathEnvironment):
    """The paths of one filter, which share `steps`."""

    parser_class = _Parser

    def __init__(self, steps: _Steps) -> None:
        super().__init__()
        self.steps = steps
        for name in ("match", "search"):  # a regular expression may run for ever
            self.function_extensions.pop(name, None)


@dataclasses.dataclass
class RecordFilter:
    """True for a record that passes. `given_up`: values in which the path was not looked for to the end."""

    passes: Callable[[Record], bool]
    given_up: int = 0

    def __call__(self, record: Record) -> bool:
        try:
            return self.passes(record)
        except _TooManySteps:
            self.given_up += 1
            return False


def record_filter(
    decoder: Decoder,
    text: str = "",
    places: Collection[str] = PLACES,
    path: str = "",
    equals: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> RecordFilter:
    """True for a record that passes all of it. `text` is looked for in `places`, whatever its case.

    `path`: its value must have something there, and with `equals` something that reads so. Raises ConfigError for a
    path that is none, and for unknown places.
    """
    if unknown := set(places) - set(PLACES):
        raise ConfigError(f"in={min(unknown)}: must be one of {', '.join(PLACES)}")
    if equals and not path:
        raise ConfigError("equals needs a path, such as $.user.name")
    needle = text.casefold()
    steps = _Steps(clock)
    query = _compiled(path, steps) if path else None

    def passes(record: Record) -> bool:
        if needle and not any(_holds(one, needle) for one in _bytes_of(record, places)):
            return False
        if query is None:
            return True
        if len(record.value or b"") > _LARGEST:
            raise _TooManySteps
        data = decoder.data(record.value, exact=bool(equals))
        steps.renew()
        return _matches(query, data, equals, steps)

    return RecordFilter(passes)


def _compiled(path: str, steps: _Steps) -> _Query:
    if len(path) > _LONGEST_PATH or ".." in path.partition("[?")[2]:  # each node would look at all below it
        raise ConfigError(f"path={path[:80]}: too long, or a filter with .., which may take for ever")
    try:
        paths = _Paths(steps)
        return _Query(env=paths, segments=paths.compile(path).segments)
    except (jsonpath.JSONPathError, RecursionError) as error:
        raise ConfigError(f"path={path}: {error}") from None


def _bytes_of(record: Record, places: Collection[str]) -> list[bytes]:
    found = []
    if "key" in places and record.key is not None:
        found.append(record.key)
    if "value" in places and record.value is not None:
        found.append(record.value)
    if "headers" in places:
        for name, content in record.headers:
            found += [name.encode(), content or b""]
    return found


def _matches(query: _Query, data: Any, equals: str, steps: _Steps) -> bool:
    """Raises _TooManySteps."""
    if data is None:
        return False
    with contextlib.suppress(jsonpath.JSONPathError, RecursionError):
        for node in query.finditer(data):
            value = node.value
            if not equals:
                return True
            text = value if isinstance(value, str) else json_text(value)
            if equals == text or (isinstance(value, Number) and value.reads_as(equals)):
                return True
            steps.take(1 + len(text) // _STEP_CHARACTERS)
    return False


def _holds(content: bytes, needle: str) -> bool:
    if needle.isascii():
        return needle.encode() in content.lower()
    return needle in content.decode(errors="replace").casefold()
