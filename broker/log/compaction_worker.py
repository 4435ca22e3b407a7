"""The process that compacts: `python -m broker.log.compaction_worker`, started by compaction_process.py.

Reads plans from its standard input and writes what comes of them to its standard output, pickled, one compaction at a
time. It runs at low priority and ends with the broker that started it: at the end of its input, or in the middle of a
compaction when it finds itself with another parent.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import BinaryIO

from broker.errors import CorruptBatch
from broker.log.compaction import compact

__all__ = ["main"]

_NICE = 10


class _Orphaned(Exception):
    """The broker is gone."""


def main(plans: BinaryIO, answers: BinaryIO) -> None:
    """Serve until `plans` ends."""
    parent = os.getppid()

    def check() -> None:
        if os.getppid() != parent:
            raise _Orphaned

    while True:
        try:
            plan = pickle.load(plans)
        except EOFError:
            return
        try:
            for answer in compact(plan, check):
                _send(answers, answer)
        except _Orphaned:
            raise
        except OSError as error:
            _send(answers, error)
        except CorruptBatch as error:
            _send(answers, CorruptBatch(error.message))
        except Exception as error:  # a fault of ours: the same plan would meet it again
            traceback.print_exc()
            _send(answers, CorruptBatch(f"{type(error).__name__}: {error}"))


def _send(answers: BinaryIO, answer: object) -> None:
    pickle.dump(answer, answers)
    answers.flush()


if __name__ == "__main__":
    os.nice(_NICE)
    try:
        main(sys.stdin.buffer, sys.stdout.buffer)
    except (_Orphaned, BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
