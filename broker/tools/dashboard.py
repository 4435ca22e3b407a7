"""The Grafana dashboard that `pykafka broker config dashboard.json` prints."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from typing import Any, Final

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_ACROSS, _WIDTH, _HEIGHT = 3, 8, 7
"""Panels beside each other, and the size of one; a dashboard is 24 wide."""

_PANELS: Final = """
# Cluster
Brokers | stat | short | brokers: max(kafka_controller_kafkacontroller_activebrokercount)
Under-replicated partitions | stat | short | partitions: sum(kafka_server_replicamanager_underreplicatedpartitions)
Partitions without a leader | stat | short | partitions: max(kafka_controller_kafkacontroller_offlinepartitionscount)
# Traffic
Bytes in | timeseries | Bps | sum by (instance) (rate(kafka_server_brokertopicmetrics_bytesin_total[5m]))
Bytes out | timeseries | Bps | sum by (instance) (rate(kafka_server_brokertopicmetrics_bytesout_total[5m]))
Records in | timeseries | short | sum by (topic) (rate(kafka_server_brokertopicmetrics_messagesin_total[5m]))
Replication in | timeseries | Bps
    | sum by (instance) (rate(kafka_server_brokertopicmetrics_replicationbytesin_total[5m]))
Requests | timeseries | reqps | sum by (request) (rate(kafka_network_requestmetrics_requests_total[5m]))
Errors | timeseries | reqps | sum by (error) (rate(kafka_network_requestmetrics_errors_total[5m]))
# Health
Replica lag | timeseries | short | max by (instance) (kafka_server_replicafetchermanager_maxlag)
ISR changes | timeseries | short
    | shrinks: sum(rate(kafka_server_replicamanager_isrshrinks_total[5m]))
    | expands: sum(rate(kafka_server_replicamanager_isrexpands_total[5m]))
Leader elections | timeseries | short
    | elections: sum(rate(kafka_controller_controllerstats_leaderelections_total[5m]))
    | unclean: sum(rate(kafka_controller_controllerstats_uncleanleaderelections_total[5m]))
Size of the logs | timeseries | bytes | sum by (topic) (kafka_log_log_size)
Connections | timeseries | short | sum by (instance) (kafka_server_socketservermetrics_connection_count)
Memory of the brokers | timeseries | bytes | {{instance}}: process_resident_memory_bytes
# Groups and loads
Lag of groups | timeseries | short | sum by (consumergroup) (kafka_consumergroup_lag >= 0)
Rows loaded | timeseries | short | sum by (group) (rate(pykafka_load_rows_total[5m]))
Offsets that loads are behind | timeseries | short | sum by (group) (pykafka_load_offsets_behind_latest)
"""
"""Rows, and their panels: the title, Grafana's type and unit, and what is shown. It is named, or by a label."""


def dashboard() -> str:
    """Its JSON, as Grafana imports and provisions it."""
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    document = {
        "title": "pykafka",
        "uid": "pykafka",
        "tags": ["kafka"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "templating": {"list": [source]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), 1)],
    }
    return json.dumps(document, indent=2) + "\n"


def _panels() -> Iterator[dict[str, Any]]:
    top = 0
    for row in _PANELS.split("# ")[1:]:
        title, *panels = row.replace("\n    |", " |").strip().split("\n")
        yield {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _at(0, top, 24, 1)}
        for index, panel in enumerate(panels):
            name, kind, unit, *shown = panel.split(" | ")
            down, right = divmod(index, _ACROSS)
            yield {
                "title": name,
                "type": kind,
                "datasource": _SOURCE,
                "gridPos": _at(right * _WIDTH, top + 1 + down * _HEIGHT, _WIDTH, _HEIGHT),
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [_target(*one) for one in zip(string.ascii_uppercase, shown, strict=False)],
            }
        top += 1 + -(-len(panels) // _ACROSS) * _HEIGHT


def _target(letter: str, shown: str) -> dict[str, str]:
    label = re.search(r" by \((\w+)\)", shown)
    name, expression = (f"{{{{{label[1]}}}}}", shown) if label else shown.split(": ")
    return {"refId": letter, "expr": expression, "legendFormat": name}


def _at(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}
