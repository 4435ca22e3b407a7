"""The kill matrix: driver, Python worker, executor, broker, ZooKeeper and NameNode × read, stream, sink and load.

kill -9 at random moments; the job is run again until it ends well, and then output equals input, by offset. One of
three brokers may die without the job noticing. Seven cells in every run, that have every job and every victim but the
NameNode among them; that one, and 200 rounds over all cells, in the slow set. tests/hdfs has the death of a NameNode
under a store, and of a driver that loads into HDFS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kill_cells import CELLS, FAST, Cell, Job, Place, Victim, schedule
from tests.support.kill_round import JobMatrix
from tests.support.kill_rounds import check_round, check_rounds, table
from tests.support.randomness import seed_of
from tests.support.requirements import Unavailable, give_up

ROUNDS = 200
SEEDS = (101, 103, 104, 105, 106, 118, 128, 109)  # of the fast cells: each draws one blow


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobMatrix]:
    """Servers and Sparks for the fast cells, which follow each other on them."""
    with JobMatrix(tmp_path_factory.mktemp("matrix")) as matrix:
        yield matrix


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, marks=[pytest.mark.hdfs, pytest.mark.slow] if cell.place is Place.HDFS else [], id=str(cell))
        for cell in FAST
    ],
)
def test_output_equals_input(matrix: JobMatrix, cell: Cell) -> None:
    try:
        check_round(matrix, cell, SEEDS[FAST.index(cell)])
    except Unavailable as missing:
        give_up(f"no HDFS: {missing}")


@pytest.mark.slow
@pytest.mark.hdfs
@pytest.mark.timeout(3600)
def test_output_equals_input_where_acls_and_quotas_decide(tmp_path: Path) -> None:
    """Each job has the rights that docs/how-to/rights.md says it needs, and is throttled."""
    with JobMatrix(tmp_path, guarded=True) as matrix:
        try:
            played = [matrix.play(cell, seed) for cell, seed in zip(FAST, SEEDS, strict=True)]
        except Unavailable as missing:
            give_up(f"no HDFS: {missing}")
        throttled_s = matrix.servers.throttled_s()
    print("\n".join(map(str, played)))
    print(f"{table(played)}\nthrottled for {throttled_s:.1f} s")
    assert [str(one) for one in played if one.problems] == []
    assert sum(one.kills > 0 for one in played) >= len(FAST) - 2, "too many jobs ended before their blow"
    assert throttled_s > 0


@pytest.mark.slow
@pytest.mark.hdfs
@pytest.mark.timeout(4 * 3600)
def test_output_equals_input_over_200_rounds(tmp_path: Path) -> None:
    try:
        check_rounds(JobMatrix(tmp_path), schedule(ROUNDS, seed_of(1)), seed_of(1))
    except Unavailable as missing:
        give_up(f"no HDFS: {missing}")


def test_the_fast_cells_have_every_victim_and_every_job() -> None:
    assert {cell.victim for cell in FAST} == set(Victim)
    assert {cell.job for cell in FAST} == set(Job)
    assert len(set(FAST)) == 8


def test_every_job_meets_every_victim() -> None:
    every = {(victim, job) for victim in Victim for job in Job}
    without_coordinator = {(Victim.COORDINATOR, job) for job in Job if job is not Job.SINK}
    assert {(cell.victim, cell.job) for cell in CELLS} == every - without_coordinator
    assert len({str(cell) for cell in CELLS}) == len(CELLS)


def test_every_other_time_a_cell_has_separate_executors() -> None:
    for number, cell in enumerate(schedule(3 * len(CELLS), seed=1)):
        assert cell.separate_executors == (number // len(CELLS) == 1 or cell.victim is Victim.EXECUTOR)


@pytest.mark.parametrize("job", Job)
def test_a_cell_that_makes_no_sense_is_refused(job: Job) -> None:
    with pytest.raises(ValueError, match="does not notice the death of a NameNode"):
        Cell(Victim.NAMENODE, job, Place.LOCAL)
    with pytest.raises(ValueError, match="the executor is the driver"):
        Cell(Victim.EXECUTOR, job)
    if job is not Job.SINK:
        with pytest.raises(ValueError, match="only the sink has transactions"):
            Cell(Victim.COORDINATOR, job)
