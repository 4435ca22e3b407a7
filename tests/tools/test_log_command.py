"""`pykafka log dump` and `pykafka log check` on real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.records.compression import Codec
from broker.tools.main import main
from tests.support.batches import NOW, batch, open_log


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    log = open_log(tmp_path / "flights-0")
    log.append(batch(b"one", b"two", timestamp=NOW, codec=Codec.GZIP), leader_epoch=4)
    log.append(batch(b"\xff", timestamp=NOW + 1, producer_id=7, producer_epoch=2, sequence=0), leader_epoch=4)
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


@pytest.mark.parametrize("command", ["dump", "check"])
def test_a_directory_without_segments_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for path, complaint in ((tmp_path / "none", "is no directory"), (tmp_path, "holds no segment")):
        assert run(command, path) == 1
        assert complaint in capsys.readouterr().err
