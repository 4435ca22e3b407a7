"""Faust, exactly once: each number, and how many its key had by then, out of a table that lives in a changelog topic.

Arguments: bootstrap servers, a name for the group and its topics, a directory.
"""

from __future__ import annotations

import sys

import faust

bootstrap, name, directory = sys.argv[1:]
app = faust.App(
    name,
    broker=f"kafka://{bootstrap}",
    datadir=directory,
    processing_guarantee="exactly_once",
    store="memory://",
    topic_partitions=2,
    topic_replication_factor=1,
    web_enabled=False,
    broker_session_timeout=10,
    broker_heartbeat_interval=1,
    broker_commit_interval=0.2,
)
numbers = app.topic(f"{name}-in", key_type=bytes, value_type=int, value_serializer="json")
counted = app.topic(f"{name}-out", key_type=bytes, value_type=str, value_serializer="raw")
counts = app.Table(f"{name}-counts", default=int, partitions=2, key_type=str, value_type=int)


@app.agent(numbers)
async def count(stream: faust.Stream[int]) -> None:
    async for event in stream.events():
        key = event.key.decode()
        counts[key] += 1
        await counted.send(key=event.key, value=f"{event.value} {counts[key]}")


sys.argv[1:] = ["worker", "--loglevel", "info"]
app.main()
