"""The cells of the kill matrix: who is killed × what runs × where it writes; and the order in which they come up.

Pure. Cells that make no sense are refused when they are made, so that no round can pretend to test one. Used by
kill_round.py and tests/faults/test_kill_matrix.py.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.support import kill_rounds


class Victim(enum.Enum):
    """Who gets kill -9."""

    DRIVER = "driver"
    WORKER = "worker"
    EXECUTOR = "executor"
    BROKER = "broker"
    LEADER = "leader"
    COORDINATOR = "coordinator"
    ZOOKEEPER = "zookeeper"
    NAMENODE = "namenode"


OF_CLUSTER = (Victim.LEADER, Victim.COORDINATOR)
"""One of three brokers that have all data: the job goes on without noticing."""


class Job(enum.Enum):
    """What runs (kill_jobs.py)."""

    READ = "read"
    STREAM = "stream"
    SINK = "sink"
    LOAD = "load"


class Place(enum.Enum):
    """Where output, checkpoint and commit log lie."""

    LOCAL = "local"
    HDFS = "hdfs"


class Reading(enum.Enum):
    """Who reads the ranges of a micro-batch: the driver, one task together, or a task each."""

    PREFETCHED = "prefetched"
    SHARED = "shared"
    RANGES = "ranges"


@dataclass(frozen=True)
class Cell:
    """One cell. `separate_executors`: they are JVMs of their own (local-cluster) instead of threads of the driver.

    `reading` has a meaning for streams only, into files or a topic.
    """

    victim: Victim
    job: Job
    place: Place = Place.LOCAL
    separate_executors: bool = False
    reading: Reading = Reading.RANGES

    def __post_init__(self) -> None:
        if self.victim is Victim.NAMENODE and self.place is not Place.HDFS:
            raise ValueError(f"{self}: a job that writes to no HDFS does not notice the death of a NameNode")
        if self.victim is Victim.EXECUTOR and not self.separate_executors:
            raise ValueError(f"{self}: with a local master the executor is the driver; ask for separate executors")
        if self.victim is Victim.COORDINATOR and self.job is not Job.SINK:
            raise ValueError(f"{self}: only the sink has transactions and commits to a group")

    def __str__(self) -> str:
        name = f"{self.victim.value}-{self.job.value}-{self.place.value}"
        return f"{name}-{self.reading.value}" if self.job in (Job.STREAM, Job.SINK) else name


def _cells() -> tuple[Cell, ...]:
    """Every job under every victim on the local disk, the load on HDFS too, and all of them there for the NameNode.

    Streams with every way to read; the sink with the one that has a single task, and the one that has most.
    """
    places = {
        (victim, job): [Place.LOCAL]
        for victim in Victim
        for job in Job
        if job is Job.SINK or victim is not Victim.COORDINATOR
    }
    for victim, job in places:
        if victim is Victim.NAMENODE:
            places[victim, job] = [Place.HDFS]
        elif job is Job.LOAD and victim not in OF_CLUSTER:
            places[victim, job] = [Place.LOCAL, Place.HDFS]
    readings = {Job.STREAM: list(Reading), Job.SINK: [Reading.PREFETCHED, Reading.RANGES]}
    return tuple(
        Cell(victim, job, place, separate_executors=victim is Victim.EXECUTOR, reading=reading)
        for (victim, job), where in places.items()
        for place in where
        for reading in readings.get(job, [Reading.RANGES])
    )


CELLS = _cells()

FAST = (
    Cell(Victim.EXECUTOR, Job.STREAM, separate_executors=True, reading=Reading.PREFETCHED),
    Cell(Victim.WORKER, Job.READ, separate_executors=True),
    Cell(Victim.ZOOKEEPER, Job.LOAD, separate_executors=True),
    Cell(Victim.BROKER, Job.SINK, separate_executors=True),
    Cell(Victim.NAMENODE, Job.LOAD, Place.HDFS, separate_executors=True),
    Cell(Victim.LEADER, Job.STREAM, separate_executors=True),
    Cell(Victim.COORDINATOR, Job.SINK, separate_executors=True),
    Cell(Victim.DRIVER, Job.SINK, separate_executors=True, reading=Reading.PREFETCHED),
)
"""Every victim once and every job, on one Spark with separate executors; the driver last, for it costs another one."""


def schedule(rounds: int, seed: int, cells: Sequence[Cell] = CELLS) -> list[Cell]:
    """As that of kill_rounds.py. Every other time a cell comes up it is played with separate executors."""
    return [
        replace(cell, separate_executors=number // len(cells) % 2 == 1 or cell.separate_executors)
        for number, cell in enumerate(kill_rounds.schedule(rounds, seed, cells))
    ]
