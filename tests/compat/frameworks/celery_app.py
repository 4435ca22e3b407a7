"""Celery over kombu's transport `confluentkafka`: notes numbers in a file, and acknowledges one when it is noted.

Arguments: bootstrap servers, a name for the queue, a directory; and `send` with two numbers, to have those noted that
lie between them, or nothing, to be the worker.
"""

from __future__ import annotations

import sys
from pathlib import Path

from celery import Celery

bootstrap, name, directory, *command = sys.argv[1:]
app = Celery(name, broker=f"confluentkafka://{bootstrap}")
app.conf.update(
    task_default_queue=name,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"kafka_consumer_config": {"session.timeout.ms": 6000}},
)


@app.task(name="note")
def note(number: int) -> None:
    with Path(directory, "noted").open("a") as file:
        file.write(f"{number}\n")


if command:
    first, end = map(int, command[1:])
    for number in range(first, end):
        note.delay(number)
else:
    app.worker_main(["worker", "--pool=solo", "--loglevel=info", "--without-mingle", "--without-gossip"])
