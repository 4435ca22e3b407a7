"""What a crash can leave behind, and what to do about it (L4). Pure: facts in, steps out.

directory.py collects the facts (the newest commit, the staged attempts) and carries out the steps until none is left.

    newest commit, not yet published     → publish it: its data is complete, only the rename is missing
    attempt at a number that is taken    → discard it: it can never be committed
    attempt at the next number, complete → commit it: its owner would do this next
    attempt at the next number, partial  → leave it: its owner may be alive. It is discarded when the number is taken.

The rules rest on one invariant: attempts at number N+1 start only after number N is committed and published. So only
the newest commit can be unpublished, and only attempts at the next number can still succeed. (A stream that commits to
the same group does not wait for publishing. Therefore directory.py looks into the log before it discards.)
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from spark_connector.loads.commit import Newest


class Act(enum.Enum):
    """A step of a repair."""

    PUBLISH = "publish"
    COMMIT = "commit"
    DISCARD = "discard"


@dataclass(frozen=True)
class Step:
    act: Act
    load_id: str


@dataclass(frozen=True)
class StagedLoad:
    """A directory in the staging area. `complete`: its manifest and all its files are written."""

    load_id: str
    sequence: int
    complete: bool


def repair_steps(newest: Newest, staged: Collection[StagedLoad]) -> list[Step]:
    """The steps to take now, in order; empty when nothing is left to do. After a COMMIT, collect the facts again."""
    if newest.load_id is not None and not newest.published:
        return [Step(Act.PUBLISH, newest.load_id)]
    in_order = sorted(staged, key=lambda attempt: (attempt.sequence, attempt.load_id))
    steps = [Step(Act.DISCARD, attempt.load_id) for attempt in in_order if attempt.sequence <= newest.sequence]
    ready = [a for a in in_order if a.complete and a.sequence == newest.sequence + 1]
    if ready:
        steps.append(Step(Act.COMMIT, ready[0].load_id))
    return steps
