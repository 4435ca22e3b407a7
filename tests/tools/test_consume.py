"""`pykafka consume` against a broker."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import ConsumerRecord
from broker.client.producer import Producer
from broker.tools.record_text import Formatter
from tests.support.console import answer_of, command, error_of, pykafka
from tests.support.kafka import Kafka, await_topics
from tests.support.source_tree import ROOT


@pytest.fixture
def at(broker: Kafka) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


@pytest.fixture
def numbers(at: tuple[str, str], made_topic: str) -> str:
    """A topic of one partition that holds 0 to 99, each with its key."""
    lines = "".join(f"k{number}:{number}\n" for number in range(100))
    properties = ("--property", "parse.key=true", "--property", "key.separator=:")
    answer_of("produce", "--topic", made_topic, *properties, *at, stdin=lines.encode())
    return made_topic


def fails_on_seven(properties: Mapping[str, str]) -> Formatter:
    """A formatter that cannot show one of the records."""

    def show(record: ConsumerRecord) -> bytes:
        if record.value == b"7":
            raise ValueError("seven")
        return (record.value or b"") + b"\n"

    return show


def count(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def test_everything_is_shown_from_the_beginning(at: tuple[str, str], numbers: str) -> None:
    done = pykafka("consume", "--topic", numbers, "--from-beginning", "--max-messages", "100", *at)
    assert done.stdout.decode().split() == count(0, 100)
    assert done.stderr == b"Processed a total of 100 messages\n"
    assert done.returncode == 0


def test_it_ends_when_nothing_comes(at: tuple[str, str], numbers: str) -> None:
    shown = answer_of("consume", "--topic", numbers, "--from-beginning", "--timeout-ms", "5000", *at)
    assert shown.split() == count(0, 100)
    assert answer_of("consume", "--topic", numbers, "--timeout-ms", "500", *at) == ""  # the end is the default


def test_records_are_shown_as_json(at: tuple[str, str], numbers: str) -> None:
    shown = answer_of("consume", "-t", numbers, "--from-beginning", "-n", "2", "--json", *at).splitlines()
    assert [(one["key"], one["value"]) for one in map(json.loads, shown)] == [("k0", "0"), ("k1", "1")]


@pytest.mark.parametrize(("offset", "expected"), [("97", ["97", "98", "99"]), ("earliest", ["0", "1", "2"])])
def test_it_begins_at_an_offset(at: tuple[str, str], numbers: str, offset: str, expected: list[str]) -> None:
    where = ("--partition", "0", "--offset", offset, "--max-messages", "3")
    assert answer_of("consume", "--topic", numbers, *where, *at).split() == expected


def test_properties_choose_what_is_shown(at: tuple[str, str], numbers: str) -> None:
    names = ("print.partition=true", "print.offset=true", "print.key=true", "key.separator=|")
    properties = [argument for name in names for argument in ("--property", name)]
    limit = ("--from-beginning", "--max-messages", "2")
    shown = answer_of("consume", "--topic", numbers, *limit, *properties, *at)
    assert shown == "Partition:0|Offset:0|k0|0\nPartition:0|Offset:1|k1|1\n"
    first = answer_of("consume", "--topic", numbers, *limit, "--formatter", "json", *at).splitlines()[0]
    assert json.loads(first)["key"] == "k0"


def test_a_group_goes_on_behind_what_was_shown(at: tuple[str, str], numbers: str, group: str) -> None:
    as_group = ("--group", group, "--from-beginning")
    assert answer_of("consume", "--topic", numbers, *as_group, "--max-messages", "30", *at).split() == count(0, 30)
    assert answer_of("consume", "--topic", numbers, *as_group, "--max-messages", "70", *at).split() == count(30, 100)


def test_topics_are_found_by_pattern(at: tuple[str, str], numbers: str) -> None:
    limit = ("--from-beginning", "--max-messages", "2")
    assert answer_of("consume", "--include", numbers[:-1] + ".", *limit, *at).split() == ["0", "1"]


def test_a_record_that_cannot_be_shown_ends_it_or_is_skipped(at: tuple[str, str], numbers: str) -> None:
    arguments = ("--from-beginning", "--max-messages", "10", "--formatter", "tests.tools.test_consume:fails_on_seven")
    error = error_of("consume", "--topic", numbers, *arguments, *at)
    assert f"{numbers}-0 at offset 7 cannot be shown: ValueError('seven')" in error
    done = pykafka("consume", "--topic", numbers, *arguments, "--skip-message-on-error", *at)
    assert done.stdout.decode().split() == [*count(0, 7), "8", "9"]
    assert b"skipped the record" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(at: tuple[str, str], numbers: str, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command("consume", "--topic", numbers, "--from-beginning", *at),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    shown = [process.stdout.readline() for _ in range(100)]
    process.send_signal(number)
    rest, errors = process.communicate(timeout=30)
    assert (len(shown), rest, process.returncode) == (100, b"", 0)
    assert errors == b"Processed a total of 100 messages\n"


def test_a_reader_that_goes_away_ends_it(at: tuple[str, str], made_topic: str) -> None:
    answer_of("produce", "--topic", made_topic, *at, stdin=b"".join(b"%0100d\n" % number for number in range(5000)))
    process = subprocess.Popen(
        command("consume", "--topic", made_topic, "--from-beginning", *at),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == 0
    process.stdout.close()
    assert process.wait(timeout=30) == 0
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


def test_it_begins_where_it_is_told_and_ends_at_the_end(broker: Kafka, at: tuple[str, str], made_topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_partitions(made_topic, 2)
        await_topics(broker.bootstrap, made_topic, partitions=2)
        for number in range(10):
            producer.send(made_topic, b"%d" % number, partition=number % 2, timestamp=(number + 1) * 1000)

    def shown(*arguments: str) -> list[str]:
        return sorted(answer_of("consume", "--topic", made_topic, "--exit-at-end", *arguments, *at).split())

    assert shown("--from-beginning") == count(0, 10)
    assert shown() == [], "the end is the default"
    assert shown("--offset", "-2") == ["6", "7", "8", "9"], "of each partition"
    assert shown("-o", "-1", "--partition", "1") == ["9"]
    assert shown("--offset", "-99") == count(0, 10)
    assert shown("--offset", "earliest") == count(0, 10)
    assert shown("--offset", "4") == ["8", "9"]
    assert shown("--from-timestamp", "1970-01-01T00:00:07.500") == ["7", "8", "9"]
    assert shown("--from-timestamp", "99000") == []
    assert shown("-o", "-1", "-p", "0", "-f", "%p:%o:%s\\n") == ["0:4:8"]


def test_a_member_of_a_group_ends_at_the_end_too(at: tuple[str, str], numbers: str, group: str) -> None:
    member = ("consume", "--topic", numbers, "--group", group, "--from-beginning", "--exit-at-end")
    assert answer_of(*member, *at).split() == count(0, 100)
    assert answer_of(*member, *at) == ""


@pytest.mark.parametrize(
    ("arguments", "complaint", "status"),
    [
        ([], "one of --topic and --include", 2),
        (["--topic", "t", "--include", "t"], "one of --topic and --include", 2),
        (["--topic", "t", "--offset", "-5", "--group", "g"], "leave out --group", 2),
        (["--topic", "t", "--from-timestamp", "noon"], "such as 2026-01-31T12:00:00", 2),
        (["--topic", "t", "--format", "%k %x"], "--format: %x is unknown", 2),
        (["--topic", "t", "--format", "%k", "--json"], "--format goes without", 2),
        (["--topic", "{topic}", "--partition", "9"], "has no such partition", 1),
        (["--topic", "t", "--partition", "0", "--offset", "first"], "expected a number, earliest or latest", 2),
        (["--topic", "t", "--partition", "0", "--group", "g"], "leave out --group", 2),
        (
            ["--topic", "t", "--partition", "0", "--offset", "1", "--from-beginning"],
            "--offset, --from-beginning and",
            2,
        ),
        (["--include", "["], "such a set is not supported", 2),
        (["--include", "no-such-topic-.*"], "no topic matches", 1),
        (["--topic", "no-such-topic"], "there is no topic 'no-such-topic'", 1),
        (["--topic", "t", "--formatter", "jsn"], "did you mean 'json'", 2),
        (["--topic", "t", "--isolation-level", "dirty"], "isolation.level=dirty", 2),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    at: tuple[str, str], made_topic: str, arguments: list[str], complaint: str, status: int
) -> None:
    given = [argument.replace("{topic}", made_topic) for argument in arguments]
    error = error_of("consume", *given, *at, status=status)
    assert complaint in error
    assert len(error.splitlines()) == 1
