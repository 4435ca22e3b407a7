"""Which lookups a query has: at the brokers, or in the archive where that is all it reads."""

from __future__ import annotations

from spark_connector.options.read_options import SourceOptions
from spark_connector.read.offset_reader import OffsetReader


def open_offset_reader(options: SourceOptions) -> OffsetReader:
    """For one query; close it. Nothing is asked yet. Raises ConfigError."""
    if options.archive is not None and options.archive.only:
        from spark_connector.read.archive_topics import ArchiveOffsetReader

        return ArchiveOffsetReader(options)
    return OffsetReader(options)
