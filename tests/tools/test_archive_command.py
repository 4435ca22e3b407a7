"""`pykafka log archive`: status from brokers, verify and prune of the store."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.storage.storage import open_storage
from tests.support.archiving_broker import archiving_broker, close_segments
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, error_of, verdict_of
from tests.support.fake_s3 import FakeS3, Fault
from tests.support.small_archive import SmallArchive
from tests.support.waiting import eventually


@pytest.fixture
def archive(tmp_path: Path) -> SmallArchive:
    archive = SmallArchive(open_storage(str(tmp_path / "archive")), tmp_path)
    archive.add()
    archive.add()
    return archive


def of(archive: SmallArchive, command: str, *arguments: str) -> tuple[str, ...]:
    return "log", "archive", command, "--archive", archive.storage.url, *arguments


def make_old(archive: SmallArchive) -> None:
    """As if all objects had been put two days ago."""
    root = Path(archive.storage.url.removeprefix("file://"), archive.place.directory)
    for path in root.iterdir():
        os.utime(path, (path.stat().st_mtime - 2 * 86_400,) * 2)


def test_verify_finds_nothing_in_a_whole_archive(archive: SmallArchive) -> None:
    said = answer_of(*of(archive, "verify", "--deep"))
    assert said == f"0 problems in 1 partition, 2 segments, {archive.manifest.size:,} bytes.\n"
    (document,) = json.loads(answer_of(*of(archive, "verify", "--topic", "flights", "--json")))
    assert {key: document[key] for key in ("topic", "partition", "start", "end", "segments", "problems")} == {
        "topic": "flights",
        "partition": 0,
        "start": 0,
        "end": 20,
        "segments": 2,
        "problems": [],
    }


def test_verify_names_each_problem_and_ends_with_1(archive: SmallArchive) -> None:
    path = archive.place.segment(archive.manifest.segments[0].name)
    archive.storage.remove(path)
    said = verdict_of(*of(archive, "verify")).splitlines()
    assert said[0] == f"{path}: missing object: the records 0 to 9 need it"
    assert said[1].startswith("1 problem in 1 partition")


def test_prune_deletes_old_leftovers(archive: SmallArchive) -> None:
    orphan = archive.copy(20)
    assert json.loads(answer_of(*of(archive, "prune", "--json"))) == []
    make_old(archive)
    assert [problem["kind"] for problem in problems_of(archive)] == ["orphan", "orphan"]
    would = answer_of(*of(archive, "prune", "--dry-run"))
    assert archive.place.segment(orphan.name) in would
    assert answer_of(*of(archive, "prune")) == would
    assert json.loads(answer_of(*of(archive, "verify", "--json")))[0]["problems"] == []


def problems_of(archive: SmallArchive) -> list[dict[str, Any]]:
    (document,) = json.loads(verdict_of(*of(archive, "verify", "--json")))
    return list(document["problems"])


def test_prune_leaves_a_damaged_manifest_alone_and_says_so(archive: SmallArchive) -> None:
    archive.copy(20)
    make_old(archive)
    archive.replace(archive.place.entry(0), b"{")
    assert "flights-0: cluster-1/" in error_of(*of(archive, "prune"))
    assert len(archive.storage.names(archive.place.directory)) == 7


def test_what_is_not_there_is_told(archive: SmallArchive, tmp_path: Path) -> None:
    assert "no such topic; it has flights" in error_of(*of(archive, "verify", "--topic", "x"), status=2)
    assert "no such topic; it has none" in error_of(
        *("log", "archive", "verify", "--archive", str(tmp_path / "empty"), "--topic", "x"), status=2
    )
    assert "--archive-option x: expected KEY=VALUE" in error_of(
        *of(archive, "verify", "--archive-option", "x"), status=2
    )


def test_where_a_store_that_refuses_gets_its_keys_from_is_told(s3: FakeS3) -> None:
    bucket = f"refuses-{uuid.uuid4().hex}"
    s3.fault("GET", bucket, Fault.DENIED)
    options = [part for name, value in s3.options.items() for part in ("--archive-option", f"{name}={value}")]
    told = error_of("log", "archive", "verify", "--archive", f"s3://{bucket}/kafka", *options, status=3)
    assert f"the archive s3://{bucket}/kafka: " in told
    assert "; keys come from --archive-option or the environment" in told


def test_deleted_topics_are_looked_at_only_by_name(archive: SmallArchive) -> None:
    """Their objects may be going."""
    archive.storage.create(f"{archive.place.directory.rpartition('/')[0]}/deleted.json", b"{}")
    assert "in 0 partitions" in answer_of(*of(archive, "verify"))
    assert "in 1 partition," in answer_of(*of(archive, "verify", "--topic", "flights"))


# --- with a broker --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with an archive, the topic `events` in it and `local`, which has none."""
    with archiving_broker(tmp_path_factory.mktemp("archive")) as broker:
        close_segments(broker, "events")
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).create_topic("local", 1)
        yield broker


