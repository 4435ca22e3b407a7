"""How long the first load of a fresh session takes: `python -m bench.load_first JSON`, started by load_bench.py."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench.load_bench import KINDS, Place, Topic, load_all, spark_write
from bench.spark_common import bench_session


def main() -> None:
    way, bootstrap, name, size, rows, directory = json.loads(sys.argv[1])
    place, topic = Place(Path(directory)), Topic(name, size, rows)
    place.announce_catalog()
    with bench_session() as spark:
        begun = time.perf_counter()
        if way in KINDS:
            load_all(spark, place, way, bootstrap, topic)
        else:
            spark_write(spark, way, bootstrap, topic.name, place.directory / "spark" / "first")
        print(time.perf_counter() - begun)


if __name__ == "__main__":
    main()
