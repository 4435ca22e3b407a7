"""A Spark of its own that runs the jobs of the kill matrix, to be killed: `python -m tests.support.kill_jobs JSON`.

The argument holds the master and Spark's settings. Reads one job per line from standard input, `{"job": name,
"arguments": {…}}`, and answers on standard output with lines of JSON: `{"event": "ready"}` once; per job `begun`, what
it reaches on its way (`batch` of a stream, `phase` of a load), and `ended` with the error or null. Ends with its input.
Everything Spark prints goes to standard error; SIGUSR1 prints the stacks of all threads there.

Every job can be run again with the same arguments after any crash, as a user would. Started by kill_host.py.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from spark_connector.source import PykafkaSource
from spark_connector.write.writers import KafkaStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_connector.write.writers import TaskMessage

Arguments = dict[str, Any]
Tell = Callable[..., None]

_LOOK_EVERY_S = 0.05

_LATE = 0.05  # share of the requests for a transactional id
_LATEST_S = 2.0

COLUMNS = ("topic", "partition", "offset", "key", "value")


def read(spark: SparkSession, arguments: Arguments, tell: Tell) -> None:
    """Everything in the topic to parquet, over whatever was there."""
    frame = (
        spark.read.format("pykafka")
        .options(**arguments["client"])
        .option("subscribe", arguments["topic"])
        .option("maxRecordsPerPartition", str(arguments["cap"]))  # several tasks
        .load()
    )
    frame.select(*COLUMNS).write.mode("overwrite").parquet(arguments["output"])


def stream(spark: SparkSession, arguments: Arguments, tell: Tell) -> None:
    """What is new in the topic to parquet, by several micro-batches."""
    _run(_source(spark, arguments).select(*COLUMNS).writeStream.format("parquet"), arguments, tell)


class LateWriter(KafkaStreamWriter):
    """Some attempts stand still before they take a transactional id, for longer than their driver waits for them. They
    outlive their executor, too, which hangs up on its Python workers when it dies."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        attempt: Any = importlib.import_module("spark_connector.write.attempt")
        take, dice = attempt.init_transactional_id, random.SystemRandom()

        def late(cluster: Any, name: str, **more: Any) -> Any:
            if dice.random() < _LATE:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                time.sleep(dice.uniform(0, _LATEST_S))
            return take(cluster, name, **more)

        attempt.init_transactional_id = late
        try:
            return super().write(iterator)
        finally:
            attempt.init_transactional_id = take


class LateSource(PykafkaSource):
    """`pykafka` with such a writer. Spark pickles what a main program defines, so that workers need no tests."""

    @classmethod
    def name(cls) -> str:
        return "late-pykafka"

    def streamWriter(self, schema: Any, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802
        from spark_connector.write.write_plan import plan_write

        return LateWriter(plan_write(self._write_options(schema, stream=True)))


def sink(spark: SparkSession, arguments: Arguments, tell: Tell) -> None:
    """What is new in the topic to the topic `output` of the same cluster, exactly once, with late attempts."""
    spark.dataSource.register(LateSource)
    writer = (
        _source(spark, arguments)
        .select("key", "value")
        .writeStream.format("late-pykafka")
        .options(**arguments["client"])
        .option("topic", arguments["output"])
        .option("delivery", "exactly-once")
    )
    _run(writer, arguments, tell)


def load(spark: SparkSession, arguments: Arguments, tell: Tell) -> None:
    """What is new in the topic to parquet, by one load."""
    from spark_connector.load import load as run_load

    run_load(spark, **arguments, on_phase=lambda phase, _record: tell("phase", name=phase))


JOBS = {job.__name__: job for job in (read, stream, sink, load)}


def _source(spark: SparkSession, arguments: Arguments) -> DataFrame:
    return (
        spark.readStream.format("pykafka")
        .options(**arguments["client"])
        .option("subscribe", arguments["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(arguments["cap"]))
        .options(**arguments["reading"])
        .load()
    )


def _run(writer: DataStreamWriter, arguments: Arguments, tell: Tell) -> None:
    writer = writer.option("checkpointLocation", arguments["checkpoint"]).trigger(availableNow=True)
    is_topic = "/" not in arguments["output"]
    query = writer.start() if is_topic else writer.start(arguments["output"])
    told = -1
    while query.isActive:
        time.sleep(_LOOK_EVERY_S)
        for progress in query.recentProgress:
            if progress.batchId > told:
                told = progress.batchId
                tell("batch", number=told)
    if (error := query.exception()) is not None:
        raise error


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the JVM inherits this one

    def tell(event: str, **details: Any) -> None:
        events.write(json.dumps({"event": event, **details}) + "\n")

    from pyspark.sql import SparkSession

    from pyspark_pykafka import DefaultSource

    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(given["master"]).appName("kill-matrix")
    for name, value in given["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.range(4).count()
    tell("ready")
    requests: queue.SimpleQueue[Arguments] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        request = requests.get()
        tell("begun")
        try:
            JOBS[request["job"]](spark, request["arguments"], tell)
        except Exception as error:
            traceback.print_exc()
            if "DATA_SOURCE_NOT_FOUND" in str(error):
                # The worker that looked for sources was the one that died: Spark never looks again, so its user must
                # name ours (docs/decisions/build.md).
                spark.dataSource.register(DefaultSource)
            tell("ended", error=f"{type(error).__name__}: {error}")
        else:
            tell("ended", error=None)


def _listen(requests: queue.SimpleQueue[Arguments]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)  # whoever started us is gone: so are his servers, and the job would go on trying


if __name__ == "__main__":
    main()
