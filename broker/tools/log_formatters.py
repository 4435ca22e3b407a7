"""The two forms of a log line. No text in an event can forge another line, or move the cursor of a terminal."""

from __future__ import annotations

import copy
import datetime
import json
import logging
import traceback
from collections.abc import Iterator
from typing import Any

from broker.control_characters import escaped, escaped_json

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Attributes of every log record; others are fields of the event."""


class TextFormatter(logging.Formatter):
    """One line, and a traceback behind it whose messages have one line each."""

    def format(self, record: logging.LogRecord) -> str:
        own = copy.copy(record)
        own.exc_text = None  # another formatter may have kept its own
        return super().format(own)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        told = traceback.TracebackException(*ei)
        _escape_messages(told)
        return "".join(told.format()).removesuffix("\n")

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return "\n".join(map(escaped, stack_info.split("\n")))


def _escape_messages(told: traceback.TracebackException) -> None:
    """Of the exception and of those that it came from."""
    for_text = told.format_exception_only
    if told.__notes__:  # they would be cut into lines
        told.__notes__ = [escaped(str(note)) for note in told.__notes__]

    def format_exception_only(*arguments: Any, **named: Any) -> Iterator[str]:
        for line in for_text(*arguments, **named):
            yield escaped(line.removesuffix("\n")) + "\n"

    told.format_exception_only = format_exception_only  # type: ignore[method-assign, assignment]
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _escape_messages(other)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return escaped_json(json.dumps(line, default=str, ensure_ascii=False))
