"""One round of the kill matrix: a job over new data, blows at random moments, the job again until it ends well, audit.

`JobMatrix` holds what rounds share (servers, Sparks, how long jobs take); its `play` runs a round and says what came of
it. All chances of a round are drawn from its seed; moments are shares of the time such a job took before, or fall
shortly after something the job tells of. Used by kill_matrix.py.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.cluster_metadata import CoordinatorKind
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage, open_storage
from spark_connector.write.write_plan import SinkNames
from tests.support.hdfs import CLIENT_OPTIONS as HDFS_CLIENT_OPTIONS
from tests.support.job_output import committed_copies, rows_of_load, rows_of_read, rows_of_stream, wait_until_stable
from tests.support.kill_cells import OF_CLUSTER, Cell, Job, Place, Reading, Victim
from tests.support.kill_host import Attempt, SparkHost
from tests.support.kill_rounds import Matrix, Played
from tests.support.kill_servers import Servers
from tests.support.record_audit import audit_copies, audit_rows
from tests.support.spark_home import shared_spark_home
from tests.support.topic_data import TopicData
from tests.support.topics import DEFAULT_REPLICATION

# --- What a job of the kill matrix works on: its topic, its arguments, where it writes, and the audit of that.
# One `Work` per round, all its names its own. `audit` is told whether the job has ended well: until then rows may be
# missing, but none may be there twice, strange or damaged. Used by kill_round.py.

_PARTITIONS = 3
_COPY_PARTITIONS = 2
_READING = {
    Reading.PREFETCHED: {"maxPrefetchedRecords": "1000000"},
    Reading.SHARED: {"maxPrefetchedRecords": "0", "minBytesPerPartition": "1g"},
    Reading.RANGES: {"maxPrefetchedRecords": "0", "minBytesPerPartition": "0"},
}


class Work(abc.ABC):
    """One job's input and output."""

    job: Job
    records = 2_400  # per run that is aimed at
    cap = 600  # offsets per micro-batch or task
    rights: tuple[str, ...]
    """The jobs of job_rights.py that it does."""
    events: tuple[str, ...] = ()
    """What the job tells of on its way, to strike after."""

    def __init__(self, cell: Cell, servers: Servers, directory: Path, number: int) -> None:
        self.cell, self.servers = cell, servers
        self.topic = f"round-{number}-{cell}"
        on_hdfs = cell.place is Place.HDFS
        self.root = f"{servers.hdfs.uri}/matrix/{self.topic}" if on_hdfs else str(directory / self.topic)
        self._storage_options = servers.hdfs.client_options if on_hdfs else {}
        self._local = None if on_hdfs else directory / self.topic
        self.bootstrap = servers.bootstrap(cell.victim)
        self._data = TopicData(self.bootstrap, self.topic, partitions=_PARTITIONS)
        names = {"topic": self.topic, "sink": f"{self.topic}-copy", "group": self.topic, "prefix": "pykafka-sink-"}
        self._client = servers.client(cell.victim, number, self.rights, names)

    def produce(self) -> None:
        """More for the job to do."""
        self._data.produce(self.records)

    def arguments(self) -> dict[str, Any]:
        """What kill_jobs.py is given, the same for every run of the round."""
        return {
            "client": self._client,
            "topic": self.topic,
            "cap": self.cap,
            "output": f"{self.root}/output",
            "checkpoint": f"{self.root}/checkpoint",
            "reading": _READING[self.cell.reading],
        }

    @abc.abstractmethod
    def audit(self, *, complete: bool) -> list[str]:
        """What is wrong with the output."""

    def remove_torn_checkpoint(self) -> None:
        """Take away the file over which Spark stumbles (docs/decisions/build.md); nothing else may be there."""
        offsets = self._storage("checkpoint/offsets")
        names = offsets.names("")
        assert names, "the checkpoint is empty, and Spark says it is not"
        assert all(name.startswith(".0.") and name.endswith(".tmp") for name in names), names
        for name in names:
            offsets.remove(name)

    def broker_to_kill(self, dice: random.Random) -> int:
        """The leader of one of its partitions, of which one is drawn; in a cluster of three."""
        partitions = [TopicPartition(topic, partition) for topic in self._topics() for partition in range(2)]
        return self.servers.cluster.leader(dice.choice(partitions))

    def written(self) -> int | None:
        """Bytes that lie where the job writes, finished or not; they grow in the moments that matter. None on HDFS."""
        return None if self._local is None else _size(self._local / "output")

    def remove(self) -> None:
        """Topics and files, when nobody needs to look at them."""
        admin = self._admin()
        for answer in admin.delete_topics(self._topics()).values():
            answer.result(60)
        if self._local is not None:
            shutil.rmtree(self._local, ignore_errors=True)
        else:
            self._storage("").remove("output")
            self._storage("").remove("checkpoint")

    def _topics(self) -> list[str]:
        return [self.topic]

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _storage(self, path: str) -> Storage:
        return open_storage(f"{self.root}/{path}".rstrip("/"), self._storage_options)

    def _audit_rows(self, rows: list[Any], complete: bool) -> list[str]:
        return audit_rows(rows, self.topic, self._data.ends, TopicData.record, complete=complete)


