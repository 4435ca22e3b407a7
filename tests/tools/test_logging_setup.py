"""The broker's log: one line an event, as text or as JSON with the event's fields."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.tools.logging_setup import JsonFormatter, configure_logging, held_back
from tests.conftest import BrokerFactory
from tests.support.raw_requests import Requests


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, as it was after the test."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:], logger.level = handlers, level


def formatted(**fields: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "broker.x", "levelname": "INFO", "msg": "%d of %s", "args": (1, "it")} | fields
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    loaded: dict[str, object] = json.loads(line)
    return loaded


def test_a_line_is_an_object_with_the_fields_of_its_event() -> None:
    line = formatted(created=1_700_000_000.25, event="slow_request", total_ms=3.5, client_id=None)
    assert line == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "broker.x",
        "message": "1 of it",
        "event": "slow_request",
        "total_ms": 3.5,
        "client_id": None,
    }


def test_an_exception_stays_on_the_line_and_what_is_no_json_is_told_as_text() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        line = formatted(exc_info=(ValueError, error, error.__traceback__), where=Path("/x"))
    assert "ValueError: a\nb" in str(line["exception"])
    assert line["where"] == "/x"


def test_what_is_logged_before_the_form_is_known_is_written_in_it(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers.clear()
    with held_back():
        logging.getLogger("early").info("first")
        configure_logging(None, "json")
    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == ["first"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--logging .*missing.ini: there is no such file"):
        configure_logging(tmp_path / "missing.ini", "text")


def test_a_broker_tells_in_json_whom_it_turned_away_and_what_was_slow(broker_factory: BrokerFactory) -> None:
    settings = {"logging.format": "json", "slow.request.log.ms": "0", "queued.max.requests": "7"}
    broker = broker_factory(settings)
    with Requests(broker.bootstrap) as ask:
        ask.metadata()
        ask.socket.sendall(struct.pack(">ihhi", 8, 999, 0, 1))
        assert ask.is_hung_up()
        peer = "{}:{}".format(*ask.socket.getsockname())
    lines = [json.loads(line) for line in broker.output.splitlines()]
    (slow,) = [line for line in lines if line.get("event") == "slow_request"]
    (closed,) = [line for line in lines if line.get("event") == "connection_closed"]
    assert (slow["api"], slow["client_id"], slow["peer"]) == ("METADATA", "tests", peer)
    assert (closed["reason"], closed["peer"], closed["level"]) == ("unsupported", peer, "WARNING")
    assert any("queued.max.requests has no meaning" in line["message"] for line in lines)
