"""What a task of a write tells the driver, and which attempt it was: all that the driver decides by.

Spark passes it from the tasks to the process that commits, which imports nothing else of what tasks do.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.client.transaction_requests import TransactionHandle
from broker.protocol.topic_partition import TopicPartition


@dataclass(frozen=True)
class Attempt:
    """The identity of an attempt. `sink`: see SinkNames; `batch_id` is None in a batch write without `txnAppId`.

    `tries` is Spark's attemptNumber: how many attempts failed before. `task_id` is its taskAttemptId. `run` identifies
    the run of a query for a write inside foreachBatch; otherwise it is 0.
    """

    sink: str
    batch_id: int | None
    partition: int
    tries: int = 0
    task_id: int = 0
    run: int = 0


@dataclass(frozen=True)
class TaskReport:
    """The result of a task. The driver decides by these reports only. Times in ms since 1970."""

    attempt: Attempt
    exactly_once: bool
    rows: int = 0
    handle: TransactionHandle | None = None
    """The open transaction; None when nothing was written, or without a transaction."""
    written_to: TopicPartition | None = None
    """The first partition in the transaction, of another topic than that of bad rows if there is one."""
    number: int = 0
    """The number of the attempt at this partition, over all batches and drivers of the query; 0 in a batch write."""
    opened_ms: int = 0
    decided: int | None = None
    """The decided batch that the task found, for which reason it wrote nothing."""
