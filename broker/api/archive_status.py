"""What this broker knows of the archives of the partitions that it leads, for DescribeConfigs.

Kafka has no request for it. A list of JSON objects; broker/client/archive_status.py reads it.
"""

from __future__ import annotations

import json

from broker.api.context import ApiContext, Client
from broker.protocol.described_config import ARCHIVE_STATUS, ConfigEntry, ConfigSource
from broker.protocol.permissions import LIST_OFFSETS_TOPIC


def archive_status(context: ApiContext, client: Client) -> ConfigEntry:
    """The entry ARCHIVE_STATUS, of the topics that the client may describe: an empty list without an archive."""
    statuses = [] if context.archive is None else context.archive.statuses()
    rows = [
        {
            "topic": one.tp.topic,
            "partition": one.tp.partition,
            "archivedBytes": None if one.manifest is None else one.manifest.size,
            "lagBytes": one.lag_bytes,
            "lagSegments": one.lag_segments,
            "problem": one.problem,
        }
        for one in statuses
        if context.allows(client, LIST_OFFSETS_TOPIC, one.tp.topic, asked=False)
    ]
    return ConfigEntry(ARCHIVE_STATUS, json.dumps(rows), ConfigSource.DEFAULT_CONFIG, read_only=True)
