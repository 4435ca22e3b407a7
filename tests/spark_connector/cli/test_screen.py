"""What a person sees of a load: in a real pseudo-terminal, and through a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_connector.cli.screen import Screen, print_ranges
from spark_connector.cli.session import LazySession
from spark_connector.loads.record import LoadRange, LoadRecord
from tests.support.console import command
from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topic_data import TopicData

RECORD = LoadRecord("g-000001-00112233", "file:///o", "parquet", "files", 0, (LoadRange("t", 0, 0, 510, None),))
LONG = "x" * 200

STARTS = """
import os, sys, threading
from pathlib import Path
from spark_connector.cli.screen import Screen
from spark_connector.cli.session import LazySession, standard_error_to
from tests.spark_connector.cli.test_screen import LONG, RECORD
spark = LazySession("test", "local[1]", {})
with Screen() as screen, spark.shown(screen, service=True) as on_phase:
    on_phase("write", RECORD)
    spark._starting()
    with standard_error_to(Path(sys.argv[1])):
        os.write(2, b"a warning of Java")
        while not Path(sys.argv[2]).exists():
            threading.Event().wait(0.05)
    spark._started()
    screen.say("a line")
    screen.print(LONG)
    on_phase("wait", None)
"""


def in_a_terminal(words: list[str], on_output: Callable[[str], object] = len) -> tuple[int, str]:
    """Run it in a pseudo-terminal; gives its status and what it has written. `on_output` gets that as it comes."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, stdin=its, stdout=its, stderr=its, cwd=ROOT, env=environment) as process:
        os.close(its)
        said = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            said += part
            on_output(said.decode(errors="ignore"))
        status = process.wait()
    os.close(ours)
    return status, said.decode()


def lines_of(said: str) -> list[str]:
    """What stood in a line at some time, from where the line begins."""
    pieces = re.split(r"\r|\n", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said))
    return [re.sub(r"[\u2800-\u28ff\u2501\u2578\u257a ]+", " ", piece).strip() for piece in pieces]


def test_the_clock_runs_while_spark_starts_and_lines_never_mix(tmp_path: Path) -> None:
    started = tmp_path / "started"

    def start_when_the_clock_has_moved(said: str) -> None:
        if len({line for line in lines_of(said) if line.startswith("starting Spark 0:")}) > 1:
            started.touch()

    status, said = in_a_terminal(
        [sys.executable, "-c", STARTS, str(tmp_path / "log"), str(started)], start_when_the_clock_has_moved
    )
    assert status == 0, said
    lines = lines_of(said)
    assert "0/" not in said
    assert any(line.startswith("writing 510 offsets") for line in lines)
    assert sum(line.endswith("Z a line") and len(line) == len("2026-11-26T01:02:03Z a line") for line in lines) == 1
    assert LONG in said, "a line is as long as it is"
    assert "a warning of Java" not in said
    assert (tmp_path / "log").read_text() == "a warning of Java"
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l"), "the cursor is there again"


@pytest.mark.parametrize("service", [False, True])
def test_through_a_pipe_each_phase_that_takes_long_is_a_plain_line(
    service: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a service only the start of Spark: its loads have lines of their own."""
    spark = LazySession("test", "local[1]", {})
    with Screen() as screen, spark.shown(screen, service=service) as on_phase:
        on_phase("plan", None)
        on_phase("write", RECORD)
        spark._starting()
        spark._started()
        on_phase("commit", RECORD)
        screen.print("the result")
    said = capfd.readouterr()
    found = [line.partition(" ")[2] for line in said.err.splitlines()]
    assert found == (["starting Spark"] if service else ["writing 510 offsets", "starting Spark", "committing"])
    assert said.out == "the result\n"


def test_a_program_that_reads_gets_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    with Screen(quiet=True) as screen, LazySession("test", "local[1]", {}).shown(screen) as on_phase:
        on_phase("write", RECORD)
        screen.print("{}")
    assert capfd.readouterr() == ("{}\n", "")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_service_in_a_terminal(tmp_path: Path, broker: Kafka, topic: str) -> None:
    TopicData(broker.bootstrap, topic, partitions=1).produce(510)
    where = ["--to", str(tmp_path / "out"), "--group", "service", "--topic", topic, "-b", broker.bootstrap]
    in_spark = ["--master", "local[2]", "--option", "minPartitions=2"]
    status, said = in_a_terminal(command("load", "--watch", "--max-loads", "1", *in_spark, *where))
    assert status == 0, said
    lines = lines_of(said)
    assert any(line.startswith("starting Spark 0:0") for line in lines)
    assert any(re.search(r"Z service-000001-\w{8}: 510 rows, 510 offsets of 1 partition$", line) for line in lines)
    assert any(re.search(r"Z Done\. The service ran for \d+ s\.$", line) for line in lines)
    assert "/?" not in said


def test_ranges_are_a_line_each_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    topic = "t" * 249
    print_ranges([LoadRange(topic, 0, 0, 1_200_000, None, 1_200_000), LoadRange(topic, 17, 5, 9, 5)])
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["topic", "partition", "from", "to", "rows"]
    assert rows == [[topic, "0", "0", "1,200,000", "1,200,000"], [topic, "17", "5", "9", "-"]]
