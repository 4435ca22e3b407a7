"""Which APIs of Kafka's protocol each feature of the connector needs, at least in which version, and what else to do.

Brokers tell what they serve (ApiVersions, KIP-35). The driver asks for `check` before a query begins, so that what
cannot work is refused there, in one sentence. What is not in this table, the connector uses where brokers serve it and
does without elsewhere. docs/how-to/other-brokers.md shows the table; a test runs each feature on brokers that serve no
more than it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.client.cluster import Cluster
from broker.errors import ConfigError, ErrorCode, UnsupportedVersion
from broker.protocol.api_keys import ApiKey


class Feature(NamedTuple):
    """`needs`: each API with its lowest version; `since`: the first Kafka that serves all, if any; `instead`: what to
    do where they are lacking."""

    name: str
    needs: Mapping[ApiKey, int]
    since: str
    instead: str


_FIND_GROUP: Final = {ApiKey.FIND_COORDINATOR: 0}
READ: Final = Feature(
    "reads, streams and loads",
    {ApiKey.METADATA: 1, ApiKey.LIST_OFFSETS: 1, ApiKey.FETCH: 4},
    "0.11",
    "There is no other way to read from these brokers",
)
LAG: Final = Feature(
    "lag", {ApiKey.METADATA: 1, ApiKey.LIST_OFFSETS: 1}, "0.10.1", "Progress then has no ends of partitions"
)
GROUP_STORE: Final = Feature(
    "offsetStore=group",
    {**_FIND_GROUP, ApiKey.OFFSET_FETCH: 2, ApiKey.OFFSET_COMMIT: 2},
    "0.10.2",
    "Set option 'offsetStore' to files or zookeeper",
)
ARCHIVE: Final = Feature(
    "archive=direct without archive.url",
    {ApiKey.DESCRIBE_CONFIGS: 0},
    "",
    "Leave option 'archive' out: other brokers keep no archive that can be read directly",
)
WRITE: Final = Feature(
    "writes, at least once",
    {ApiKey.METADATA: 1, ApiKey.PRODUCE: 3},
    "0.11",
    "There is no other way to write to these brokers",
)
IDEMPOTENT: Final = Feature(
    "kafka.enable.idempotence=true",
    {ApiKey.INIT_PRODUCER_ID: 0},
    "0.11",
    "Set option 'kafka.enable.idempotence' to false: a request that is repeated may then write records twice, which "
    "delivery=at-least-once allows",
)
EXACTLY_ONCE: Final = Feature(
    "exactly-once writes",
    {
        ApiKey.PRODUCE: 3,
        ApiKey.INIT_PRODUCER_ID: 0,
        ApiKey.FIND_COORDINATOR: 1,
        ApiKey.ADD_PARTITIONS_TO_TXN: 0,
        ApiKey.ADD_OFFSETS_TO_TXN: 0,
        ApiKey.TXN_OFFSET_COMMIT: 0,
        ApiKey.END_TXN: 0,
        ApiKey.OFFSET_COMMIT: 2,
        ApiKey.OFFSET_FETCH: 7,  # waits for offsets of an open transaction (KIP-447)
    },
    "2.5",
    "Set option 'delivery' to at-least-once. Loads are exactly once on any brokers, because they commit in their table",
)
FEATURES: Final = (READ, LAG, GROUP_STORE, ARCHIVE, WRITE, IDEMPOTENT, EXACTLY_ONCE)

NO_TIMES: Final = (ErrorCode.invalid_request, ErrorCode.unsupported_for_message_format, ErrorCode.unsupported_version)
"""What brokers answer that cannot look for offsets by time. A filter by time then narrows no range, and rows are left
out as they are read; an option that names a time cannot be used."""


def check(cluster: Cluster, *features: Feature) -> None:
    """Raise ConfigError where a broker of the cluster lacks what one of them needs. Sends no request if connected."""
    connection = cluster.any_connection()
    for feature in features:
        for api, lowest in feature.needs.items():
            try:
                highest = connection.version(api)
            except UnsupportedVersion:
                highest = -1
            if highest < lowest:
                served = f"serve {api.title} up to version {highest} only" if highest >= 0 else f"lack {api.title}"
                since = f" (Kafka {feature.since} and later do)" if feature.since else ""
                raise ConfigError(
                    f"{feature.name}: the brokers at {connection.address} {served}, and version {lowest} or later is "
                    f"needed{since}. {feature.instead}"
                )
