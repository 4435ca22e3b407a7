"""What an operator sees of the broker: metrics and health over HTTP, the log's form, the slow-request line."""

from __future__ import annotations

import dataclasses

from broker.settings import at_least, one_of, setting

__all__ = ["ObservabilitySettings"]

OBSERVABILITY = "observability"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservabilitySettings:
    """A part of `BrokerConfig`."""

    metrics_listener: str = setting(
        "metrics.listener",
        "",
        "HTTP://host:port of /metrics (Prometheus) and /healthz; port 0 takes a free one, empty is off.",
        group=OBSERVABILITY,
    )
    logging_format: str = setting(
        "logging.format",
        "text",
        "The broker's own log: text, or json (one object per line, with fields).",
        group=OBSERVABILITY,
        check=one_of(("text", "json")),
    )
    slow_request_log_ms: int = setting(
        "slow.request.log.ms",
        1000,
        "Requests slower than this get a line in the log, a long poll's waiting not counted; -1 for none.",
        group=OBSERVABILITY,
        check=at_least(-1),
    )
