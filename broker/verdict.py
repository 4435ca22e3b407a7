"""The answer of a check: `ok`, `mismatch` or `unknown`. Every check of the product gives one of the three.

`ok` means that all was looked at and is as it must be. What could not be looked at (a column that is missing, a file
that may not be read, a broker or a store that does not answer, records that retention has deleted) is `unknown`, and
the check says what it was. Something wrong counts for more than something unread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

from broker.errors import PykafkaError


class Verdict(StrEnum):
    OK = "ok"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, problems: Collection[object], unread: Collection[object]) -> Verdict:
        """Of a check that has found these problems, and could not look at what `unread` says."""
        return cls.MISMATCH if problems else cls.UNKNOWN if unread else cls.OK

    @classmethod
    def of_all(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """Of a check that is made of others."""
        found = set(verdicts)
        return next((one for one in (cls.MISMATCH, cls.UNKNOWN) if one in found), cls.OK)

    @property
    def exit_status(self) -> int:
        """Of a command that checks. 2 is wrong usage, for all commands."""
        return {Verdict.OK: 0, Verdict.MISMATCH: 1, Verdict.UNKNOWN: 3}[self]


class CheckFailed(PykafkaError):
    """A check could not look at anything: nothing is known. Its cause is the error that ended it."""

    exit_status = Verdict.UNKNOWN.exit_status
