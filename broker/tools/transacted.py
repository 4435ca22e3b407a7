"""Sending in transactions while records come one by one: committed after so many, after so long, and at the end.

Called by `pykafka produce` and `pykafka perf produce`. What is raised inside aborts the open transaction.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from broker.client.producer import Producer
from broker.client.transaction_errors import FatalTransactionError
from broker.errors import PykafkaError

__all__ = ["transacted"]


@contextlib.contextmanager
def transacted(
    producer: Producer, *, records: int | None = None, duration_ms: int | None = None
) -> Iterator[Callable[[], None]]:
    """Yields what to call after each record; it ends a transaction that has `records`, or is `duration_ms` old.

    A producer without `transactional.id` sends as ever.
    """
    if not producer.settings.transactional_id:
        yield lambda: None
        return
    producer.init_transactions()
    producer.begin_transaction()
    count, begun = 0, time.monotonic()

    def sent() -> None:
        nonlocal count, begun
        count += 1
        full = records is not None and count >= records
        if full or (duration_ms is not None and (time.monotonic() - begun) * 1000 >= duration_ms):
            producer.commit_transaction()
            producer.begin_transaction()
            count, begun = 0, time.monotonic()

    try:
        yield sent
        producer.commit_transaction()
    except FatalTransactionError:
        raise
    except BaseException:
        with contextlib.suppress(PykafkaError):
            producer.abort_transaction()
        raise