def status(kafka: BrokerProcess, *arguments: str) -> list[dict[str, Any]]:
    said = answer_of("log", "archive", "status", "--json", "-b", kafka.bootstrap, *arguments)
    return list(json.loads(said))


def is_archived(kafka: BrokerProcess) -> bool:
    (row,) = status(kafka)
    return bool(row["archivedBytes"]) and row["behind"] == 0 and not row["problem"]


def test_status_shows_the_topics_that_have_an_archive(kafka: BrokerProcess) -> None:
    eventually(lambda: is_archived(kafka))
    (row,) = status(kafka)
    assert (row["topic"], row["partition"], row["start"], row["problem"]) == ("events", 0, 0, "")
    assert row["start"] < row["archivedEnd"] <= row["end"]
    assert row["localStart"] <= row["archivedEnd"], "or records would be neither here nor there"
    (other,) = status(kafka, "--topic", "local")
    assert (other["end"], other["archivedEnd"], other["archivedBytes"]) == (0, None, None)
    assert "ARCHIVED-END" in answer_of("log", "archive", "status", "-b", kafka.bootstrap)


def test_status_says_whose_transaction_holds_the_copy_up(kafka: BrokerProcess) -> None:
    eventually(lambda: is_archived(kafka))
    with Producer(kafka.bootstrap, {"transactional.id": "slow"}) as slow:
        slow.init_transactions()
        slow.begin_transaction()
        offset = slow.send("events", b"begun").result().offset
        close_segments(kafka, "events")
        (row,) = status(kafka)
        assert row["problem"].endswith(f"has a transaction open since offset {offset}"), row
        assert row["behind"] > 0
        slow.commit_transaction()
    eventually(lambda: is_archived(kafka))


def test_status_says_why_the_archive_does_not_go_on(kafka: BrokerProcess) -> None:
    """The store is away: in the place of its directory is a file."""
    directory = kafka.data_dir.parent / "archive"
    directory.rename(directory.with_name("away"))
    directory.touch()
    close_segments(kafka, "events")
    eventually(lambda: status(kafka)[0]["problem"])
    (row,) = status(kafka)
    assert row["behind"] > 0
    assert re.fullmatch(rf"broker \d+ at {kafka.bootstrap}: .+ \(since [-\d]+ [:\d]+ UTC\)", row["problem"])
    directory.unlink()
    directory.with_name("away").rename(directory)
    eventually(lambda: is_archived(kafka))


def test_verify_asks_a_broker_where_the_archive_is(kafka: BrokerProcess) -> None:
    eventually(lambda: is_archived(kafka))
    assert "in 1 partition, " in answer_of("log", "archive", "verify", "--topic", "events", "-b", kafka.bootstrap)
    assert answer_of("log", "archive", "prune", "--json", "-b", kafka.bootstrap) == "[]\n"


def test_a_broker_without_an_archive_is_told(broker: BrokerProcess) -> None:
    text = error_of("log", "archive", "verify", "-b", broker.bootstrap, status=2)
    assert "has no archive (archive.url); say where one is by --archive" in text
    assert status(broker) == []