class _Read(Work):
    job = Job.READ
    rights = ("batch read",)
    records, cap = 6_000, 1_000

    def audit(self, *, complete: bool) -> list[str]:
        """Plain parquet makes no promise about what lies there while it is being written."""
        return self._audit_rows(rows_of_read(self._storage("output")), complete=True) if complete else []


class _Stream(Work):
    job = Job.STREAM
    rights = ("stream",)
    events = ("batch 1", "batch 2", "batch 3")

    def audit(self, *, complete: bool) -> list[str]:
        return self._audit_rows(rows_of_stream(self._storage("output")), complete)


class _Load(Work):
    job = Job.LOAD
    rights = ("load",)
    records = 24_000  # so many that tasks of Spark write them, not the driver
    events = ("plan", "write", "commit")

    def arguments(self) -> dict[str, Any]:
        """Offsets are kept where the blow falls: in ZooKeeper for its death, else beside the output."""
        in_zookeeper = self.cell.victim in (Victim.ZOOKEEPER, Victim.DRIVER)
        return {
            "bootstrap_servers": self._client["kafka.bootstrap.servers"],
            "topic": self.topic,
            "to": f"{self.root}/output",
            "group": self.topic,
            "offsets": "zookeeper" if in_zookeeper else "files",
            "zookeeper_connect": f"{self.servers.zookeeper}/loads" if in_zookeeper else None,
            "storage_options": self._storage_options,
            "options": {**self._client, "maxRecordsPerPartition": "4000"},  # several tasks
        }

    def audit(self, *, complete: bool) -> list[str]:
        return self._audit_rows(rows_of_load(self._storage("output")), complete)


