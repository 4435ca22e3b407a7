"""The broker's log: one line an event, as text or as JSON with the event's fields."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import ConfigError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.tools.logging_setup import TEXT, JsonFormatter, TextFormatter, configure_logging, held_back
from tests.api.test_group_offsets import await_coordinator
from tests.conftest import BrokerFactory
from tests.support.raw_requests import Requests
from tests.support.waiting import eventually


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


FORGED = "2026-01-01 00:00:00,000 INFO broker.server: all is well"
HOSTILE = f"x\n{FORGED}\r\x1b[2J\x9b1m\x7f\x85\u2028\u2029\u202e\ud800"


def hostile_record() -> logging.LogRecord:
    """One whose every part has text of a client."""
    try:
        try:
            raise ExceptionGroup(HOSTILE, [ValueError(HOSTILE)])
        except ExceptionGroup as error:
            error.add_note(HOSTILE)
            raise RuntimeError(HOSTILE) from error
    except RuntimeError as error:
        info = (RuntimeError, error, error.__traceback__)
    fields = {"name": HOSTILE, "msg": f"{HOSTILE} %s", "args": (HOSTILE,), "exc_info": info, "client_id": HOSTILE}
    return logging.makeLogRecord({**fields, "exc_text": HOSTILE, "stack_info": "Stack:\n  line"})


def test_no_text_of_a_client_forges_a_line_or_reaches_a_terminal() -> None:
    text = TextFormatter(TEXT).format(hostile_record())
    assert not any(line.lstrip(" |+-").startswith(FORGED) for line in text.splitlines())
    assert all(one.isprintable() for one in text.replace("\n", ""))
    assert text.count(r"x\n2026") == 7  # name, message twice, group, its member, its note, error
    text.encode()


def test_nor_does_it_in_json() -> None:
    line = JsonFormatter().format(hostile_record())
    assert line.isprintable()
    line.encode()
    assert json.loads(line)["client_id"] == HOSTILE


def test_a_traceback_keeps_its_lines() -> None:
    text = TextFormatter(TEXT).format(hostile_record()).splitlines()
    assert sum(line.lstrip(" +|").startswith(("Traceback", "Exception Group Traceback")) for line in text) == 2
    assert "The above exception was the direct cause of the following exception:" in text


@pytest.mark.parametrize("formatter", ["", "formatter = plain"], ids=["none", "plain"])
def test_a_file_with_a_plain_formatter_escapes_too(root: logging.Logger, tmp_path: Path, formatter: str) -> None:
    log = tmp_path / "broker.log"
    ini = tmp_path / "logging.ini"
    ini.write_text(
        "[loggers]\nkeys = root\n[handlers]\nkeys = file\n[formatters]\nkeys = plain\n"
        "[logger_root]\nlevel = INFO\nhandlers = file\n"
        f"[handler_file]\nclass = FileHandler\nargs = ({str(log)!r},)\n{formatter}\n"
        "[formatter_plain]\nformat = %(levelname)s %(message)s\n"
    )
    configure_logging(ini, "text")
    logging.getLogger("any").warning("client %s", HOSTILE)
    (handler,) = root.handlers
    handler.close()
    (line,) = log.read_text().splitlines()
    assert line.startswith("WARNING client" if formatter else "client")


def test_a_client_cannot_write_lines_into_a_brokers_log(broker_factory: BrokerFactory) -> None:
    broker = broker_factory({"slow.request.log.ms": "0", "group.initial.rebalance.delay.ms": "0"})
    group = f"g\n{FORGED}"
    with Requests(broker.bootstrap, client_id=f"c\n{FORGED}\x1b[2J") as ask:
        joining = {
            "group_id": group,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
        }
        member = {"group_instance_id": f"i\r\n{FORGED}", "reason": f"r\n{FORGED}"}
        protocols = [{"name": f"p\n{FORGED}", "metadata": b""}]

        def answered() -> bool:
            answer = ask.ask(ApiKey.JOIN_GROUP, {**joining, **member, "member_id": "", "protocols": protocols})
            return bool(answer.error_code is ErrorCode.none)

        await_coordinator(ask, group)
        eventually(answered)
        ask.socket.sendall(struct.pack(">ihhih", 60, 999, 0, 1, 50) + FORGED[:50].replace(" ", "\n").encode().ljust(50))
        assert ask.is_hung_up()
    eventually(lambda: "is not served" in broker.output)
    assert r"g\n2026-01-01" in broker.output
    assert FORGED not in broker.output.splitlines()
    assert "\x1b" not in broker.output


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
    assert any(line["message"].endswith("no meaning in pykafka: queued.max.requests") for line in lines)
