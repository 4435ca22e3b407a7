"""`pykafka log dump` and `pykafka log check` on real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.meta_properties import adopted
from broker.protocol.topic_partition import TopicPartition
from broker.records.compression import Codec
from broker.records.control import ControlType
from broker.tools.main import main
from tests.support.batches import NOW, append, append_marker, batch, open_log
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, error_of, output_of, verdict_of
from tests.support.kafka import Kafka
from tests.support.waiting import eventually


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    log = open_log(tmp_path / "flights-0")
    append(log, batch(b"one", b"two", timestamp=NOW, codec=Codec.GZIP), leader_epoch=4)
    append(log, batch(b"\xff", timestamp=NOW + 1, producer_id=7, producer_epoch=2, sequence=0), leader_epoch=4)
    log.close()
    return tmp_path / "flights-0"


@pytest.fixture
def damaged(partition: Path) -> Path:
    [path] = partition.glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data) + b"torn")
    return partition


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in ("log", *arguments)])
    return int(ended.value.code or 0)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]]]:
    status = run(*arguments, "--json")
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_dump_prints_a_line_per_batch(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("dump", partition) == 0
    name, _, *lines = capsys.readouterr().out.splitlines()
    assert "00000000000000000000.log" in name
    assert [line.split()[0] for line in lines] == ["0-1", "2-2"]
    assert "gzip" in lines[0]
    assert "2023-11-14 22:13:20.001" in lines[1]
    assert "7:2 #0" in lines[1]
    assert all(line.endswith("ok") for line in lines)


def test_dump_shows_damage_and_goes_on(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("dump", damaged) == 0
    *_, first, second, tail = capsys.readouterr().out.splitlines()
    assert first.endswith("ok")
    assert "CRC of the batch at offset 2 does not match" in second
    assert "4 bytes that are no whole batch" in tail


def test_dump_prints_records(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("dump", partition, "--records") == 0
    out = capsys.readouterr().out
    assert "1 2023-11-14 22:13:20.000 None 'two'" in out


def test_dump_as_json(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = run_json(capsys, "dump", partition, "--records")
    assert status == 0
    assert [row["codec"] for row in rows] == ["gzip", "none"]
    assert [row["valid"] for row in rows] == [True, True]
    assert rows[1]["leader_epoch"] == 4
    assert (rows[1]["producer_id"], rows[1]["producer_epoch"], rows[1]["base_sequence"]) == (7, 2, 0)
    assert [record["value"] for row in rows for record in row["records"]] == ["one", "two", "\\xff"]


def test_dump_of_damage_as_json(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, rows = run_json(capsys, "dump", damaged, "--records")
    assert [row["valid"] for row in rows] == [True, False, False]
    assert rows[1]["records"] == []


def test_check_is_content_with_a_sound_partition(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", partition) == 0
    assert capsys.readouterr().out == "1 partition, no problem found\n"


def test_check_names_every_problem_and_fails(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", damaged) == 1
    first, second, summary = capsys.readouterr().out.splitlines()
    assert "00000000000000000000.log, byte" in first
    assert "CRC" in first
    assert "4 bytes that are no whole batch" in second
    assert summary == "2 problems in 1 partition"


def test_check_as_json(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = run_json(capsys, "check", damaged)
    assert status == 1
    assert [set(row) for row in rows] == [{"file", "position", "problem"}] * 2


def test_a_data_directory_stands_for_all_in_it(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_log(damaged.parent / "other-0").close()
    assert run("check", damaged.parent) == 1
    assert "2 problems in 2 partitions" in capsys.readouterr().out
    assert run("check", damaged, damaged.parent / "other-0") == 1
    assert "2 problems in 2 partitions" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["dump", "check"])
def test_a_directory_without_segments_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for path, complaint in ((tmp_path / "none", "is no directory"), (tmp_path, "holds no segment")):
        assert run(command, path) == 2
        assert complaint in capsys.readouterr().err


@pytest.fixture
def transactional(tmp_path: Path) -> Path:
    """Of producer 7 a transaction that was aborted and one that is open."""
    log = open_log(tmp_path / "flights-0")
    for sequence in range(2):
        append(
            log,
            batch(b"x", timestamp=NOW, producer_id=7, producer_epoch=0, sequence=sequence, transactional=True),
            leader_epoch=0,
        )
        if not sequence:
            append_marker(log, 7, 0, ControlType.ABORT, 3)
    log.close()
    return tmp_path / "flights-0"


def test_markers_aborted_transactions_and_producers_are_shown(
    transactional: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("dump", transactional, "--transactions") == 0
    out = capsys.readouterr().out
    assert "ABORT by 3" in out
    assert "PRODUCER_ID  FIRST_OFFSET  LAST_OFFSET" in out
    assert "TRANSACTION_FIRST_OFFSET" in out
    _, rows = run_json(capsys, "dump", transactional, "--transactions", "--records")
    assert [row.get("marker") for row in rows[:3]] == [None, "ABORT by 3", None]
    assert [len(row["records"]) for row in rows[:3]] == [1, 0, 1]
    assert {"producer_id": 7, "first_offset": 0, "last_offset": 1}.items() <= rows[3].items()
    assert (rows[-1]["producer_id"], rows[-1]["transaction_first_offset"]) == (7, 2)


def test_every_file_beside_a_segment_can_be_dumped(transactional: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in transactional.iterdir():
        if path.suffix in {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}:
            assert run("dump", path, "--json") == 0
    capsys.readouterr()
    [snapshot] = transactional.glob("*.snapshot")
    snapshot.write_bytes(b"nonsense")
    assert run("dump", snapshot) == 1
    assert f"{snapshot}: too short" in capsys.readouterr().err
    other = transactional / "notes.txt"
    other.touch()
    assert run("dump", other) == 2
    assert "expected a directory" in capsys.readouterr().err


def test_records_of_internal_topics_are_decoded(
    own_broker: BrokerProcess, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        Cluster(own_broker.bootstrap) as cluster,
        Producer(own_broker.bootstrap, {"transactional.id": group}) as producer,
    ):
        Admin(cluster).create_topic(topic)
        Admin(cluster).alter_group_offsets(group, {TopicPartition(topic, 0): 5})
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x")
        producer.commit_transaction()

    def values(name: str, key: dict[str, Any]) -> list[dict[str, Any]]:
        """Of the records with the key in a topic."""
        found = []
        for directory in own_broker.data_dir.glob(f"**/{name}-*"):
            _, rows = run_json(capsys, "dump", directory, "--records")
            found += [record["value"] for row in rows for record in row["records"] if record["key"] == key]
        return found

    key = {"type": "offset", "group_id": group, "topic": topic, "partition": 0}
    [committed] = values("__consumer_offsets", key)
    assert committed["offset"] == 5
    states: list[dict[str, Any]] = []

    def is_complete() -> bool:
        """The coordinator answers the commit before it has written the markers."""
        states[:] = values("__transaction_state", {"transactional_id": group})
        return bool(states) and states[-1]["state"] == "CompleteCommit"

    eventually(is_complete)
    assert [f"{topic}-0"] in [state["partitions"] for state in states]


def test_directories_of_brokers_are_described(broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1, 1)
    at = ("--bootstrap-server", broker.bootstrap)

    def holding_it() -> list[Any]:
        found = json.loads(answer_of("log", "dirs", "--topic", topic, "--json", *at))
        return [directory for directory in found if directory["partitions"]]

    eventually(lambda: bool(holding_it()))
    [found] = holding_it()
    assert [(row["topic"], row["partition"], row["size"]) for row in found["partitions"]] == [(topic, 0, 0)]
    assert found["totalBytes"] >= found["usableBytes"] > 0
    assert f"{found['logDir']}: 1 partition, 0 bytes" in output_of("log", "dirs", "--topic", topic, *at)
    assert "there is no broker '99'" in error_of("log", "dirs", "--broker", "99", *at)


def test_check_reports_a_partition_that_is_in_two_directories(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for topic in ("flights-0", "flights-1") if name == "a" else ("flights-1", "flights-1.0123-future"):
            log = open_log(tmp_path / name / topic)
            append(log, batch(b"one", timestamp=NOW))
            log.close()
    a, b = tmp_path / "a", tmp_path / "b"
    (tmp_path / "link").symlink_to(a)
    said = verdict_of("log", "check", str(a), str(b)).replace("\n", "")
    assert said.startswith(f"{b}/flights-1: is the same partition as {a}/flights-1; keep one of them in log.dirs")
    assert said.endswith("1 problem in 4 partitions")
    assert "no problem found" in output_of("log", "check", str(a), str(a / "flights-0"), str(tmp_path / "link"))


def test_adopting_a_directory_makes_it_and_needs_no_broker(tmp_path: Path) -> None:
    new = tmp_path / "new" / "disk"
    assert "begin anew then, empty" in answer_of("log", "dirs", "--adopt", str(new), "-b", "127.0.0.1:1")
    assert adopted([new]) == [new]
    (tmp_path / "file").touch()
    assert f"--adopt {tmp_path}/file: " in error_of("log", "dirs", "--adopt", str(tmp_path / "file"), status=2)
    assert "needs the path of a directory" in error_of("log", "dirs", "--adopt", "", status=2)
    assert not adopted([Path()])
