"""The offset store of a query, opened when first needed: where `committed` is read, and progress is told.

Used by offset_reader.py (start of a query) and stream_reader.py (progress). A stream's checkpoint is the truth;
the store only informs people and other queries. So a store that cannot be reached never stops a stream that
runs: the commit is warned about and made again with the next one.
"""

from __future__ import annotations

import logging

from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.offset_store.base import OffsetStore, open_store
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.offsets import Offsets

__all__ = ["CommittedOffsets"]

logger = logging.getLogger("pykafka.spark")


class CommittedOffsets:
    """The offsets of the options' `group` in their `offsetStore`; does nothing when there is no store."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._store: OffsetStore | None = None
        self._published: Offsets | None = None

    def read(self) -> dict[TopicPartition, int]:
        """Next offsets by partition, empty when nothing was committed. Raises what the store raises."""
        return self._open().read(self._group())

    def publish(self, offsets: Offsets) -> None:
        """Tell the store how far the stream is, once per change. Raises ConfigError only."""
        if self._options.offset_store is None or not offsets or offsets == self._published:
            return
        try:
            self._open().commit(self._group(), offsets)
            self._published = dict(offsets)
        except ConfigError:
            raise
        except (PykafkaError, OSError) as error:
            logger.warning("Offsets of group '%s' were not published, will be again: %s", self._group(), error)
            self.close()

    def close(self) -> None:
        """Give back connections. May be called again; the next use opens the store anew."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _open(self) -> OffsetStore:
        if self._store is None:
            assert self._options.offset_store is not None, "checked by read_options.py"
            self._store = open_store(self._options.offset_store, self._options.store_options)
        return self._store

    def _group(self) -> str:
        assert self._options.group is not None, "checked by read_options.py"
        return self._options.group
