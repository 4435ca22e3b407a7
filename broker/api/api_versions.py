"""ApiVersions: the APIs and versions this broker serves, taken from the route table (KIP-35, KIP-511).

A request in an unknown version gets UNSUPPORTED_VERSION and the list, in version 0, so that the client can retry.
Produce is advertised from version 0 although it is served from 3: otherwise librdkafka assumes that the broker does not
know record batches (Apache Kafka 4 does the same).
The features tell clients what all brokers have, such as version 2 of transactions (KIP-584).
Version notes: from 3 a client sends the name and version of its software. Names that are not valid are refused. 3 tells
no features that begin with 0: older clients for Java cannot read them (KAFKA-17492).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from broker.cluster.features import SUPPORTED, Features
from broker.errors import ErrorCode
from broker.net.router import Client, Handler, Route
from broker.protocol.messages import Request, encode_response, with_correlation_id
from broker.quotas.client_quotas import ClientQuotas
from broker.zookeeper.feature_node import FinalizedFeatures

_FIRST_WITH_NAME = 3
_FIRST_WITH_FEATURES_FROM_0 = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def make_handler(routes: Sequence[Route], features: Features, quotas: ClientQuotas) -> Handler:
    """The handler that answers from `routes`, which are filled in before the first request.

    While clients have quotas it encodes nothing: the throttle time is behind the list, where the router puts it only
    into an answer that is not encoded.
    """
    encoded: dict[int, bytes] = {}
    """Version → the answer with the features `told`."""
    told = FinalizedFeatures()

    def handle(request: Request, client: Client) -> Mapping[str, Any] | Sequence[bytes]:
        nonlocal told
        if request.body is None:
            return _answer(ErrorCode.unsupported_version, request.version, routes, features.finalized)
        if request.version >= _FIRST_WITH_NAME and not _names_its_software(request.body):
            return {"error_code": ErrorCode.invalid_request, "api_keys": ()}
        if quotas.enabled:
            return _answer(ErrorCode.none, request.version, routes, features.finalized)
        if told is not features.finalized:
            told = features.finalized
            encoded.clear()
        frame = encoded.get(request.version)
        if frame is None:
            answer = _answer(ErrorCode.none, request.version, routes, told)
            frame = encoded[request.version] = encode_response(request, answer)
        return [with_correlation_id(frame, request.correlation_id)]

    return handle


def _answer(error: ErrorCode, version: int, routes: Sequence[Route], finalized: FinalizedFeatures) -> Mapping[str, Any]:
    supported = SUPPORTED if version >= _FIRST_WITH_FEATURES_FROM_0 else {}
    return {
        "error_code": error,
        "api_keys": [
            {
                "api_key": int(route.api),
                "min_version": route.low if route.advertised_low is None else route.advertised_low,
                "max_version": route.high,
            }
            for route in routes
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
