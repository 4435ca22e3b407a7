"""Reports of streams to the console in the browser (`pykafka ui`), which shows them under Streams."""

from __future__ import annotations

import json
import math
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.errors import ConfigError
from spark_connector.progress.stream_lag import QueryLag

_PATIENCE_S, _ASK_AGAIN_S = 2.0, 60.0


class ConsoleReports:
    """For `LagListener(ConsoleReports("http://127.0.0.1:8080"))`: tells a console how each query goes.

    A console that does not answer disturbs no query: an error is logged, and it is left alone for a minute.
    """

    def __init__(
        self, address: str, *, token_file: str | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`token_file`: has the token of the console's `--token-file` in its first line. Raises ConfigError."""
        scheme, host, *_ = urllib.parse.urlsplit(address)
        if scheme not in ("http", "https") or not host or "@" in host:
            raise ConfigError("ConsoleReports: the address must be http://HOST:PORT; a token comes from token_file")
        self._url = f"{scheme}://{host}/api/streams"
        self._token_file = token_file
        self._monotonic = monotonic
        self._silent_until = -math.inf
        self._ids: dict[str, str] = {}
        """Run → query: the end of a run tells no more."""

    def progressed(self, lag: QueryLag) -> None:
        """Raises OSError."""
        self._ids[lag.run_id] = lag.id
        totals = [source.total for source in lag.sources]
        self._send(
            {
                "id": lag.id,
                "run_id": lag.run_id,
                "name": lag.name,
                "batch_id": lag.batch_id,
                "duration_ms": lag.duration_ms,
                "input_rows_per_second": sum(source.input_rows_per_second for source in lag.sources),
                "processed_rows_per_second": sum(source.processed_rows_per_second for source in lag.sources),
                "lag": None if None in totals else sum(filter(None, totals)),
            }
        )

    def ended(self, run_id: str) -> None:
        """Raises OSError."""
        if run_id in self._ids:
            self._send({"id": self._ids.pop(run_id), "run_id": run_id, "ended": True})

    def _send(self, report: dict[str, Any]) -> None:
        if self._monotonic() < self._silent_until:
            return
        headers = {"content-type": "application/json"}
        if self._token_file is not None:
            headers["authorization"] = f"Bearer {Path(self._token_file).read_text().splitlines()[0].strip()}"
        request = urllib.request.Request(self._url, json.dumps(report).encode(), headers)
        try:
            urllib.request.urlopen(request, timeout=_PATIENCE_S).close()
        except OSError:
            self._silent_until = self._monotonic() + _ASK_AGAIN_S
            raise
