"""ApiVersions: the APIs and versions this broker serves, as `@serves` declares them (KIP-35, KIP-511).

A request in an unknown version gets UNSUPPORTED_VERSION and the list, in version 0, so that the client can retry.
Produce is advertised from version 0 although it is served from 3: otherwise librdkafka assumes that the broker does not
know record batches (Apache Kafka 4 does the same).
The features tell clients what all brokers have, such as version 2 of transactions (KIP-584).
Version notes: from 3 a client sends the name and version of its software. Names that are not valid are refused. 3 tells
no features that begin with 0: older clients for Java cannot read them (KAFKA-17492).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.serving import SERVED, serves
from broker.cluster.features import SUPPORTED
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_response, with_correlation_id
from broker.zookeeper.feature_node import FinalizedFeatures

_FIRST_WITH_NAME = 3
_FIRST_WITH_FEATURES_FROM_0 = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@serves(ApiKey.API_VERSIONS, 0, 4)
def handle(context: ApiContext, request: Request, client: Client) -> Fields | Sequence[bytes]:
    """While clients have quotas nothing is encoded here: the throttle time is behind the list, where the router puts it
    only into an answer that is not encoded."""
    finalized = context.features.finalized
    if request.body is None:
        return _answer(ErrorCode.unsupported_version, request.version, finalized)
    if request.version >= _FIRST_WITH_NAME and not _names_its_software(request.body):
        return {"error_code": ErrorCode.invalid_request, "api_keys": ()}
    if context.quotas.enabled:
        return _answer(ErrorCode.none, request.version, finalized)
    frame = _encoded(request.version, tuple(finalized.versions.items()), finalized.epoch)
    return [with_correlation_id(frame, request.correlation_id)]


@functools.lru_cache(maxsize=32)
def _encoded(version: int, features: tuple[tuple[str, int], ...], epoch: int) -> bytes:
    """The answer to each client; its correlation id is put in later."""
    request = Request(ApiKey.API_VERSIONS, version, 0, None, None, 0)
    return encode_response(request, _answer(ErrorCode.none, version, FinalizedFeatures(dict(features), epoch)))


def _answer(error: ErrorCode, version: int, finalized: FinalizedFeatures) -> Fields:
    supported = SUPPORTED if version >= _FIRST_WITH_FEATURES_FROM_0 else {}
    return {
        "error_code": error,
        "api_keys": [
            {
                "api_key": int(one.api),
                "min_version": one.low if one.advertised_low is None else one.advertised_low,
                "max_version": one.high,
            }
            for _, one in sorted(SERVED.items())
        ],
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": high} for name, high in supported.items()
        ],
        "finalized_features_epoch": finalized.epoch,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in finalized.versions.items()
        ],
    }


def _names_its_software(body: Any) -> bool:
    return all(_SOFTWARE.fullmatch(text) for text in (body.client_software_name, body.client_software_version))
