"""The cuts that hosts live through while clients work, and what is known afterwards: the table of docs/promises.md.

Pure. tests/hosts/test_cuts.py plays the cuts; docs/promises.md shows what it printed, and tests/hosts/test_cut_table.py
holds the two against each other.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from tests.support.host_counts import Numbers


class Cut(enum.Enum):
    """What happens while clients work, as the document names it; `seconds` is how long it lasts."""

    NOTHING = ("nothing, for comparison", 20)
    LEADER = ("host of a leader silent", 30)
    COORDINATOR = ("host of the group's coordinator silent", 30)
    CONTROLLER = ("host of the controller silent", 30)
    ZOOKEEPER_SHORT = ("host of ZooKeeper silent", 2)
    ZOOKEEPER = ("host of ZooKeeper silent", 20)
    BROKERS = ("two brokers do not reach each other", 30)
    STORE = ("host of S3 silent", 10)

    @property
    def text(self) -> str:
        return self.value[0]

    @property
    def seconds(self) -> int:
        return self.value[1]

    def __str__(self) -> str:
        return f"{self.text}, {self.seconds} s"


JOBS = ("producer", "group", "archive")
AT_LEAST_ONCE = {"group"}
"""What may find a record twice: a group that was read on without its last offsets."""


@dataclass
class Found:
    """The numbers of one job after a cut."""

    missing: list[int]
    doubled: list[int]
    pause: float
    """The longest time, in seconds, in which it did not get on."""

    def __str__(self) -> str:
        return f"{len(self.missing)} / {len(self.doubled)}, {self.pause:.0f} s"


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
        return (
            "| " + " | ".join([str(self.cut), f"{self.acknowledged:,}", *(str(self.jobs[job]) for job in JOBS)]) + " |"
        )


HEADING = f"| cut | acknowledged | {' | '.join(JOBS)} |"


def table(outcomes: Collection[Outcome]) -> str:
    """In Markdown: of each job missing / doubled, and the longest pause."""
    return "\n".join([HEADING, "| --- " * (len(JOBS) + 2) + "|", *map(str, outcomes)])


def judge(found: Numbers, acknowledged: Collection[int]) -> tuple[list[int], list[int]]:
    """(missing, doubled)."""
    return found.missing(acknowledged), list(found.doubled)
