"""How far the archive of a partition is: what its leader knows, and what others ask for.

Kafka has no request for it. The value of the setting `ARCHIVE_STATUS` of a broker is a list of JSON objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from broker.protocol.topic_partition import TopicPartition


class ArchiveStatus(NamedTuple):
    """Offsets are those of records; an end is the offset after the last one. None: not known."""

    tp: TopicPartition
    start: int | None = None
    archived_end: int | None = None
    """The offset after the last archived record; None if none is archived, too."""
    local_start: int | None = None
    end: int | None = None
    archived_bytes: int | None = None
    lag_bytes: int | None = None
    """Of closed segments that are not archived yet."""
    lag_segments: int | None = None
    problem: str = ""
    """Why the archive, or its retention, does not go on; empty if nothing is known to be wrong."""


def encode_statuses(statuses: Iterable[ArchiveStatus]) -> str:
    """Without the offsets, which ListOffsets tells."""
    return json.dumps(
        [
            {
                **one.tp._asdict(),
                "archivedBytes": one.archived_bytes,
                "lagBytes": one.lag_bytes,
                "lagSegments": one.lag_segments,
                "problem": one.problem,
            }
            for one in statuses
        ]
    )


def decode_statuses(text: str) -> dict[TopicPartition, ArchiveStatus]:
    """Raises ValueError, TypeError, KeyError."""
    found = {}
    for row in json.loads(text):
        tp = TopicPartition(str(row["topic"]), int(row["partition"]))
        lag = {"lag_bytes": row["lagBytes"], "lag_segments": row["lagSegments"], "problem": str(row["problem"])}
        found[tp] = ArchiveStatus(tp, archived_bytes=row["archivedBytes"], **lag)
    return found
