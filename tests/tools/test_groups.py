"""`pykafka groups` and `pykafka offsets` against a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from tests.support.console import answer_of, error_of, output_of, pykafka
from tests.support.kafka import Kafka, need
from tests.support.raw_requests import Requests
from tests.support.share_members import ShareMember
from tests.support.waiting import eventually

RECORDS = 10


@pytest.fixture
def at(broker: Kafka) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


@pytest.fixture
def filled(broker: Kafka, topic: str, group: str) -> str:
    """A topic of two partitions with RECORDS each, of ms 1000, 2000, …; `group` has read 4 of the first."""
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 2, configs={"retention.ms": "-1"})  # of 1970: a cleaner would take them
        for index in range(RECORDS):
            for partition in (0, 1):
                producer.send(topic, b"%d" % index, partition=partition, timestamp=(index + 1) * 1000)
        producer.flush()
        Admin(cluster).alter_group_offsets(group, {TopicPartition(topic, 0): 4})
    return topic


@pytest.fixture
def member(broker: Kafka, filled: str, group: str) -> Iterator[Consumer]:
    """A member of the group, with both partitions."""
    with Consumer(broker.bootstrap, {"group.id": group, "client.id": "reader"}) as consumer:
        consumer.subscribe([filled])
        eventually(lambda: consumer.poll(0.05) == [] and len(consumer.assignment()) == 2)
        yield consumer


def document(*arguments: str) -> Any:
    return json.loads(answer_of(*arguments, "--json"))


def reset(at: tuple[str, str], group: str, *arguments: str) -> dict[int, int]:
    """Where the partitions would go."""
    rows = document("groups", "reset-offsets", "--group", group, *arguments, *at)
    return {row["partition"]: row["newOffset"] for row in rows}


def test_a_group_is_listed_and_described(at: tuple[str, str], filled: str, group: str) -> None:
    listed = [line.split() for line in output_of("groups", "list", *at).splitlines()]
    assert listed[0] == ["GROUP", "STATE", "TYPE", "PROTOCOL"]
    assert [group, "Empty", "classic"] in [line[:3] for line in listed]
    head, *rows = [line.split() for line in answer_of("groups", "describe", "--group", group, *at).splitlines()]
    assert head[:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert rows == [[group, filled, "0", "4", "10", "6", "-", "-", "-"]]
    assert group not in [one["group"] for one in document("groups", "list", "--state", "Stable", *at)]
    assert group in [one["group"] for one in document("groups", "describe", *at)]


def test_members_are_shown_with_what_they_were_given(
    at: tuple[str, str], filled: str, member: Consumer, group: str
) -> None:
    (described,) = document("groups", "describe", "--group", group, *at)
    assert (described["state"], described["assignor"]) == ("Stable", "range")
    assert [(row["partition"], row["clientId"]) for row in described["partitions"]] == [(0, "reader"), (1, "reader")]
    (shown,) = described["members"]
    assert [tp["partition"] for tp in shown["partitions"]] == [0, 1]
    assert f"{filled}(0,1)" in answer_of("groups", "describe", "--group", group, "--members", *at)
    assert "Stable" in answer_of("groups", "describe", "--group", group, "--state", *at)
    assert "stop its consumers first" in error_of(
        "groups", "reset-offsets", "--group", group, "--topic", filled, "--to-earliest", *at
    )
    assert "NON_EMPTY_GROUP" in error_of("groups", "delete", "--group", group, *at)
    error = error_of("groups", "delete-offsets", "--group", group, "--topic", f"{filled}:0", *at)
    assert "GROUP_SUBSCRIBED_TO_TOPIC" in error


def test_a_group_whose_members_the_coordinator_assigns(
    broker: Kafka, at: tuple[str, str], filled: str, group: str
) -> None:
    need(broker.bootstrap, ApiKey.CONSUMER_GROUP_HEARTBEAT)
    settings = {
        "group.id": group,
        "group.protocol": "consumer",
        "client.id": "reader",
        "group.remote.assignor": "range",
    }
    with Consumer(broker.bootstrap, settings) as consumer:
        consumer.subscribe([filled])
        eventually(lambda: consumer.poll(0.05) == [] and len(consumer.assignment()) == 2)
        (described,) = document("groups", "describe", "--group", group, *at)
        (shown,) = described["members"]
        both = [{"topic": filled, "partition": partition} for partition in (0, 1)]
        assert (shown["protocol"], shown["subscribedTopics"]) == ("consumer", [filled])
        assert (shown["partitions"], shown["target"]) == (both, both)
        assert shown["epoch"] == described["epoch"] == described["assignmentEpoch"] > 0
        assert (described["type"], described["state"], described["assignor"]) == ("consumer", "Stable", "range")
        assert [(row["partition"], row["clientId"]) for row in described["partitions"]] == [
            (0, "reader"),
            (1, "reader"),
        ]
        assert f"{filled}(0,1)  {filled}(0,1)" in answer_of("groups", "describe", "--group", group, "--members", *at)
        head, row = map(str.split, answer_of("groups", "describe", "--group", group, "--state", *at).splitlines())
        assert dict(zip(head, row[:1] + row[2:], strict=True))["TYPE"] == "consumer"
        listed = [one for one in document("groups", "list", "--type", "Consumer", *at) if one["group"] == group]
        assert listed == [{"group": group, "state": "Stable", "type": "consumer", "protocolType": "consumer"}]
        assert group not in [one["group"] for one in document("groups", "list", "--type", "classic", *at)]
        assert "stop its consumers first" in error_of(
            "groups", "reset-offsets", "--group", group, "--topic", filled, "--to-earliest", *at
        )
        assert "NON_EMPTY_GROUP" in error_of("groups", "delete", "--group", group, *at)
        error = error_of("groups", "delete-offsets", "--group", group, "--topic", f"{filled}:0", *at)
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in error
    (described,) = document("groups", "describe", "--group", group, *at)
    assert (described["type"], described["state"], described["members"]) == ("consumer", "Empty", [])
    assert reset(at, group, "--topic", f"{filled}:0", "--to-earliest", "--execute") == {0: 0}
    assert document("groups", "delete", "--group", group, *at) == [{"group": group, "deleted": True}]
    assert f"there is no group '{group}'" in error_of("groups", "describe", "--group", group, *at)


def test_a_share_group(broker: Kafka, at: tuple[str, str], filled: str, group: str) -> None:
    need(broker.bootstrap, ApiKey.SHARE_FETCH)
    shared = f"shared-{group}"
    earliest = ("--add-config", "share.auto.offset.reset=earliest")
    answer_of("configs", "alter", "--entity-type", "groups", "--entity-name", shared, *earliest, *at)
    (configured,) = document("configs", "describe", "--entity-type", "groups", "--entity-name", shared, *at)
    assert [(one["name"], one["value"]) for one in configured["configs"]] == [("share.auto.offset.reset", "earliest")]
    with Requests(broker.bootstrap) as ask:
        member = ShareMember(ask, shared, filled).join()
        first, last, _ = member.take()[0]
        assert member.accept(first, last) is ErrorCode.none
        (described,) = document("groups", "describe", "--group", shared, *at)
        assert (described["type"], described["state"], described["assignor"]) == ("share", "Stable", "simple")
        (read, unread) = described["partitions"]
        assert (read["currentOffset"], read["lag"], read["clientId"]) == (last + 1, RECORDS - last - 1, "tests")
        assert unread["currentOffset"] is None
        listed = [one for one in document("groups", "list", "--type", "share", *at) if one["group"] == shared]
        assert listed == [{"group": shared, "state": "Stable", "type": "share", "protocolType": "share"}]
        assert "NON_EMPTY_GROUP" in error_of("groups", "delete", "--group", shared, *at)
        member.heartbeat(epoch=-1)
    assert document("groups", "delete", "--group", shared, *at) == [{"group": shared, "deleted": True}]


def test_what_is_unread_without_a_commit_is_said(
    at: tuple[str, str], filled: str, member: Consumer, group: str
) -> None:
    """As in Kafka's tool its lag is not known; it must not be taken for none."""
    (described,) = document("groups", "describe", "--group", group, *at)
    assert [(row["currentOffset"], row["lag"], row["unread"]) for row in described["partitions"]] == [
        (4, 6, None),
        (None, None, RECORDS),
    ]
    assert (described["lag"], described["unread"]) == (6, RECORDS)
    head, row = [
        line.split() for line in answer_of("groups", "describe", "--group", group, "--state", *at).splitlines()
    ]
    assert (head[-2:], row[-2:]) == (["LAG", "UNREAD"], ["6", str(RECORDS)])
    shown = pykafka("groups", "describe", "--group", group, *at).stderr.decode()
    assert f"1 of 2 partitions of {group} have no committed offset" in shown
    assert f"their logs hold {RECORDS} records" in " ".join(shown.split())


