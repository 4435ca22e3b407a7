"""What this broker knows of the archives of the partitions that it leads, for DescribeConfigs.

broker/client/archive_status.py asks for it.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client
from broker.protocol.archive_status import encode_statuses
from broker.protocol.described_config import ARCHIVE_STATUS, ConfigEntry, ConfigSource
from broker.protocol.permissions import LIST_OFFSETS_TOPIC


def archive_status(context: ApiContext, client: Client) -> ConfigEntry:
    """The entry ARCHIVE_STATUS, of the topics that the client may describe: an empty list without an archive."""
    statuses = [] if context.archive is None else context.archive.statuses()
    allowed = [one for one in statuses if context.allows(client, LIST_OFFSETS_TOPIC, one.tp.topic, asked=False)]
    return ConfigEntry(ARCHIVE_STATUS, encode_statuses(allowed), ConfigSource.DEFAULT_CONFIG, read_only=True)
