"""ApiVersions: what this broker answers, read off the route table itself (KIP-35, KIP-511).

A client that asks in a version we do not have gets UNSUPPORTED_VERSION in version 0 with the list, so
that it can ask again. Produce is advertised from version 0, though served from 3: librdkafka otherwise
takes the broker for one that knows no record batches (Apache Kafka 4 does the same).
Version notes: from 3 a client says what software it is, and is refused when that cannot be a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from broker.errors import ErrorCode
from broker.net.router import Client, Handler, Route
from broker.protocol.messages import Request

__all__ = ["make_handler"]

_FIRST_WITH_NAME = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def make_handler(routes: Sequence[Route]) -> Handler:
    """The handler that answers from `routes` (filled by the time a request comes)."""

    def handle(request: Request, client: Client) -> Mapping[str, Any]:
        if request.body is None:
            error = ErrorCode.unsupported_version
        elif request.version >= _FIRST_WITH_NAME and not _names_its_software(request.body):
            return {"error_code": ErrorCode.invalid_request, "api_keys": (), "finalized_features_epoch": -1}
        else:
            error = ErrorCode.none
        keys = [
            {
                "api_key": int(route.api),
                "min_version": route.low if route.advertised_low is None else route.advertised_low,
                "max_version": route.high,
            }
            for route in routes
        ]
        return {"error_code": error, "api_keys": keys, "finalized_features_epoch": -1}

    return handle


def _names_its_software(body: Any) -> bool:
    return all(_SOFTWARE.fullmatch(text) for text in (body.client_software_name, body.client_software_version))
