"""Debian's kcat, a command-line client on an older librdkafka, against the broker."""

from __future__ import annotations

import json

import pytest

from tests.support.kafka import Kafka
from tests.support.kcat import Kcat
from tests.support.requirements import Unavailable, give_up
from tests.support.sample_records import CODECS
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kcat, pytest.mark.usefixtures("made_topic")]

# Topic, partition and offset, then key and value as JSON shows them.
FULL = r"%t %p %o %k=%s [%h]\n"


@pytest.fixture
def kcat(broker: Kafka) -> Kcat:
    try:
        return Kcat(broker.bootstrap)
    except Unavailable as error:
        give_up(f"kcat: {error}")


def lines(count: int) -> list[str]:
    return [f"key-{number % 7}:value {number} äöü" for number in range(count)]


@pytest.mark.parametrize("codec", CODECS)
def test_lines_come_back_in_every_codec(kcat: Kcat, topic: str, codec: str) -> None:
    sent = lines(500)
    kcat.run("-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, stdin="\n".join(sent).encode())
    received = kcat.run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-K", ":")
    assert received.decode().splitlines() == sent


def test_headers_keys_and_offsets_are_shown(kcat: Kcat, topic: str) -> None:
    kcat.run("-P", "-t", topic, "-p", "0", "-k", "the key", "-H", "a=1", "-H", "b=2", stdin=b"the value")
    received = kcat.run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", FULL)
    assert received.decode() == f"{topic} 0 0 the key=the value [a=1,b=2]\n"


def test_null_values_stay_null(kcat: Kcat, topic: str) -> None:
    kcat.run("-P", "-t", topic, "-p", "0", "-K", ":", "-Z", stdin=b"gone:\n")
    received = kcat.run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-J")
    assert json.loads(received)["payload"] is None


def test_reading_starts_at_an_offset_and_stops_at_a_count(kcat: Kcat, topic: str) -> None:
    kcat.run("-P", "-t", topic, "-p", "0", "-K", ":", stdin="\n".join(lines(50)).encode())
    received = kcat.run("-C", "-t", topic, "-p", "0", "-o", "40", "-c", "5", "-q", "-f", r"%o\n")
    assert received.split() == [b"40", b"41", b"42", b"43", b"44"]
    tail = kcat.run("-C", "-t", topic, "-p", "0", "-o", "-3", "-e", "-q", "-f", r"%o\n")
    assert tail.split() == [b"47", b"48", b"49"]


def test_metadata_lists_the_broker_and_the_topic(kcat: Kcat, broker: Kafka, topic: str) -> None:
    kcat.run("-P", "-t", topic, "-p", "0", stdin=b"one")
    metadata = json.loads(kcat.run("-L", "-J"))
    named = {entry["name"]: entry["id"] for entry in metadata["brokers"]}
    assert set(broker.bootstrap.split(",")) <= set(named)
    (listed,) = [entry for entry in metadata["topics"] if entry["topic"] == topic]
    assert [entry["partition"] for entry in listed["partitions"]] == [0]
    assert listed["partitions"][0]["leader"] in named.values()


def test_an_offset_is_looked_up_by_time(kcat: Kcat, topic: str) -> None:
    kcat.run("-P", "-t", topic, "-p", "0", stdin=b"one\ntwo")
    assert kcat.run("-Q", "-t", f"{topic}:0:1").decode().split() == [topic, "[0]", "offset", "0"]


def test_idempotent_producer_is_accepted(kcat: Kcat, topic: str) -> None:
    sent = lines(2000)
    kcat.run(
        "-P", "-t", topic, "-p", "0", "-K", ":", "-X", "enable.idempotence=true", "-X", "batch.num.messages=50",
        stdin="\n".join(sent).encode(),
    )  # fmt: skip
    received = kcat.run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-K", ":")
    assert received.decode().splitlines() == sent


def test_a_group_consumes_and_resumes(kcat: Kcat, topic: str, group: str) -> None:
    kcat.run("-P", "-t", topic, "-p", "0", "-K", ":", stdin="\n".join(lines(20)).encode())
    settings = ("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000", "-q", "-f", r"%o\n")
    first = kcat.run("-G", group, "-c", "12", *settings, topic)
    assert first.split() == [b"%d" % number for number in range(12)]
    second = kcat.run("-G", group, "-c", "8", *settings, topic)
    assert second.split() == [b"%d" % number for number in range(12, 20)]


def test_a_waiting_consumer_gets_new_records(kcat: Kcat, topic: str) -> None:
    kcat.run("-P", "-t", topic, "-p", "0", stdin=b"old")
    waiting = kcat.start("-C", "-t", topic, "-p", "0", "-o", "1", "-c", "1", "-q", "-u")
    try:
        kcat.run("-P", "-t", topic, "-p", "0", stdin=b"new")
        eventually(lambda: waiting.poll() is not None)
        assert waiting.stdout is not None
        assert waiting.stdout.read() == b"new\n"
    finally:
        waiting.kill()
        waiting.communicate()
