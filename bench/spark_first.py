"""How long the first read of a fresh session takes: `python -m bench.spark_first FORMAT BOOTSTRAP TOPIC`."""

from __future__ import annotations

import sys
import time

from bench.empty_source import Empty
from bench.spark_common import bench_session


def main() -> None:
    format, bootstrap, topic = sys.argv[1:]
    with bench_session(Empty) as spark:
        start = time.perf_counter()
        reader = spark.read.format(format)
        if format == "pykafka":
            reader = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        reader.load().selectExpr("count(*)", "sum(length(value))").collect()
        print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
