"""Ask a Kafka of yours, and compare: its answers with those recorded (of 3.8.1), or, with --write, record them anew.

    .venv/bin/python -m tests.compat.kafka_answers HOST:PORT BROKER_ID [--write] [AREA …]

A broker like the one that was recorded has `areas.SETTINGS`, and is fresh. The topics made begin with "asked" and the
time.
"""

from __future__ import annotations

import argparse
import time

from tests.compat.kafka_answers.areas import AREAS, answers_of
from tests.compat.kafka_answers.asking import read_answers, write_answers
from tests.compat.kafka_answers.comparing import deviations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("broker_id", type=int)
    parser.add_argument("areas", nargs="*", choices=[[], *AREAS], default=[])
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    for area in given.areas or AREAS:
        answers = answers_of(area, given.bootstrap, given.broker_id, f"asked{int(time.time())}")
        if given.write:
            write_answers(area, answers)
            continue
        found = deviations(read_answers(area), answers)
        for one in found:
            print(f"{one.request} v{one.version} {one.field}\n    recorded {one.kafka}\n    answered {one.ours}")
        print(f"{area}: {len(found)} differences")


if __name__ == "__main__":
    main()