class _Sink(Work):
    job = Job.SINK
    rights = ("stream", "stream write, exactly once")
    events = ("batch 1", "batch 2", "batch 3")

    def __init__(self, cell: Cell, servers: Servers, directory: Path, number: int) -> None:
        super().__init__(cell, servers, directory, number)
        self._copy = f"{self.topic}-copy"
        admin = self._admin()
        admin.create_topics([NewTopic(self._copy, _COPY_PARTITIONS, DEFAULT_REPLICATION)])[self._copy].result(30)

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "output": self._copy}

    def audit(self, *, complete: bool) -> list[str]:
        """Read back by confluent-kafka as read_committed."""
        left_open = wait_until_stable(self.bootstrap, self._copy, _COPY_PARTITIONS) if complete else None
        copies = committed_copies(self.bootstrap, self._copy, _COPY_PARTITIONS)
        problems = audit_copies(copies, self.topic, self._data.ends, TopicData.record, complete=complete)
        return [*([left_open] if left_open else []), *problems]

    def broker_to_kill(self, dice: random.Random) -> int:
        """A leader, or as a coordinator that of the decisions or of one of the transactions."""
        if self.cell.victim is Victim.LEADER:
            return super().broker_to_kill(dice)
        metadata = (
            self._storage("checkpoint").read("metadata") if "metadata" in self._storage("checkpoint").names("") else b""
        )
        names = SinkNames("pykafka-sink", json.loads(metadata)["id"] if metadata else "not yet")
        cluster, kind = self.servers.cluster, CoordinatorKind.TRANSACTION
        drawn = dice.randrange(4)
        if drawn == 0:
            return cluster.coordinator(names.group())
        return cluster.coordinator(names.of_driver if drawn == 1 else names.of_attempt(drawn - 2, 1), kind)

    def written(self) -> int:
        """Of the partitions' logs, what is not committed included."""
        logs = self.servers.logs(self.cell.victim)
        return sum(_size(log / f"{self._copy}-{partition}") for log in logs for partition in range(_COPY_PARTITIONS))

    def _topics(self) -> list[str]:
        return [self.topic, self._copy]


_WORKS: dict[Job, type[Work]] = {work.job: work for work in (_Read, _Stream, _Load, _Sink)}


def work_of(cell: Cell, servers: Servers, directory: Path, number: int) -> Work:
    """New work for a cell; `number` makes its names unique."""
    return _WORKS[cell.job](cell, servers, directory, number)


def _size(directory: Path) -> int:
    """Bytes of the log segments or data files below it; files may come and go meanwhile."""
    size = 0
    for parent, _, names in os.walk(directory):  # unlike rglob it passes over a directory that goes while it looks
        for name in names:
            if name.endswith((".log", ".parquet")):
                with contextlib.suppress(OSError):
                    size += os.stat(os.path.join(parent, name)).st_size
    return size


Say = Callable[[str], None]

_HANGS = 400.0  # seconds without an end; a cold job takes 10 on an idle machine, and 150 were seen on a busy one
_TRIES = 5  # runs of a job after the last blow
_AIMS = 4  # runs that may end before their blow falls
_SECOND_BLOW = 0.25  # share of the rounds
_TASK_WORKERS = 0.7  # share of the blows at Python workers that hit one that runs tasks
_LONGEST_OUTAGE = 2.0  # seconds between the death of a server and its start
_AFTER_EVENT = 0.3  # seconds at least; a micro-batch may last longer
_WATCHED = 0.5  # share of the blows that wait until output is being written
_AFTER_WRITE = 0.3  # seconds
_SLOW_AUDIT = 5.0  # seconds from which on it is told: something was still open
_FIRST_GUESS = 5.0  # seconds a job takes


@dataclass
class JobKills(Played):
    """`tries` are all runs of the job, `aims` those that were aimed at."""

    tries: int = 0
    aims: int = 0

    shown: ClassVar = {"kills": "kills", "restarts": "restarts"}

    @property
    def restarts(self) -> int:
        """Runs beyond one."""
        return self.tries - 1


