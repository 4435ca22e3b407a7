"""Logging of the broker's process. Called by `pykafka broker start`.

An event is one line of text (a traceback has more), or with `logging.format=json` a JSON object: `time`, `level`,
`logger`, `message` and the fields of the event (`extra=`), such as the API and the times of a slow request. A
`--logging` file overrides all of this; it may name `broker.tools.logging_setup.JsonFormatter`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import logging.config
import logging.handlers
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.errors import ConfigError

__all__ = ["JsonFormatter", "configure_logging", "held_back"]

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_HELD_LINES = 10_000
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Attributes of every log record; others are fields of the event."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

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
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logging(path: Path | None, form: str) -> None:
    """Log as the file at `path` says, or to standard error from level INFO on, as `text` or `json`.

    Raises ConfigError.
    """
    if path is not None:
        if not path.is_file():
            raise ConfigError(f"--logging {path}: there is no such file")
        logging.config.fileConfig(path, disable_existing_loggers=False)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold back what the block logs. Write it at the end, in the form that the block configures."""
    root = logging.getLogger()
    level = root.level
    held = logging.handlers.MemoryHandler(_HELD_LINES, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
    root.addHandler(held)
    root.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        root.setLevel(level)
        raise
    finally:
        root.removeHandler(held)
    for record in held.buffer:
        logging.getLogger(record.name).handle(record)
