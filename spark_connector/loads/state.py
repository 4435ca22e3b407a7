"""What a crash can have left behind, and what to do about it. Pure: facts in, steps out.

loads/commit.py gathers the facts (the newest commit, the staged attempts) and carries the steps out, again and again
until none is left. The rules rest on one invariant: attempts at number N+1 start only after number N is committed
and published, so only the newest commit can be unpublished, and only attempts at the next number can still succeed.
(A stream that commits to the same group does not wait: before a discard loads/commit.py asks the log what it would be.)

    newest commit not yet published      → publish it: its data is complete, only the rename is missing
    attempt at a number already taken    → discard it: whoever runs it, it can never be committed
    attempt at the next number, complete → commit it: it is what its owner would do next
    attempt at the next number, partial  → leave it: its owner may be alive; it goes when the number is taken
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Act", "Newest", "Staged", "Step", "repair_steps"]


class Act(enum.Enum):
    """What can be done to a load."""

    PUBLISH = "publish"
    COMMIT = "commit"
    DISCARD = "discard"


@dataclass(frozen=True)
class Step:
    act: Act
    load_id: str


@dataclass(frozen=True)
class Newest:
    """The newest entry of the commit log; number 0 when there is none. `load_id` is None for one that is no load."""

    sequence: int = 0
    load_id: str | None = None
    published: bool = True


@dataclass(frozen=True)
class Staged:
    """A directory in the staging area. `complete`: its manifest is written."""

    load_id: str
    sequence: int
    complete: bool


def repair_steps(newest: Newest, staged: Collection[Staged]) -> list[Step]:
    """The steps that can be taken at once, in order; after a COMMIT look again. Empty when all is in order."""
    if newest.load_id is not None and not newest.published:
        return [Step(Act.PUBLISH, newest.load_id)]
    in_order = sorted(staged, key=lambda attempt: (attempt.sequence, attempt.load_id))
    steps = [Step(Act.DISCARD, attempt.load_id) for attempt in in_order if attempt.sequence <= newest.sequence]
    ready = [a for a in in_order if a.complete and a.sequence == newest.sequence + 1]
    if ready:
        steps.append(Step(Act.COMMIT, ready[0].load_id))
    return steps