def test_offsets_are_reset_only_when_told_to(at: tuple[str, str], filled: str, group: str) -> None:
    assert reset(at, group, "--topic", filled, "--to-earliest") == {0: 0, 1: 0}
    assert document("groups", "describe", "--group", group, *at)[0]["partitions"][0]["currentOffset"] == 4
    text = answer_of("groups", "reset-offsets", "--group", group, "--topic", filled, "--to-latest", "--execute", *at)
    assert [line.split()[3:] for line in text.splitlines()] == [
        ["CURRENT-OFFSET", "NEW-OFFSET"],
        ["4", "10"],
        ["-", "10"],
    ]
    partitions = document("groups", "describe", "--group", group, *at)[0]["partitions"]
    assert [(row["currentOffset"], row["lag"]) for row in partitions] == [(10, 0), (10, 0)]


def test_the_targets_of_a_reset(at: tuple[str, str], filled: str, group: str) -> None:
    first = ("--topic", f"{filled}:0")
    assert reset(at, group, *first, "--to-offset", "7") == {0: 7}
    assert reset(at, group, *first, "--to-offset", "99") == {0: 10}, "no further than the log goes"
    assert reset(at, group, *first, "--shift-by", "-3") == {0: 1}
    assert reset(at, group, "--all-topics", "--shift-by", "2") == {0: 6}
    assert reset(at, group, *first, "--to-datetime", "1970-01-01T00:00:05.500") == {0: 5}
    assert reset(at, group, *first, "--to-datetime", "1970-01-01T01:00:02+01:00") == {0: 1}
    assert reset(at, group, *first, "--by-duration", "PT1H") == {0: 10}
    assert reset(at, group, "--topic", filled, "--to-current") == {0: 4, 1: 10}


