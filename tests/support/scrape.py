"""A running broker's metrics and health as a test reads them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

from tests.support.broker_process import BrokerProcess

_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Scrape:
    """One GET of /metrics."""

    def __init__(self, url: str, accept: str = "text/plain") -> None:
        """`url` is the broker's `metrics_url`."""
        request = urllib.request.Request(f"{url}/metrics", headers={"accept": accept})
        with urllib.request.urlopen(request, timeout=30) as response:
            self.content_type = response.headers["content-type"]
            self.text = response.read().decode()
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for line in self.text.splitlines():
            if line and line[0] != "#":
                found = _SAMPLE.match(line)
                assert found, line
                labels = dict(_LABEL.findall(found["labels"] or ""))
                self._samples.setdefault(found["name"], []).append((labels, float(found["value"])))

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 when there is none."""
        return sum(
            value for held, value in self._samples.get(name, ()) if all(held.get(k) == v for k, v in labels.items())
        )

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        return self._samples.get(name, [])


def health(broker: BrokerProcess) -> tuple[int, Any]:
    """Status and document of /healthz."""
    try:
        with urllib.request.urlopen(f"{broker.metrics_url}/healthz", timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
