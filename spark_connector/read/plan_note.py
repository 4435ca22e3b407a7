"""The line that a batch query says on standard error when it is planned: `pykafka: 3 topics, 12 partitions, …`.

A first query is silent for long: Spark starts Python, and only then are the brokers asked. So the process that plans
says what it has found. Spark passes its standard error on to the driver's, in all versions from 4.0 to 4.3. A batch is
planned once for a DataFrame (by Spark 4.0 for each action); micro-batches say nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence, Sized
from typing import Final

from spark_connector.read.planning import OffsetRange
from spark_connector.spark_worker import in_spark_worker

PLAN_VARIABLE: Final = "PYKAFKA_PLAN_LINE"
"""An environment variable of the driver; 0 switches the line off."""
_UNITS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def tell_plan(ranges: Sequence[OffsetRange], *, beside: Sized = ()) -> None:
    """Say what will be read, in the process that Spark has started to plan. Offsets are counted as records.

    `beside`: the files of a table that are read, too.
    """
    if in_spark_worker() and sys.stderr is not None and os.environ.get(PLAN_VARIABLE) != "0":
        files = f" beside {_counted(len(beside), 'file')} of the table" if beside else ""
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more: no reason to fail
            sys.stderr.write(f"pykafka: {describe_plan(ranges)}{files}\n")
            sys.stderr.flush()


def describe_plan(ranges: Sequence[OffsetRange]) -> str:
    """`3 topics, 12 partitions, 1.2 M records`."""
    partitions = {range.tp for range in ranges}
    records = sum(range.size for range in ranges)
    topics = _counted(len({tp.topic for tp in partitions}), "topic")
    return f"{topics}, {_counted(len(partitions), 'partition')}, {_rounded(records)} record{'s' * (records != 1)}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _rounded(number: int) -> str:
    """With two digits from ten thousand on."""
    if number < 10_000:
        return f"{number:,}"
    size, unit = next((size, unit) for size, unit in _UNITS if number >= size)
    return f"{number / size:.1f} {unit}" if number < 10 * size else f"{number / size:,.0f} {unit}"