class JobMatrix(Matrix[JobKills]):
    """Servers and Sparks that rounds share. `guarded`: as of `Servers`."""

    played = JobKills

    def __init__(self, directory: Path, *, guarded: bool = False) -> None:
        super().__init__(directory)
        self.servers = Servers(directory, guarded=guarded)
        self.home = shared_spark_home()
        self.home.archive_classes()
        self._hosts: dict[bool, SparkHost] = {}
        self._fresh: set[SparkHost] = set()
        self._graves: list[SparkHost] = []
        self._pace: dict[tuple[Job, bool, bool], float] = {}

    def _play(self, played: JobKills) -> None:
        """The files of a round stay when it failed. Raises Unavailable where there can be no HDFS."""
        work = work_of(played.cell, self.servers, self._directory / "output", next(self._numbers))
        try:
            _Round(self, work, played).run()
        except Exception:
            for host in self._hosts.values():  # whatever they are in the middle of
                host.kill_driver()
            raise
        if not played.problems:
            work.remove()

    def _end(self, played: JobKills) -> None:
        for host in self._graves:
            host.close()
        self._graves.clear()

    def host(self, separate_executors: bool) -> SparkHost:
        """A Spark that takes jobs; a new one when the last is dead."""
        host = self._hosts.get(separate_executors)
        if host is not None and host.alive:
            return host
        if host is not None:
            self._graves.append(host)
        settings = {f"spark.hadoop.{name}": value for name, value in HDFS_CLIENT_OPTIONS.items()}
        place = self._directory / f"spark-{next(self._numbers)}"
        place.mkdir()
        host = SparkHost(self.home, place, separate_executors=separate_executors, settings=settings)
        self._hosts[separate_executors] = host
        self._fresh.add(host)
        return host.wait_until_ready()

    def begin(self, host: SparkHost, work: Work) -> tuple[Attempt, float]:
        """Start the job; gives its usual duration too. A first job on a Spark takes longer."""
        pace = self._pace.get(self._kind(host, work), _FIRST_GUESS)
        return host.begin(work.job.value, work.arguments()), pace

    def learn(self, host: SparkHost, work: Work, seconds: float, *, whole: bool) -> None:
        """An undisturbed run took so long; one that only finished what another began tells the least it takes."""
        kind = self._kind(host, work)
        self._pace[kind] = seconds if whole else max(seconds, self._pace.get(kind, _FIRST_GUESS))

    def used(self, host: SparkHost) -> None:
        self._fresh.discard(host)

    def _kind(self, host: SparkHost, work: Work) -> tuple[Job, bool, bool]:
        return work.job, host.separate_executors, host in self._fresh

    def __enter__(self) -> Self:
        self._running.enter_context(self.servers)
        self._running.callback(self._close_hosts)
        return self

    def _close_hosts(self) -> None:
        with contextlib.ExitStack() as closing:
            for host in [*self._graves, *self._hosts.values()]:
                closing.callback(host.close)


