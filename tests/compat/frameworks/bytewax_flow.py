"""Bytewax: each number, and how many its key had by then, out of a state in SQLite that has the position, too.

Arguments: bootstrap servers, a name for the topics, a directory.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from bytewax import operators
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

bootstrap, name, directory = sys.argv[1:]


def count(before: int | None, number: int) -> tuple[int, str]:
    found = (before or 0) + 1
    return found, f"{number} {found}"


flow = Dataflow("count")
records = operators.input("in", flow, KafkaSource([bootstrap], [f"{name}-in"], tail=True, batch_size=50))
numbers = operators.map("numbers", records, lambda record: (record.key.decode(), int(record.value)))
counted = operators.stateful_map("count", numbers, count)
messages = operators.map("messages", counted, lambda pair: KafkaSinkMessage(pair[0].encode(), pair[1].encode()))
operators.output("out", messages, KafkaSink([bootstrap], f"{name}-out"))

place = Path(directory)
if not place.exists():
    place.mkdir()
    init_db_dir(place, 1)
cli_main(flow, epoch_interval=timedelta(seconds=0.2), recovery_config=RecoveryConfig(place))
