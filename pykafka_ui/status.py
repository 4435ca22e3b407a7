"""HTTP statuses for errors of the cluster and of requests."""

from __future__ import annotations

from broker.client.cluster_metadata import UnknownTopic
from broker.client.denials import DENIED
from broker.errors import BrokerError, ErrorCode, UnsupportedVersion
from pykafka_ui.loads.places import UnknownPlace

_STATUS = {
    **dict.fromkeys(DENIED, 403),
    ErrorCode.unknown_topic_or_partition: 404,
    ErrorCode.group_id_not_found: 404,
    ErrorCode.topic_already_exists: 409,
    ErrorCode.non_empty_group: 409,
}


def status_of(error: Exception) -> int:
    if isinstance(error, UnknownTopic | UnknownPlace):
        return 404
    if isinstance(error, BrokerError):
        return _STATUS.get(error.code, 502 if error.retriable or error.code is ErrorCode.unknown_server_error else 400)
    if isinstance(error, UnsupportedVersion):
        return 501
    return 400 if isinstance(error, ValueError) else 502
