"""Logging of the broker's process. Called by `pykafka broker start`.

An event is one line of text (a traceback has more), or with `logging.format=json` a JSON object: `time`, `level`,
`logger`, `message` and the fields of the event (`extra=`), such as the API and the times of a slow request. A
`--logging` file overrides all of this; it may name `broker.tools.logging_setup.JsonFormatter`.

Clients choose some of the text. It cannot forge a line: control characters are escaped, also in a traceback and with
the plain formatters of a `--logging` file.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from broker.errors import ConfigError
from broker.tools.log_formatters import JsonFormatter, TextFormatter

__all__ = ["TEXT", "JsonFormatter", "TextFormatter", "configure_logging", "held_back"]

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(path: Path | None, form: str) -> None:
    """Log as the file at `path` says, or to standard error from level INFO on, as `text` or `json`.

    Raises ConfigError.
    """
    if path is not None:
        if not path.is_file():
            raise ConfigError(f"--logging {path}: there is no such file")
        from logging.config import fileConfig

        fileConfig(path, disable_existing_loggers=False)
        for handler in _handlers():
            if handler.formatter is None:
                handler.setFormatter(TextFormatter())
            elif type(handler.formatter) is logging.Formatter:
                handler.formatter.__class__ = TextFormatter
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(TEXT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _handlers() -> Iterator[logging.Handler]:
    for logger in (logging.getLogger(), *logging.Logger.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield from logger.handlers


class _HeldRecords(logging.Handler):
    """Keeps the records. (`logging.handlers` has one that does, and 0.4 MB of others.)"""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold back what the block logs. Write it at the end, in the form that the block configures."""
    root = logging.getLogger()
    level = root.level
    held = _HeldRecords()
    root.addHandler(held)
    root.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        root.setLevel(level)
        raise
    finally:
        root.removeHandler(held)
    for record in held.records:
        logging.getLogger(record.name).handle(record)
