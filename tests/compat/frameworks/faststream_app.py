"""FastStream: copies numbers, and commits one when its copy is acknowledged.

Arguments: bootstrap servers, a name for the group and its topics, a directory that it does not need, and the module of
FastStream that has its client: `confluent` (librdkafka) or `kafka` (aiokafka).
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

from faststream import AckPolicy, FastStream

bootstrap, name, _, client = sys.argv[1:]
module: Any = importlib.import_module(f"faststream.{client}")
broker = module.KafkaBroker(bootstrap)


@broker.subscriber(f"{name}-in", group_id=name, auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
@broker.publisher(f"{name}-out")
async def copy(number: int) -> str:
    return str(number)


asyncio.run(FastStream(broker).run())
