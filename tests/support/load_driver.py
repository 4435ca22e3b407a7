"""A process that runs one load, to be killed: `python -m tests.support.load_driver ARGUMENTS SPARK_SETTINGS` (JSON).

Prints `ready` when Spark has started and its Python workers have, then loads and prints the result as JSON. Used by
tests/faults and tests/hdfs through `LoadDriver`, which starts it and reads what it says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.spark_child import SETTINGS, SparkChild


class LoadDriver(SparkChild):
    """The process that loads."""

    def __init__(self, arguments: Mapping[str, Any], settings: Mapping[str, str], log: Path) -> None:
        super().__init__("tests.support.load_driver", [json.dumps(arguments), json.dumps(dict(settings))], log)

    def wait_until_ready(self) -> None:
        """Returns when the load begins."""
        line = self._output.readline()
        assert line == "ready\n", f"{line!r}\n{self._log.read_text()[-3000:]}"

    def result(self) -> dict[str, Any] | None:
        """What the load returned; None when it failed or was killed."""
        output = self._output.read()
        self._process.wait()
        if self._process.returncode != 0:
            return None
        result: dict[str, Any] = json.loads(output)
        return result


def main() -> None:
    from pyspark.sql import SparkSession

    from spark_connector.load import load

    arguments, settings = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    builder = SparkSession.builder.master("local[2,4]").appName("load-driver")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.range(2).count()
    print("ready", flush=True)
    result = load(spark, **arguments)
    print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
