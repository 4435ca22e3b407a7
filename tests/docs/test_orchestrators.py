"""The page on orchestrators: its asset and its DAG, run by Dagster and by Airflow; its units and its Job, as read.

Each orchestrator has an environment of its own, made once in the user's cache: Dagster takes half a minute, Airflow
more than one, so that it is slow. They run the real `pykafka load`, with a Spark for the load that finds records.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.free_ports import free_ports
from tests.support.kafka import Kafka
from tests.support.package_environment import THIS, python_with
from tests.support.requirements import Unavailable, give_up
from tests.support.snippets import FENCE, snippets
from tests.support.source_tree import ROOT
from tests.support.topic_data import TopicData
from tests.support.users_environment import users_environment

PAGE = ROOT / "docs" / "how-to" / "orchestrators.md"
DAGSTER, AIRFLOW = "dagster==1.13.28", "apache-airflow==3.3.2"

RUN_ASSET = """
import json, sys, asset, dagster
with dagster.DagsterInstance.ephemeral() as instance:
    run = dagster.materialize([asset.flights], instance=instance, raise_on_error=False)
events = [event.event_type_value for event in run.all_events]
made = [one.materialization.metadata for one in run.get_asset_materialization_events()]
rows = made[0]["rows"].value if made else None
print(json.dumps([run.success, events.count("STEP_UP_FOR_RETRY"), rows]))
"""
RUN_DAG = """
import json, os, sys
sys.path.insert(0, os.environ["AIRFLOW_HOME"] + "/dags")
import asset
(load,) = asset.nightly().test().get_task_instances()
print(json.dumps([load.state == "success", load.try_number - 1, load.xcom_pull(task_ids="load")]))
"""

Outcome = tuple[bool, int, int | None]
"""Whether it succeeded, retries, rows."""


def code_of(word: str) -> str:
    (found,) = (one.text for one in snippets(PAGE) if one.language == "python" and word in one.text)
    return found


def orchestrated(
    python: Path, home: Path, run: str, code: str, waits: tuple[str, str], topic: str
) -> Callable[[str, str], Outcome]:
    """What runs the code of the page for a topic, with the address of brokers and with more options of the load."""
    (home / "dags").mkdir()
    fast = code.replace(*waits).replace("retries=5", "retries=1").replace("--topic flights", f"--topic {topic}")
    assert fast.count("retries=1") == 1
    environment = {**users_environment(), "AIRFLOW_HOME": str(home), "PYTHONPATH": str(home / "dags")}
    environment |= {"AIRFLOW__CORE__LOAD_EXAMPLES": "False"}

    def asked(*arguments: str, **more: str) -> str:
        done = subprocess.run(
            [python, *arguments], cwd=home, env={**environment, **more}, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def outcome(bootstrap: str, options: str) -> Outcome:
        text = fast.replace(" --json", f" --json --master local[1] {options}".rstrip())
        (home / "dags" / "asset.py").write_text(text, encoding="utf-8")
        if run is RUN_DAG:
            for command in ("db migrate", "dags reserialize"):
                asked("-m", "airflow", *command.split())
        printed = asked("-c", run, PYKAFKA_BOOTSTRAP_SERVER=bootstrap)
        success, retries, rows = json.loads(printed.splitlines()[-1])
        return success, retries, rows

    return outcome


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("package", "run", "word", "waits"),
    [
        pytest.param(DAGSTER, RUN_ASSET, "import dagster", ("delay=60", "delay=0.01"), id="dagster"),
        pytest.param(AIRFLOW, RUN_DAG, "import dag", ("minutes=1", "seconds=1"), id="airflow", marks=pytest.mark.slow),
    ],
)
def test_an_orchestrator_loads_tries_again_what_heals_and_gives_up_what_does_not(
    broker: Kafka, topic: str, tmp_path: Path, package: str, run: str, word: str, waits: tuple[str, str]
) -> None:
    try:
        python = python_with(THIS, package)
    except Unavailable as error:
        give_up(str(error))
    TopicData(broker.bootstrap, topic, partitions=1).produce(3)
    outcome = orchestrated(python, tmp_path, run, code_of(word), waits, topic)
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    assert outcome(nobody, "--option kafka.default.api.timeout.ms=200") == (False, 1, None), "75: tried again"
    assert outcome(broker.bootstrap, "--option nonsense=1") == (False, 0, None), "2: given up at once"
    assert outcome(broker.bootstrap, "") == (True, 0, 3)
    assert outcome(broker.bootstrap, "") == (True, 0, 0), "nothing is there twice"


def fences(language: str) -> list[str]:
    return [fence[2] for fence in FENCE.finditer(PAGE.read_text(encoding="utf-8")) if fence[1] == language]


def statuses() -> dict[int, str]:
    """Status → what the page says to do."""
    rows = re.findall(r"^\| ([\d, ]+) \|.*\| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(one): said for numbers, said in rows for one in numbers.split(", ")}


def test_every_way_gives_up_where_the_table_says_that_somebody_must_act() -> None:
    final = {status for status, said in statuses().items() if status and not said.startswith("run it again")}
    assert final == {1, 2}
    assert os.EX_TEMPFAIL in statuses()
    job: Any = yaml.safe_load(fences("yaml")[0])
    rules = job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert {*rules[0]["onExitCodes"]["values"]} == final
    services = [*fences("ini")[:1], (ROOT / "broker" / "conf" / "systemd" / "pykafka-load@.service").read_text()]
    for service in services:
        assert {*map(int, re.findall(r"RestartPreventExitStatus=(.*)", service)[0].split())} == final
        assert "KillMode=mixed" in service
    for code in (code_of("import dagster"), code_of("import dag,")):
        assert "returncode in (1, 2)" in code


def test_systemd_accepts_the_units_of_the_page(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        give_up("systemd-analyze: needs systemd (Debian: apt-get install systemd)")
    service, timer = fences("ini")
    units = {"pykafka-load.service": service, "pykafka-load.timer": timer}
    for name, text in units.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in units)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
