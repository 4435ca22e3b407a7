"""The dashboard, conf/grafana and conf/systemd: every metric that they name is served; systemd accepts the units."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from broker.tools.broker import app
from pykafka_ui.app import GroupMetrics
from pykafka_ui.seen.snapshot import Snapshot
from tests.support.requirements import give_up
from tests.support.source_tree import ROOT

GRAFANA, SYSTEMD = ROOT / "broker" / "conf" / "grafana", ROOT / "broker" / "conf" / "systemd"
NAME = re.compile(r"\b(?:kafka|pykafka|process)_[a-z_]+")
OF_EVERY_PROCESS = {"process_resident_memory_bytes"}
"""prometheus_client's, which the broker serves, too."""


def served() -> set[str]:
    """The metrics of brokers and loads, from the page that tests compare with the code, and those of the ui."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)) | {
        family.name for family in GroupMetrics(Snapshot()).collect()
    }


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(CliRunner().invoke(app, ["config", "dashboard.json"]).output)["panels"]
    return found


def expressions() -> list[str]:
    alerts = yaml.safe_load((GRAFANA / "alerts.yml").read_text(encoding="utf-8"))
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())] + [
        rule["expr"] for group in alerts["groups"] for rule in group["rules"]
    ]


def test_every_metric_of_the_dashboard_and_the_alerts_is_served() -> None:
    named = {name for text in expressions() for name in NAME.findall(text)}
    assert len(named) > 20
    assert named - served() - OF_EVERY_PROCESS == set()


def test_panels_do_not_overlap_and_alerts_say_what_to_do() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        area = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not area & taken, panel["title"]
        taken |= area
    assert len({panel["id"] for panel in panels()}) == len(panels())
    alerts = yaml.safe_load((GRAFANA / "alerts.yml").read_text(encoding="utf-8"))
    assert all(rule["annotations"]["summary"].endswith(".") for group in alerts["groups"] for rule in group["rules"])


@pytest.mark.parametrize("unit", sorted(SYSTEMD.glob("*.service")), ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: object) -> None:
    if shutil.which("systemd-analyze") is None:
        give_up("systemd-analyze: needs systemd (Debian: apt-get install systemd)")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_of_the_units_have_these_options() -> None:
    reference = (ROOT / "docs" / "reference" / "console.md").read_text(encoding="utf-8")
    for unit in SYSTEMD.glob("*.service"):
        (line,) = re.findall(r"^ExecStart=/usr/bin/env (pykafka .*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        for option in re.findall(r"--[a-z-]+", line):
            assert option in reference, f"{unit.name}: {option}"
