"""The page on orchestrators: its asset and its DAG, run by Dagster and by Airflow; its units and its Job, as read.

Each orchestrator has an environment of its own, made once in the user's cache: Dagster takes half a minute, Airflow
more than one, so that it is slow. They run the real `pykafka load`, of so few records that it needs no Spark.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
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
import json, os, sys, asset, dagster
load = asset.LOAD
for bootstrap, options in json.loads(sys.argv[1]):
    os.environ["PYKAFKA_BOOTSTRAP_SERVER"], asset.LOAD = bootstrap, load + options
    with dagster.DagsterInstance.ephemeral() as instance:
        run = dagster.materialize([asset.flights], instance=instance, raise_on_error=False)
    retries = [event for event in run.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]
    rows = [one.materialization.metadata["rows"].value for one in run.get_asset_materialization_events()]
    print("OUTCOME", json.dumps([run.success, len(retries), rows]))
"""
RUN_DAG = """
import json, os, sys, asset
load = asset.LOAD
for bootstrap, options in json.loads(sys.argv[1]):
    os.environ["PYKAFKA_BOOTSTRAP_SERVER"], asset.LOAD = bootstrap, load + options
    (task,) = asset.nightly().test().get_task_instances()
    rows = [task.xcom_pull(task_ids="load")] if task.state == "success" else []
    print("OUTCOME", json.dumps([task.state == "success", task.try_number - 1, rows]))
"""


def code_of(word: str) -> str:
    (found,) = (one.text for one in snippets(PAGE) if one.language == "python" and word in one.text)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("package", "run", "word", "waits", "before"),
    [
        pytest.param(DAGSTER, RUN_ASSET, "import dagster", ("delay=60", "delay=0.01"), (), id="dagster"),
        pytest.param(
            *(AIRFLOW, RUN_DAG, "import dag,", ("minutes=1", "seconds=1"), ("db migrate", "dags reserialize")),
            id="airflow",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_orchestrator_loads_tries_again_what_heals_and_gives_up_what_does_not(
    broker: Kafka,
    topic: str,
    tmp_path: Path,
    package: str,
    run: str,
    word: str,
    waits: tuple[str, str],
    before: tuple[str, ...],
) -> None:
    try:
        python = python_with(THIS, package)
    except Unavailable as error:
        give_up(str(error))
    TopicData(broker.bootstrap, topic, partitions=1).produce(3)
    folder = tmp_path / "dags"
    folder.mkdir()
    code = (
        code_of(word).replace(*waits).replace("retries=5", "retries=1").replace("--topic flights", f"--topic {topic}")
    )
    (folder / "asset.py").write_text(code, encoding="utf-8")
    environment = {**users_environment(), "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(folder)}
    environment |= {"AIRFLOW__CORE__LOAD_EXAMPLES": "False"}

    def asked(*arguments: str) -> str:
        done = subprocess.run(
            [python, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    for command in before:
        asked("-m", "airflow", *command.split())
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    cases = [
        (nobody, " --option kafka.default.api.timeout.ms=200"),
        (broker.bootstrap, " --option nonsense=1"),
        (broker.bootstrap, ""),
        (broker.bootstrap, ""),
    ]
    outcomes = [json.loads(one) for one in re.findall(r"^OUTCOME (.*)$", asked("-c", run, json.dumps(cases)), re.M)]
    assert outcomes == [
        [False, 1, []],  # 75: tried again
        [False, 0, []],  # 2: given up at once
        [True, 0, [3]],
        [True, 0, [0]],  # nothing is there twice
    ]


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
