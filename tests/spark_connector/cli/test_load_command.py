"""`pykafka load` as a user runs it."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pyarrow.dataset
import pytest

from broker.errors import AuthenticationFailed, BrokerError, ConfigError, ConnectionFailed, ErrorCode
from broker.tools.main import main
from spark_connector.cli import load_command, loads_command, session
from spark_connector.errors import data_loss
from spark_connector.loads.record import LoadError, LoadInterrupted
from spark_connector.offset_store.base import OffsetConflict, OffsetStoreUnavailable
from tests.support.console import error_of
from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topic_data import TopicData
from tests.support.waiting import eventually

QUICK_JVM = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

pytestmark = pytest.mark.timeout(300)


COMMAND = [sys.executable, "-m", "broker.tools.main", "load", "--master", "local[2]", "--conf", QUICK_JVM]


@pytest.fixture(autouse=True)
def heeded_interrupts() -> Iterator[None]:
    """A process that was started in the background ignores SIGINT, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "COLUMNS": "200", **more}


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def interrupted_while_writing(to: Path, *arguments: str) -> tuple[int, str]:
    """Ctrl-C in the terminal of a load that has begun to write; (status, all that it said)."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    eventually(lambda: any(to.rglob("*.parquet")) or process.poll() is not None, timeout=200)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


class EndedSpark:
    """In place of the session of a command: Ctrl-C ends its Java process, and then whatever cleans up fails."""

    def __init__(self, *_arguments: object) -> None:
        self.on_start: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        assert kind is KeyboardInterrupt, "a session that is gone must not be stopped"

    @contextmanager
    def shown(self, _screen: object) -> Iterator[None]:
        yield

    def session(self) -> None:
        self.on_start()
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            raise ConnectionError("Answer from Java side is empty")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("load --topic t", "interrupted; the next load loads what this one has not committed"),
        ("load --verify", "interrupted"),
        ("loads verify", "interrupted"),
    ],
)
def test_an_error_that_follows_an_interrupt_is_told_as_the_interrupt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, told: str
) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    def verify(*_arguments: object, session: Callable[[], object], **_named: object) -> None:
        session()

    monkeypatch.setattr("spark_connector.load.run_load", lambda request, session, on_phase: session())
    monkeypatch.setattr("spark_connector.maintenance.verify", verify)
    monkeypatch.setattr(loads_command, "verify", verify)
    monkeypatch.setattr(load_command, "LazySession", EndedSpark)
    monkeypatch.setattr(session, "LazySession", EndedSpark)
    monkeypatch.setattr(os, "_exit", leave)
    try:
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), "--to", str(tmp_path / "out"), "--group", "g", "-b", "127.0.0.1:9"])
    finally:
        logging.disable(logging.NOTSET)
    assert ended.value.code == 130
    said = capsys.readouterr().err
    assert said.endswith(f"pykafka: {told}\n")
    assert "Answer from Java" not in said


def test_a_process_that_ignores_an_interrupt_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the one in which the console in the browser verifies: PySpark would take the signal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(session, "LazySession", EndedSpark)
    with pytest.raises(AssertionError, match="a session that is gone"), session.quiet_session("t", {}) as start:
        start()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.fixture
def data(broker: Kafka, topic: str) -> TopicData:
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(1200)
    return data


def test_a_load_shows_what_it_did_and_the_next_that_nothing_is_new(data: TopicData, tmp_path: Path) -> None:
    arguments = ["--topic", data.topic, "--to", str(tmp_path / "out"), "--group", "cli"]
    status, said = interrupted_while_writing(
        tmp_path / "out", "-b", data.bootstrap, *arguments, "--option", "maxRecordsPerPartition=5"
    )
    phases, last = said.splitlines()[:-1], said.splitlines()[-1]
    assert (status, last) == (130, "pykafka: interrupted; the next load loads what this one has not committed")
    assert [line.partition(" ")[2] for line in phases] == ["writing 1,200 offsets", "starting Spark"]

    first = run(*arguments, "-b", data.bootstrap, "--option", "maxRecordsPerPartition=100")
    told = [line.partition(" ")[2] for line in first.stderr.splitlines()]
    assert (first.returncode, told) == (0, ["writing 1,200 offsets", "starting Spark", "committing"]), "Spark is silent"
    assert ": 1,200 rows" in first.stdout
    assert "parquet in file://" in first.stdout
    assert pyarrow.dataset.dataset(tmp_path / "out", format="parquet").count_rows() == 1200
    second = run(*arguments, PYKAFKA_BOOTSTRAP_SERVER=data.bootstrap)
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("Nothing new for group cli")


def test_json_is_one_document_and_offsets_go_to_zookeeper(data: TopicData, tmp_path: Path, zookeeper: str) -> None:
    target = [
        "--to",
        str(tmp_path / "out"),
        "--group",
        "cli",
        "--offsets",
        "zookeeper",
        "--zookeeper",
        f"{zookeeper}/cli",
    ]
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={data.bootstrap}\nclient.id=loader\n", encoding="utf-8")
    loaded = run("--config", str(config), "--topic", data.topic, *target, "--format", "json", "--json")
    assert loaded.returncode == 0, loaded.stderr
    result = json.loads(loaded.stdout)
    assert (result["rows"], len(result["ranges"]), result["format"]) == (1200, 2, "json")
    recovered = run(*target, "--recover", "--json")
    assert json.loads(recovered.stdout) == {"recovered": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--group", "cli", "--offsets", "zookeeper", "--recover"],
            "--offsets zookeeper needs --zookeeper",
        ),
        (["--group", "a/b", "--recover"], "group 'a/b' cannot be used here"),
        (
            ["--group", "cli", "--topic", "t", "--format", "delta", "--history-keep", "2"],
            "--history-keep does not go with --format delta",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    failed = run("--to", str(tmp_path), *arguments)
    assert failed.returncode == 2
    assert failed.stderr.startswith("pykafka: ")
    assert message in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_an_unreachable_broker_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    arguments = ["-b", "127.0.0.1:1", "--topic", "t", "--to", str(tmp_path), "--group", "cli"]
    failed = run(*arguments, "--option", "kafka.default.api.timeout.ms=1000")
    assert failed.returncode == os.EX_TEMPFAIL
    assert "127.0.0.1:1" in failed.stderr.splitlines()[-1]
    assert "Traceback" not in failed.stderr


WAIT, ACT, USAGE = os.EX_TEMPFAIL, 1, 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConnectionFailed("no broker answers"), WAIT),
        (BrokerError(ErrorCode.not_leader_or_follower), WAIT),
        (LoadInterrupted("a task of Spark was lost"), WAIT),
        (OffsetStoreUnavailable("no ZooKeeper answers"), WAIT),
        (OffsetConflict("another load committed first"), WAIT),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out"), WAIT),
        (LoadError("a record does not fit"), ACT),
        (data_loss("DATA_LOSS", "records are gone"), ACT),
        (AuthenticationFailed("the login was refused"), ACT),
        (BrokerError(ErrorCode.topic_authorization_failed), ACT),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "out"), ACT),
        (ConfigError("an option is wrong"), USAGE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_the_exit_status_says_whether_running_it_again_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, status: int
) -> None:
    """Whatever the load raises, by the list that a service of loads goes by (outages.py)."""

    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr("spark_connector.load.run_load", fail)
    arguments = ["--topic", "t", "--to", str(tmp_path / "out"), "--group", "g", "-b", "127.0.0.1:9"]
    assert str(error) in error_of("load", *arguments, status=status)


@pytest.mark.slow
def test_of_loads_of_one_group_at_the_same_time_one_is_committed_and_the_others_may_run_again(
    broker: Kafka, topic: str, tmp_path: Path
) -> None:
    """As when two schedulers start them; so few records need no Spark."""
    TopicData(broker.bootstrap, topic, partitions=1).produce(200)
    place = ["--topic", topic, "--to", str(tmp_path / "out"), "--group", "g", "-b", broker.bootstrap]
    rivals = [
        subprocess.Popen([*COMMAND, *place], cwd=ROOT, env=environment(), stderr=subprocess.PIPE) for _ in range(4)
    ]
    said = [rival.communicate(timeout=250)[1].decode() for rival in rivals]
    assert {rival.returncode for rival in rivals} <= {0, WAIT}, said
    assert all("run it again" in told for rival, told in zip(rivals, said, strict=True) if rival.returncode == WAIT)
    assert pyarrow.dataset.dataset(tmp_path / "out", format="parquet").count_rows() == 200
    again = run(*place)
    assert (again.returncode, again.stdout.split(";")[0]) == (0, "Nothing new for group g")


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["--columns", "value.celcius"], "--columns value.celcius: 'value' has no field 'celcius'"),
        (["--format", "delta", "--columns", "value.celcius,key"], "'value' has no field 'celcius'"),
        (["--format", "delta", "--mode", "upsert", "--key", "nobody"], "--key names nobody"),
    ],
)
def test_what_needs_no_record_is_checked_before_a_load_says_that_it_writes(
    broker: Kafka, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], refused: str
) -> None:
    data = TopicData(broker.bootstrap, topic, partitions=1)
    data.produce(2)
    place = ["--to", str(tmp_path / "rows"), "--group", topic, "--topic", topic, "-b", broker.bootstrap]
    typed = ["--option", "valueFormat=json", "--option", "valueSchema=celsius INT"]
    with pytest.raises(SystemExit) as ended:
        main(["load", *place, *typed, *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert refused in said
    assert "writing" not in said
