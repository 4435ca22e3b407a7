"""The connector's errors, under the names that Spark's own Kafka source gives them.

Raised by planning, the driver-side offset reader and the executor-side fetch. Every text begins with
Spark's condition in brackets, so that what people search for, and what their alerts match, is the same
for both sources (Spark's `kafka-error-conditions.json`). Wrong options are `broker.errors.ConfigError`.
"""

from __future__ import annotations

import logging

from broker.errors import PykafkaError

__all__ = ["ConnectorError", "DataLoss", "data_loss", "report_data_loss"]

logger = logging.getLogger("pykafka.spark")

_LOST = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged out by "
    "Kafka or the topic may have been deleted before all the data in the topic was processed."
)
_HOW_TO_GO_ON = "If you don't want your query to fail on such cases, set the source option failOnDataLoss to false."
_HOW_TO_FAIL = "If you want your query to fail on such cases, set the source option failOnDataLoss to true."


class ConnectorError(PykafkaError):
    """A plan or a read that cannot be carried out; `condition` is Spark's name for it."""

    def __init__(self, condition: str, message: str) -> None:
        self.condition = condition
        self.message = message
        super().__init__(f"[{condition}] {message}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.condition, self.message)  # survives the way back from a Spark worker


class DataLoss(ConnectorError):
    """Records of the asked range are gone. `failOnDataLoss=false` turns it into a warning."""


def data_loss(subclass: str, reason: str) -> DataLoss:
    """The error `KAFKA_DATA_LOSS.<subclass>` with Spark's explanation before the reason."""
    return DataLoss(f"KAFKA_DATA_LOSS.{subclass}", f"{_LOST} {_HOW_TO_GO_ON} Reason: {reason}")


def report_data_loss(subclass: str, reason: str, *, fail: bool) -> None:
    """Raise DataLoss when `fail` (option failOnDataLoss), else log one warning and let the caller go on."""
    if fail:
        raise data_loss(subclass, reason)
    logger.warning("[KAFKA_DATA_LOSS.%s] %s %s Reason: %s", subclass, _LOST, _HOW_TO_FAIL, reason)
