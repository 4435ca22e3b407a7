"""Names that clients chose stay on their line of a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest

from broker.protocol.topic_partition import TopicPartition
from broker.tools.console import fail
from broker.tools.output import (
    document,
    note,
    print_json,
    print_json_lines,
    print_lines,
    print_rows,
    print_table,
    print_view,
    report,
)
from tests.api.test_group_offsets import await_coordinator, commit
from tests.support.broker_process import BrokerProcess
from tests.support.console import output_of
from tests.support.raw_requests import Requests

HOSTILE = "g\nforged\r\x1b[2J\x9b1m\x7f\u2028\u202e"
SHOWN = r"g\nforged\r\x1b[2J\x9b1m\x7f\u2028\u202e"


def fails() -> None:
    with pytest.raises(SystemExit):
        fail(HOSTILE)


@pytest.mark.parametrize(
    "tell",
    [
        lambda: print_table(["group"], [[HOSTILE]]),
        lambda: print_rows(["group"], [[HOSTILE]], as_json=False),
        lambda: print_lines([HOSTILE]),
        lambda: report(False, HOSTILE, {}),
        lambda: note(HOSTILE),
        fails,
    ],
    ids=["table", "rows", "lines", "report", "note", "error"],
)
def test_text_for_people_is_escaped(tell: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    tell()
    printed = "".join(capsys.readouterr())
    assert SHOWN in printed
    assert printed.replace("\n", "").isprintable()
    assert "forged" not in printed.splitlines()


class Read(NamedTuple):
    tp: TopicPartition
    log_end_offset: int | None
    member_id: str


READ = [Read(TopicPartition("t", 0), 1200, "m-1"), Read(TopicPartition("t", 10), None, "")]


def test_a_table_is_a_choice_of_what_json_has(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [document(one) for one in READ]
    columns = "partition, log-end-offset, consumer-id=memberId, letters=memberId"
    print_view(rows, columns, shown={"letters": len})
    assert capsys.readouterr().out == (
        "PARTITION  LOG-END-OFFSET  CONSUMER-ID  LETTERS\n"
        "        0            1200  m-1                3\n"
        "       10               -  -                  0\n"
    )
    print_view(rows, columns, as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "t", "partition": 0, "logEndOffset": 1200, "memberId": "m-1"},
        {"topic": "t", "partition": 10, "logEndOffset": None, "memberId": ""},
    ]


def test_a_table_without_rows_says_what_there_is_none_of(capsys: pytest.CaptureFixture[str]) -> None:
    print_view([], "group", nothing="There are no groups.")
    assert capsys.readouterr() == ("", "There are no groups.\n")
    print_rows(["producerId"], [[7]], as_json=False)
    assert capsys.readouterr().out == "PRODUCER-ID\n          7\n"


@pytest.mark.parametrize(
    "tell", [lambda: print_json({"group": HOSTILE}), lambda: print_json_lines([{"group": HOSTILE}])]
)
def test_json_means_the_same_and_moves_no_cursor(tell: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    tell()
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"group": HOSTILE}
    assert printed.replace("\n", "").isprintable()


def test_a_group_is_listed_and_described_in_one_line(broker: BrokerProcess, topic: str, group: str) -> None:
    name = f"{group}\nforged\x1b[2J"
    with Requests(broker.bootstrap) as ask:
        await_coordinator(ask, name)
        ask.create(topic)
        commit(ask, name, {(topic, 0): 1})
    at = ["--bootstrap-server", broker.bootstrap]
    shown = rf"{group}\nforged\x1b[2J"
    assert shown in [line.split()[0] for line in output_of("groups", "list", *at).splitlines()]
    (_, line) = output_of("groups", "describe", "--group", name, *at).splitlines()
    assert line.split()[0] == shown