class _Round:
    """The chances and the course of one round."""

    def __init__(self, matrix: JobMatrix, work: Work, played: JobKills) -> None:
        self._matrix, self._work, self._played = matrix, work, played
        self._cell = played.cell
        self._dice = random.Random(played.seed)

    def run(self) -> None:
        """Raises AssertionError for a job that hangs or never ends well; what the audit finds goes to `played`."""
        if self._cell.victim in OF_CLUSTER:
            self._matrix.servers.cluster.wait_until_healed()
        self._work.produce()
        blows = 1 + (self._dice.random() < _SECOND_BLOW)
        finished = False
        while self._played.kills < blows and self._played.aims < _AIMS:
            if finished:  # before the blow fell: more work, another aim
                self._work.produce()
            finished = self._attempt(aim=True)
            self._audit(complete=finished)
        for _ in range(_TRIES):
            if finished:
                break
            finished = self._attempt(aim=False)
        assert finished, f"the job did not end well in {_TRIES} tries after the last blow"
        self._audit(complete=True)

    def _attempt(self, *, aim: bool) -> bool:
        """One run of the job, with a blow if it comes in time; whether it ended well."""
        played = self._played
        host = self._matrix.host(self._cell.separate_executors)
        attempt, pace = self._matrix.begin(host, self._work)
        played.tries += 1
        struck = False
        if aim:
            played.aims += 1
            struck = self._blow(host, attempt, pace)
            played.kills += struck
        if not host.follow(attempt, time.monotonic() + _HANGS):
            stacks = host.stacks()
            (host.directory / "stacks.txt").write_text(stacks)
            host.kill_driver()
            raise AssertionError(f"hangs: no end in {_HANGS:g} s, see {host.directory}/stacks.txt\n{stacks[:20_000]}")
        killed = struck and self._cell.victim is Victim.DRIVER
        assert killed or attempt.error != "gone", f"the driver died by itself\n{host.log_tail()}"
        assert played.kills or attempt.error is None, f"the job failed before anybody was killed: {attempt.error}"
        if self._cell.victim in OF_CLUSTER:
            assert attempt.error is None, f"the job noticed that one of three brokers died: {attempt.error}"
        if not struck and attempt.error is None:
            self._matrix.learn(host, self._work, attempt.seconds, whole=aim)
        self._matrix.used(host)
        if "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY" in (attempt.error or ""):
            self._work.remove_torn_checkpoint()  # as Spark tells its users to
        ended = "ran well" if attempt.error is None else f"failed: {attempt.error[:150]}"
        played.steps.append(f"{ended} in {attempt.seconds:.1f} s")
        return attempt.error is None

    def _blow(self, host: SparkHost, attempt: Attempt, pace: float) -> bool:
        """Wait for the moment and strike; False when the job, or all victims, ended before."""
        event = self._dice.choice([None, *self._work.events])
        watch, share = self._dice.random() < _WATCHED, self._dice.random()
        latest = attempt.begun + _HANGS
        ended = event is not None and host.follow_to(attempt, event, latest)
        before = self._work.written()
        if watch and before is not None:
            while not ended and self._work.written() == before and time.monotonic() < latest:
                ended = host.follow(attempt, time.monotonic() + 0.005)
            moment, delay = f"{share * _AFTER_WRITE:.2f} s after the first write", share * _AFTER_WRITE
        else:
            delay = share * (pace if event is None else max(pace / len(self._work.events), _AFTER_EVENT))
            moment = f"at {delay:.2f} s of about {pace:.1f}" if event is None else f"{delay:.2f} s"
        moment += f" after {event}" if event is not None else ""
        ended = ended or host.follow(attempt, time.monotonic() + delay)
        hit = not ended and self._strike(host, attempt)
        self._played.steps.append(f"{'kill' if hit else 'missed'} {moment}")
        return hit

    def _strike(self, host: SparkHost, attempt: Attempt) -> bool:
        victim = self._cell.victim
        if victim is Victim.DRIVER:
            return host.kill_driver()
        if victim in (Victim.WORKER, Victim.EXECUTOR):
            find = host.executors
            if victim is Victim.WORKER:  # most of all there are idle
                find = host.task_workers if self._dice.random() < _TASK_WORKERS else host.workers
            while not host.follow(attempt, time.monotonic() + 0.01):
                if (found := find()) and host.kill(self._dice.choice(sorted(found))):
                    return True
            return False
        if victim in OF_CLUSTER:
            self._kill_of_cluster(host, attempt)
            return True
        self._matrix.servers.kill(victim)
        time.sleep(self._dice.uniform(0, _LONGEST_OUTAGE))  # how long it stays away is drawn too
        self._matrix.servers.restart(victim)
        return True

    def _kill_of_cluster(self, host: SparkHost, attempt: Attempt) -> None:
        """Kill a broker; every other time it comes back before the job has ended."""
        cluster, broker_id = self._matrix.servers.cluster, self._work.broker_to_kill(self._dice)
        cluster.brokers[broker_id].kill()
        outage_s = self._dice.uniform(0, _LONGEST_OUTAGE)
        host.follow(attempt, time.monotonic() + (outage_s if self._dice.random() < 0.5 else _HANGS))
        cluster.brokers[broker_id].start()
        self._played.steps.append(f"broker {broker_id} was away")

    def _audit(self, *, complete: bool) -> None:
        begun = time.monotonic()
        for problem in self._work.audit(complete=complete):
            if problem not in self._played.problems:
                self._played.problems.append(problem)
        if (seconds := time.monotonic() - begun) > _SLOW_AUDIT:
            self._played.steps.append(f"audited in {seconds:.1f} s")
