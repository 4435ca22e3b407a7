"""How long the first write of a fresh session takes: `python -m bench.write_first FORMAT BOOTSTRAP SIZE ROWS`."""

from __future__ import annotations

import sys

from bench.empty_source import Nowhere
from bench.spark_common import bench_session
from bench.spark_write_bench import rows_to_write, write_to_topic


def main() -> None:
    format, bootstrap, size, rows = sys.argv[1:]
    options = {"delivery": "exactly-once"} if format == "pykafka" else {}
    with bench_session(*[Nowhere] * (format == Nowhere.name())) as spark:
        frame = rows_to_write(spark, int(size), int(rows))
        print(write_to_topic(frame, format, bootstrap, options, "beside-first-written"))


if __name__ == "__main__":
    main()