def test_offsets_are_exported_and_read_back(at: tuple[str, str], filled: str, group: str, tmp_path: Path) -> None:
    """In the form of kafka-consumer-groups.sh, into the same group or another one."""
    export = ("groups", "reset-offsets", "--group", group, "--topic", filled, "--to-current", "--export", *at)
    text = answer_of(*export)
    assert text == f"{filled},0,4\n{filled},1,10\n"
    assert answer_of("offsets", "get", "--group", group, "--export", *at) == f"{filled},0,4\n"
    file = tmp_path / "offsets.csv"
    file.write_text(text)
    again = ("groups", "reset-offsets", "--group", f"{group}-2", "--from-file", str(file))
    answer_of(*again, *at)
    assert "has no offsets" in error_of("offsets", "get", "--group", f"{group}-2", *at)
    answer_of(*again, "--execute", *at)
    assert answer_of("offsets", "get", "--group", f"{group}-2", "--export", *at) == text
    file.write_text(f"{filled},0,99\n\n")
    assert reset(at, group, "--from-file", str(file)) == {0: 10}, "no further than the log goes"
    answer_of("offsets", "set", "--group", group, "--from-file", str(file), *at)
    assert answer_of("offsets", "get", "--group", group, "--export", *at) == f"{filled},0,99\n"
    for wrong, complaint in (("t,0", "line 1: expected topic,partition,offset"), ("\n", "holds no offsets")):
        file.write_text(wrong)
        assert complaint in error_of(*again, *at, status=2)
    assert "cannot read" in error_of(*again[:-1], str(tmp_path / "none"), *at, status=2)


@pytest.mark.parametrize(
    ("arguments", "complaint", "status"),
    [
        (["--to-earliest"], "give one of --topic, --all-topics", 2),
        (["--all-topics"], "give one of --to-earliest", 2),
        (["--all-topics", "--to-earliest", "--shift-by", "0"], "not 2 of them", 2),
        (["--all-topics", "--from-file", "x"], "leave out --topic and --all-topics", 2),
        (["--all-topics", "--to-latest", "--export", "--json"], "one of --export and --json", 2),
        (["--all-topics", "--to-datetime", "soon"], "a time such as", 2),
        (["--all-topics", "--by-duration", "1h"], "a duration such as PT1H30M", 2),
        (["--topic", "no-such-topic", "--to-earliest"], "there is no topic 'no-such-topic'", 1),
        (["--topic", "{topic}:x", "--to-earliest"], "expected TOPIC or TOPIC:PARTITION,…", 2),
        (["--topic", "{topic}:7", "--to-earliest"], "2 partitions, but no 7", 1),
        (["--topic", "{topic}:1", "--shift-by", "1"], "has no offset of", 2),
    ],
)
def test_what_cannot_be_reset_is_told(
    at: tuple[str, str], filled: str, group: str, arguments: list[str], complaint: str, status: int
) -> None:
    given = [argument.replace("{topic}", filled) for argument in arguments]
    assert complaint in error_of("groups", "reset-offsets", "--group", group, *given, *at, status=status)


def test_groups_and_offsets_are_deleted(at: tuple[str, str], filled: str, group: str) -> None:
    answer_of("groups", "reset-offsets", "--group", group, "--topic", filled, "--to-earliest", "--execute", *at)
    said = answer_of("groups", "delete-offsets", "--group", group, "--topic", f"{filled}:1", *at)
    assert said == f"Deleted the offset of {filled}-1.\n"
    assert len(document("groups", "describe", "--group", group, *at)[0]["partitions"]) == 1
    assert document("groups", "delete", "--group", group, *at) == [{"group": group, "deleted": True}]
    assert f"there is no group '{group}'" in error_of("groups", "describe", "--group", group, *at)
    assert "GROUP_ID_NOT_FOUND" in error_of("groups", "delete", "--group", group, *at)
