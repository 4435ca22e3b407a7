"""Members of kafka-python, each polled by a thread of its own, as applications do.

kafka-python 3.0.12 throws away a join that ends between two polls of a member, and joins again: members that one thread
polls by turns may keep each other rebalancing for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from kafka import KafkaConsumer


@contextmanager
def polled(*members: KafkaConsumer) -> Iterator[None]:
    """Poll them until the block ends, and drop what they read; raises what a poll raised."""
    ended = threading.Event()

    def poll(member: KafkaConsumer) -> None:
        while not ended.is_set():
            member.poll(200)

    with ThreadPoolExecutor(len(members)) as pool:
        polling = [pool.submit(poll, member) for member in members]
        try:
            yield
        finally:
            ended.set()
    for future in polling:
        future.result()
