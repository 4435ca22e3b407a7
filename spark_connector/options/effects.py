"""Options that are right by themselves and have no effect with the others, or in this kind of query.

Called by read_options.py, last. What can never have an effect as it stands is refused: the user meant something by it.
What has one in the other kind of query is only warned about, as in Spark, so that one set of options can serve both.
"""

from __future__ import annotations

import logging

from broker.errors import ConfigError
from spark_connector.options.values import OptionValues

__all__ = ["check_effects"]

logger = logging.getLogger("pykafka.spark")

_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
_NEEDS_ONE_OF = {
    "startingOffsetsByTimestampStrategy": ("startingTimestamp", "startingOffsetsByTimestamp"),
    "offsetStore.path": ("offsetStore",),
    "offsetStore.zookeeper.connect": ("offsetStore",),
}


def check_effects(values: OptionValues, *, batch: bool, stream: bool, from_committed: bool) -> None:
    """Raise ConfigError, or log a warning. Neither `batch` nor `stream` where it is not known yet which it will be."""
    for name, needed in _NEEDS_ONE_OF.items():
        if name in values and not any(one in values for one in needed):
            raise ConfigError(f"Option '{name}' has no effect without {' or '.join(map(repr, needed))}")
    if stream and "maxTriggerDelay" in values and "minOffsetsPerTrigger" not in values:
        raise ConfigError("Option 'maxTriggerDelay' has no effect without 'minOffsetsPerTrigger', which it limits")
    if batch:
        for name in _STREAM_ONLY:
            if name in values:
                logger.warning("%s option ignored in batch queries", name)
        if "offsetStore" in values and not from_committed:
            logger.warning("offsetStore option ignored in batch queries that do not start from committed offsets")
    if (batch or stream) and "kafka.group.id" in values and "offsetStore" not in values:
        logger.warning("kafka.group.id option ignored: reading forms no group, and there is no offsetStore to name it")
