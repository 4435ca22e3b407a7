"""Bytes per record of the partitions that a stream is behind in: how lag in offsets becomes lag in bytes.

Used by listener.py. The estimates are read/record_bytes.py's; here is the connection to the cluster, with short
time-outs, since Spark's event thread waits. A cluster that does not answer is a warning and no bytes for a minute,
never an error or a guess.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping

from broker.client.cluster import Cluster
from broker.client.offsets import LATEST, list_offsets
from broker.client.settings import ClientSettings
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.read.offsets import Offsets
from spark_connector.read.record_bytes import RecordBytes

__all__ = ["RecordSizes"]

logger = logging.getLogger("pykafka.spark")

_PATIENCE = {"request.timeout.ms": "5000", "default.api.timeout.ms": "5000", "client.id": "pykafka-lag"}
_PREFIX = "kafka."
_ASK_AGAIN_S = 60.0


class RecordSizes:
    """Of one cluster. One thread at a time; `close()` hangs up, the next call connects again."""

    def __init__(
        self,
        source: str | Iterable[str] | Mapping[str, str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source`: bootstrap servers, client properties, or a reader's options (`kafka.*`). Raises ConfigError."""
        self._settings = _settings(source)
        self._monotonic = monotonic
        self._open: tuple[Cluster, RecordBytes] | None = None
        self._silent_until = -math.inf

    def __call__(self, read: Offsets, ends: Offsets) -> Mapping[TopicPartition, int]:
        """Average bytes of an offset, for each partition that has something between `read` and `ends`, if known."""
        behind = sorted(tp for tp, offset in read.items() if ends.get(tp, 0) > offset)
        if not behind or self._monotonic() < self._silent_until:
            return {}
        try:
            if self._open is None:
                cluster = Cluster(self._settings, create_topics=False)
                self._open = cluster, RecordBytes(cluster, self._monotonic)
            cluster, estimates = self._open
            list_offsets(cluster, {behind[0]: LATEST})  # is anybody there? `estimate` would guess
            return estimates.estimate(read, ends)
        except (PykafkaError, OSError) as error:
            logger.warning("How many bytes streams are behind is not known for now: %s", error)
            self._silent_until = self._monotonic() + _ASK_AGAIN_S
            self.close()
            return {}

    def close(self) -> None:
        """Hang up."""
        opened, self._open = self._open, None
        if opened is not None:
            opened[0].close()


def _settings(source: str | Iterable[str] | Mapping[str, str]) -> ClientSettings:
    if not isinstance(source, Mapping):
        return ClientSettings.of(source, _PATIENCE)
    options = {name.lower(): value for name, value in source.items()}
    kafka = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    return ClientSettings.of({**_PATIENCE, **(kafka or source)})
