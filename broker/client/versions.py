"""Which version of each API this client speaks, and the choice of one for a connection.

Called by connection.py. The rule is Kafka's (KIP-35, KIP-511): the broker says which versions it
serves, and the highest that both sides know is used. What this side knows is the range of kio, capped
by the table below where a later version would ask for something the client does not do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.errors import UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import known_versions

__all__ = ["HIGHEST_USED", "choose_version", "usable_versions"]

HIGHEST_USED: Final[Mapping[ApiKey, int]] = {
    ApiKey.PRODUCE: 11,  # 12 begins transactions by itself (KIP-890), 13 names topics by id
    ApiKey.FETCH: 16,  # 17 is for replicas (KIP-853)
    ApiKey.LIST_OFFSETS: 8,  # 9 is about tiered storage
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 8,  # 9 is for the new group protocol (KIP-848), 10 names topics by id
    ApiKey.OFFSET_FETCH: 7,  # 8 asks for several groups at once
    ApiKey.FIND_COORDINATOR: 3,  # 4 asks for several groups at once
    ApiKey.API_VERSIONS: 3,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,  # 4 is for brokers, about many transactions
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 4,  # 5 begins transactions by itself (KIP-890)
    ApiKey.END_TXN: 4,  # 5 bumps the epoch with every transaction (KIP-890)
    ApiKey.LIST_GROUPS: 5,
    ApiKey.DESCRIBE_GROUPS: 5,
}
"""APIs that are not here are used up to the highest version kio has."""


def usable_versions(api: ApiKey) -> tuple[int, int]:
    """Lowest and highest version of `api` that this client can send. Raises UnsupportedVersion."""
    lowest, highest = known_versions(api)
    return lowest, min(highest, HIGHEST_USED.get(api, highest))


def choose_version(api: ApiKey, served: tuple[int, int] | None, *, at_most: int | None = None) -> int:
    """The highest version of `api` inside the broker's range `served`, no higher than `at_most`.

    Raises UnsupportedVersion, naming both ranges, when the two sides have none in common.
    """
    if served is None:
        raise UnsupportedVersion(f"the broker does not serve {api.name}")
    lowest, highest = usable_versions(api)
    if at_most is not None:
        highest = min(highest, at_most)
    chosen = min(highest, served[1])
    if chosen < max(lowest, served[0]):
        raise UnsupportedVersion(
            f"the broker serves {api.name} versions {served[0]} to {served[1]}, this client needs {lowest} to {highest}"
        )
    return chosen
