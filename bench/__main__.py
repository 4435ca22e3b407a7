"""`python -m bench [SUITE …] [--scale X]`: measure and print tables in Markdown; without a suite all but
those that need another Kafka or connector, `beside-…`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable

from bench.measure import Row

SUITES = {
    "codec": "bench.codec:run",
    "broker": "bench.broker_bench:run",
    "cluster": "bench.cluster_bench:run",
    "cold": "bench.cold_read_bench:run",
    "archive": "bench.archive_bench:run",
    "slow": "bench.slow_disk_bench:run",
    "produce": "bench.produce_bench:run",
    "peers": "bench.broker_bench:run_peers",
    "scale": "bench.scale_bench:run",
    "transactions": "bench.transaction_bench:run",
    "groups": "bench.group_bench:run",
    "controller": "bench.controller_bench:run",
    "acl": "bench.acl_bench:run",
    "ui": "bench.ui_bench:run",
    "quotas": "bench.quota_bench:run",
    "failover": "bench.failover_bench:run",
    "spark": "bench.spark_read_bench:run",
    "spark-read-cpu": "bench.spark_read_bench:run_cpu",
    "spark-typed": "bench.typed_read_bench:run",
    "avro": "bench.typed_read_bench:run_decoder",
    "protobuf": "bench.protobuf_bench:run",
    "spark-write": "bench.spark_write_bench:run",
    "spark-typed-write": "bench.typed_write_bench:run",
    "spark-filter": "bench.spark_filter_bench:run",
    "spark-archive": "bench.spark_archive_bench:run",
    "spark-cost": "bench.spark_cost_bench:run",
    "task": "bench.task_bench:run",
    "loads": "bench.load_bench:run",
    "hosts": "bench.hosts_bench:run",
    "hosts-spark": "bench.hosts_spark_bench:run",
    "partitions": "bench.partitions_bench:run",
    "beside-loads": "bench.beside_spark:run_loads",
    "beside-first-loads": "bench.beside_spark:run_first_loads",
    "beside-reads": "bench.beside_spark:run_reads",
    "beside-writes": "bench.beside_spark:run_writes",
    "beside-first-writes": "bench.beside_spark:run_first_writes",
    "beside-typed": "bench.beside_spark:run_typed",
    "beside-micro-batches": "bench.beside_spark:run_micro_batches",
    "beside-broker": "bench.beside_kafka:run_broker",
    "beside-cluster": "bench.beside_kafka:run_cluster",
    "beside-failover": "bench.beside_kafka:run_failover",
}
BESIDE = "beside-"
"""Suites of ours and theirs, which come of the environment: beside_spark.py, beside_kafka.py."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the messages, for a quick look")
    options = parser.parse_args()
    for name in options.suites or (one for one in SUITES if not one.startswith(BESIDE)):
        module, _, function = SUITES[name].partition(":")
        columns = ("ours", "theirs") if name.startswith(BESIDE) else ("figure", "ceiling")
        print_table(getattr(importlib.import_module(module), function)(options.scale), *columns)


def print_table(rows: Iterable[Row], value: str = "figure", beside: str = "ceiling") -> None:
    """Case, figure, ceiling, ratio; each row as soon as it is measured."""
    print(f"| case | {value} | {beside} | ratio |\n| --- | --- | --- | --- |", flush=True)
    for row in rows:
        ceiling = "" if row.ceiling is None else f"{row.ceiling:,.4g} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        case, figure = f"{row.case} {row.note}".strip(), f"{row.value:,.4g} {row.unit}"
        print(f"| {case} | {figure} | {ceiling} | {ratio} |", flush=True)
    print(flush=True)


if __name__ == "__main__":
    main()
