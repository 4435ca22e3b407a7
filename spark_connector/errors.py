"""The connector's errors, under the names that Spark's own Kafka source gives them.

Raised by planning, the lookups of the driver and the fetches of executors. Every text begins with Spark's condition in
brackets (`kafka-error-conditions.json`), so searches and alerts match the errors of both sources. Wrong options are
`broker.errors.ConfigError`.
"""

from __future__ import annotations

import logging
import re

from broker.errors import PykafkaError

logger = logging.getLogger("pykafka.spark")

_REGISTRY = "SCHEMA_REGISTRY_UNAVAILABLE"
_REFUSED = re.compile(r"HTTP 4(?!29)\d\d|CERTIFICATE_VERIFY_FAILED")
"""Answers of a registry that a person must mend: a wrong password, a missing right, a certificate nobody trusts."""

_LOST = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged out by "
    "Kafka or the topic may have been deleted before all the data in the topic was processed."
)
_HOW_TO_GO_ON = "If you don't want your query to fail on such cases, set the source option failOnDataLoss to false."
_HOW_TO_FAIL = "If you want your query to fail on such cases, set the source option failOnDataLoss to true."


class ConnectorError(PykafkaError):
    """A plan or a read that cannot be executed; `condition` is Spark's name of the error."""

    def __init__(self, condition: str, message: str) -> None:
        self.condition = condition
        self.retriable = condition == _REGISTRY and _REFUSED.search(message) is None
        self.message = message
        super().__init__(f"[{condition}] {message}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.condition, self.message)  # pickled by Spark workers


class DataLoss(ConnectorError):
    """Records of the requested range are gone. With `failOnDataLoss=false` this is a warning."""


def data_loss(subclass: str, reason: str) -> DataLoss:
    """The error `KAFKA_DATA_LOSS.<subclass>` with Spark's explanation before the reason."""
    return DataLoss(f"KAFKA_DATA_LOSS.{subclass}", f"{_LOST} {_HOW_TO_GO_ON} Reason: {reason}")


def report_data_loss(subclass: str, reason: str, *, fail: bool) -> None:
    """Raise DataLoss if `fail` (option failOnDataLoss); otherwise log a warning."""
    if fail:
        raise data_loss(subclass, reason)
    logger.warning("[KAFKA_DATA_LOSS.%s] %s %s Reason: %s", subclass, _LOST, _HOW_TO_FAIL, reason)
