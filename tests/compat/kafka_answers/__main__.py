"""Ask a Kafka of yours, and compare: its answers with those recorded, or, with --write, record them anew.

    .venv/bin/python -m tests.compat.kafka_answers HOST:PORT BROKER_ID [--write] [AREA …]
    .venv/bin/python -m tests.compat.kafka_answers HOST:PORT BROKER_ID --login HOST:PORT [--write] [AREA …]
    .venv/bin/python -m tests.compat.kafka_answers HOST:PORT,HOST:PORT,HOST:PORT --nodes COMMAND [--write] [AREA …]

A broker like the one that was recorded has `areas.SETTINGS`, and is fresh. The second form asks one with
`areas.GUARDED_SETTINGS`, at whose other listener the super user logs in; the third a cluster of three with
`areas.CLUSTER_SETTINGS`, whose brokers `COMMAND kill|start|pause|resume ID` disturbs. --write-zookeeper records what
Kafka with ZooKeeper answers otherwise. The topics made begin with "asked" and the time.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import time

from tests.compat.kafka_answers.areas import (
    AREAS,
    CLUSTER_AREAS,
    GUARDED_AREAS,
    KAFKA4_AREAS,
    answers_of,
    answers_of_cluster,
    answers_of_guarded,
)
from tests.compat.kafka_answers.asking import Answers, read_answers, write_answers
from tests.compat.kafka_answers.comparing import deviations, only_different


class CommandNodes:
    """Nodes that a command kills, starts, pauses and resumes."""

    def __init__(self, addresses: list[str], command: str) -> None:
        self.addresses = dict(enumerate(addresses, 1))
        self._command = shlex.split(command)

    def kill(self, broker_id: int) -> None:
        self._run("kill", broker_id)

    def start(self, broker_id: int) -> None:
        self._run("start", broker_id)

    def pause(self, broker_id: int) -> None:
        self._run("pause", broker_id)

    def resume(self, broker_id: int) -> None:
        self._run("resume", broker_id)

    def _run(self, verb: str, broker_id: int) -> None:
        subprocess.run([*self._command, verb, str(broker_id)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("broker_id", type=int, nargs="?")
    parser.add_argument(
        "areas", nargs="*", choices=[[], *AREAS, *KAFKA4_AREAS, *GUARDED_AREAS, *CLUSTER_AREAS], default=[]
    )
    parser.add_argument("--login", help="the address at which the super user logs in")
    parser.add_argument("--nodes", help="the command that kills, starts, pauses and resumes a node of a cluster")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--write-zookeeper", action="store_true")
    given = parser.parse_args()
    for area in given.areas or (GUARDED_AREAS if given.login else CLUSTER_AREAS if given.nodes else AREAS):
        answers = asked(given, area, f"asked{int(time.time())}")
        if given.write:
            write_answers(area, answers)
            continue
        if given.write_zookeeper:
            write_answers(f"{area}_zookeeper", only_different(read_answers(area), answers))
            continue
        found = deviations(read_answers(area), answers)
        for one in found:
            print(f"{one.request} v{one.version} {one.field}\n    recorded {one.kafka}\n    answered {one.ours}")
        print(f"{area}: {len(found)} differences")


def asked(given: argparse.Namespace, area: str, prefix: str) -> Answers:
    if given.login is not None:
        return answers_of_guarded(area, given.bootstrap, given.login, given.broker_id, prefix)
    if given.nodes is not None:
        return answers_of_cluster(area, CommandNodes(given.bootstrap.split(","), given.nodes), prefix)
    return answers_of(area, given.bootstrap, given.broker_id, prefix)


if __name__ == "__main__":
    main()
