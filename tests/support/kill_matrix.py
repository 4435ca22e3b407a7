"""Many rounds of the kill matrix and the table of what came of them, as in tests/faults/test_kill_matrix.py.

    python -m tests.support.kill_matrix [--rounds N] [--seed N] [--cells leader-* …] [--directory D]

Every round prints a line; one that failed keeps its files.
"""

from __future__ import annotations

from tests.support.kill_cells import CELLS, schedule
from tests.support.kill_round import JobMatrix
from tests.support.kill_rounds import command

if __name__ == "__main__":
    command(__doc__, JobMatrix, CELLS, schedule)
