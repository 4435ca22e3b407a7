"""Quix Streams, exactly once: each number, and how many its key had by then, out of a state with a changelog topic.

Arguments: bootstrap servers, a name for the group and its topics, a directory.
"""

from __future__ import annotations

import sys

from quixstreams import Application, State

bootstrap, name, directory = sys.argv[1:]
app = Application(
    broker_address=bootstrap,
    consumer_group=name,
    processing_guarantee="exactly-once",
    auto_offset_reset="earliest",
    state_dir=directory,
    commit_interval=0.2,
    consumer_extra_config={"session.timeout.ms": 6000},
    producer_extra_config={"transaction.timeout.ms": 10_000},
)


def count(number: int, state: State) -> str:
    found = state.get("count", 0) + 1
    state.set("count", found)
    return f"{number} {found}"


numbers = app.topic(f"{name}-in", key_deserializer="str", value_deserializer="json")
counted = app.topic(f"{name}-out", key_serializer="str", value_serializer="str")
app.dataframe(numbers).apply(count, stateful=True).to_topic(counted)
app.run()
