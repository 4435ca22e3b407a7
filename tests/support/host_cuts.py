"""The cuts that hosts live through while others work, and what is known afterwards: the tables of docs/promises.md.

Pure. tests/hosts/test_cuts.py and test_spark_cuts.py play the cuts; docs/promises.md shows what they printed, and
tests/hosts/test_cut_table.py holds the two against each other.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tests.support.host_clients import KEYS
from tests.support.host_counts import Numbers


class Cut(enum.Enum):
    """What happens, as the document names it; `seconds` is how long it lasts, 0 where it lasts for good."""

    NOTHING = ("nothing, for comparison", 20)
    LEADER = ("host of a leader silent", 30)
    COORDINATOR = ("host of the group's coordinator silent", 30)
    CONTROLLER = ("host of the controller silent", 30)
    ZOOKEEPER_SHORT = ("host of ZooKeeper silent", 2)
    ZOOKEEPER = ("host of ZooKeeper silent", 20)
    BROKERS = ("two brokers do not reach each other", 30)
    STORE = ("host of S3 silent", 10)
    CATALOG = ("host of Iceberg's catalog silent", 10)
    BROKER_AND_WORKER = ("a leader and a worker do not reach each other", 30)
    WORKER = ("host of a worker gone", 0)
    DRIVER = ("host of the driver gone, another one goes on", 0)

    @property
    def text(self) -> str:
        return self.value[0]

    @property
    def seconds(self) -> int:
        return self.value[1]

    def __str__(self) -> str:
        return f"{self.text}, {self.seconds} s" if self.seconds else self.text


CLIENTS = {"producer": "producer", "group": "group", "archive": "archive"}
SPARK = {
    "batch_read": "batch read",
    "exactly_once": "exactly-once write",
    "delta": "load into Delta",
    "iceberg": "load into Iceberg",
    "upsert": "upsert into Delta",
}
"""Jobs → their headings, as in `CLIENTS`."""
_SPARKS_OWN = (Cut.CATALOG, Cut.BROKER_AND_WORKER, Cut.WORKER, Cut.DRIVER)
CUTS_OF_SPARK = (Cut.NOTHING, Cut.LEADER, Cut.STORE, *_SPARKS_OWN)
CUTS_OF_CLIENTS = tuple(cut for cut in Cut if cut not in _SPARKS_OWN)
AT_LEAST_ONCE = {"group"}
"""What may find a record twice: a group that was read on without its last offsets."""


@dataclass
class Found:
    """Of one job after a cut: numbers, or keys of an upsert."""

    missing: list[int]
    doubled: list[int]
    pause: float
    """The longest time, in seconds, in which it did not get on."""
    failures: list[str] = field(default_factory=list)
    """The errors of tries that were made again."""

    def __str__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"{len(self.missing)} / {len(self.doubled)}, {self.pause:.0f} s{failed}"


@dataclass
class Outcome:
    cut: Cut
    acknowledged: int
    jobs: dict[str, Found]

    @property
    def problems(self) -> list[str]:
        """Records that were lost or, where that is promised, doubled."""
        found = [f"{job}: {one.missing[:9]} missing" for job, one in self.jobs.items() if one.missing]
        twice = [(job, one) for job, one in self.jobs.items() if one.doubled and job not in AT_LEAST_ONCE]
        return found + [f"{job}: {one.doubled[:9]} doubled" for job, one in twice]

    def __str__(self) -> str:
        return "| " + " | ".join([str(self.cut), f"{self.acknowledged:,}", *map(str, self.jobs.values())]) + " |"


def heading(jobs: Mapping[str, str]) -> str:
    return "| cut | acknowledged | " + " | ".join(jobs.values()) + " |"


def table(outcomes: Collection[Outcome], jobs: Mapping[str, str]) -> str:
    """In Markdown: of each job missing / doubled, the longest pause, and how many tries failed."""
    return "\n".join([heading(jobs), "| --- " * (len(jobs) + 2) + "|", *map(str, outcomes)])


def judge(found: Numbers, acknowledged: Collection[int]) -> tuple[list[int], list[int]]:
    """(missing, doubled) of what has all records."""
    return found.missing(acknowledged), list(found.doubled)


def judge_upsert(found: Numbers, acknowledged: Collection[int]) -> tuple[list[int], list[int]]:
    """(missing, doubled) keys of a table that has the last record of each key, or a later one."""
    rows: dict[int, list[int]] = {}
    for number in [*found.found, *found.doubled]:
        rows.setdefault(number % KEYS, []).append(number)
    wanted = {number % KEYS: number for number in sorted(acknowledged)}
    missing = [key for key, number in wanted.items() if max(rows.get(key, [-1])) < number]
    return missing, [key for key, those in rows.items() if len(those) > 1]
